"""What happens to the controller (events) and what it asks for (actions): plain frozen values, no
behaviour.

Times are seconds on the hub's clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from headgate.model.cluster import Node
from headgate.model.endings import Checkpoint as Checkpoint
from headgate.model.endings import Ending
from headgate.model.endings import Exit as Exit
from headgate.model.endings import OutsideFiles as OutsideFiles
from headgate.model.identifiers import JobId, TaskId
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.reasons import Reason
from headgate.model.shares import Share

JobState = Literal[
    "waiting",
    "running",
    "stopping",
    "done",
    "failed",
    "stopped",
    "killed",
    "skipped",
    "interrupted",
]
ENDED: frozenset[JobState] = frozenset(
    {"done", "failed", "stopped", "killed", "skipped", "interrupted"}
)
FAULTS: frozenset[JobState] = frozenset({"failed", "killed", "interrupted"})
"""States of a job, and kinds of events, that tell of a fault."""
NAMED_BY_REASON: frozenset[JobState] = frozenset({"stopped", "killed"})
"""States that the reason of a job names: "stopped by its user"."""

GpuUse = Literal["no", "maybe", "yes", "seen-none"]

GRACE_SECONDS = 10.0
"""How long a task that is asked to end may take before it is killed."""
CONNECTED_GRACE_SECONDS = 60.0
"""The same for a task that answers on the channel: it first has to reach the end of its step and to
save a checkpoint.
"""


TRIAL = "trial"
"""The kind of a recorded event: for some seconds a job is tried on more cores."""


def state_in_words(state: str, reason: str) -> str:
    """A job's state, or another kind of event, and why: one phrase."""
    if not reason or reason == state:
        return state
    return reason if state in NAMED_BY_REASON else f"{state}, {reason}"


# --- events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node is there, or has changed. `runs` are the runs whose jobs may use it from now on, and
    could not before.
    """

    node: Node
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A node is gone, `for_good` if it cannot come back. If `runs` are named, it is gone for their
    jobs alone. Each task that was on it ends with a `TaskExited`, as any other does.
    """

    node: str
    runs: tuple[str, ...] = ()
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job was handed in. All jobs of a run come before anything else happens to one of them.

    A job may follow one that was not handed in, because that one was done in the run that this run
    goes on with. Such a job does not wait.

    Args:
        nodes: Names of the nodes that it may use; empty: those of its plan.
        memory_bytes: What a worker of it is known to need; None: not known.
        work: Core-seconds that such jobs took from beginning to end: the likely number, and a band
            that holds nine of ten; None: not known.
        gpus: GPUs of a node that its environment allows, in the environment's order; None: all.
        divides: Its script divides the model's memory among its workers, as FSDP does.
        gpu_memory_bytes: What a worker is known to need on each of its GPUs; None: not known.
        uses_gpus: Whether its program computes on a GPU, as far as its command tells.
    """

    job: JobId
    spec: Job
    resume: Checkpoint | None = None
    nodes: tuple[str, ...] = ()
    memory_bytes: int | None = None
    work: tuple[float, float, float] | None = None
    gpus: tuple[int, ...] | None = None
    divides: bool = False
    gpu_memory_bytes: int | None = None
    uses_gpus: GpuUse = "no"


@dataclass(frozen=True, slots=True)
class JobPlanned:
    """Answer to `PlanJob`; dropped when `revision` is no longer the job's."""

    job: JobId
    revision: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class TaskStarted:
    task: TaskId
    pid: int


@dataclass(frozen=True, slots=True)
class TaskReady:
    """A task of a role is ready; or, with a `failure` in words, has not become so in time."""

    task: TaskId
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class TaskExited:
    task: TaskId
    exit: Exit


@dataclass(frozen=True, slots=True)
class TaskConnected:
    """The task's library said hello."""

    task: TaskId
    framework: str


@dataclass(frozen=True, slots=True)
class GpusUsed:
    """The task's library said which GPUs of its node it computes on."""

    task: TaskId
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TaskJoined:
    """A worker that was started to join others has their state, and counts."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class TaskLeaves:
    """A worker said that it ends before the others, who go on."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class ReportPart:
    """One of the reports that a progress stands for, and when it came (s)."""

    at: float
    step: int | None
    epoch: int | None
    loss: float
    within: float | None


@dataclass(frozen=True, slots=True)
class Progress:
    """What a task reported since its last progress.

    Args:
        epoch: The epoch that is going on, counted from 1; where it was read from the output, as the
            script counts.
        loss: Mean of `count` reported losses; NaN if one of them was.
        epochs: How many epochs there will be in all.
        within: Part of the epoch that is done, 0 to 1.
        steps: How many steps there will be in all.
        remaining: Seconds that its script says are left.
        covers: `epoch` or `part`: loss and metrics are means over this epoch, or over the part of
            it that is done. Then the latest report counts. None: they are of the latest steps.
        over: How many steps, or samples where no steps are told, a mean of an epoch or a part is
            over; None: not said.
        mean: That mean, as the task told it, where `loss` was made that of the latest steps.
        weight: What each of the losses counts in the mean over the job's workers.
        parts: The reports that it is the mean of, where these are known.
    """

    task: TaskId
    step: int | None
    epoch: int | None = None
    samples: int | None = None
    loss: float | None = None
    count: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    epochs: int | None = None
    within: float | None = None
    steps: int | None = None
    covers: str | None = None
    over: int | None = None
    mean: float | None = None
    weight: float = 1.0
    remaining: float | None = None
    parts: tuple[ReportPart, ...] = ()

    def merged(self, later: Progress) -> Progress:
        """This progress and a later one of the same task as one: the mean loss of both, the later
        of all else. The later loss counts alone where one is no number, since what does not last
        says little, or that of an epoch.
        """
        given = {f.name: v for f in fields(later) if (v := getattr(later, f.name)) is not None}
        if self.loss is not None:
            given |= {"loss": self.loss, "count": self.count, "weight": self.weight}
        if self.loss is not None and later.loss is not None:
            running = any(usage.covers and usage.mean is None for usage in (self, later))
            if math.isfinite(self.loss) and math.isfinite(later.loss) and not running:
                count = self.count + later.count
                weighed = self.count * self.weight, later.count * later.weight
                given |= {
                    "loss": (self.loss * weighed[0] + later.loss * weighed[1])
                    / (sum(weighed) or 1.0),
                    "count": count,
                    "weight": sum(weighed) / count,
                }
            else:
                given |= {
                    "loss": later.loss,
                    "count": later.count,
                    "weight": later.weight,
                    "covers": later.covers,
                }
        return replace(self, **{**given, "metrics": {**self.metrics, **later.metrics}})


@dataclass(frozen=True, slots=True)
class Usage:
    """Mean use of a task since its last usage, which came `seconds` ago (None: not known for sure).
    What cannot be measured where the task runs is 0.
    """

    task: TaskId
    cpu_cores: float
    memory_bytes: float
    disk_bytes_per_second: float = 0.0
    network_bytes_per_second: float = 0.0
    seconds: float | None = None
    gpu_memory_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuMemoryUsed:
    """Bytes in use on each GPU of a node, by all programs; and `held` of these by each task, as far
    as that can be told.

    Args:
        single: GPUs on which one process alone may compute at a time, by their compute mode.
        closed: GPUs on which no further process may begin to compute now, by their compute mode.
    """

    node: str
    used: Mapping[int, float]
    held: Mapping[TaskId, Mapping[int, float]]
    single: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class MemoryUsed:
    """Bytes of a node's memory that can still be had, whoever has the rest; and what each task
    there holds, as far as that can be told.
    """

    node: str
    available: float
    held: Mapping[TaskId, float]


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is left of a job, by its losses or the epochs it is to do.

    Args:
        work: Remaining CPU time, core-seconds: the median.
        low: Lower end of a band that holds nine of ten.
        high: Upper end of that band.
        asymptote: What its loss comes to in the end; None: not known.
        drops: CPU times (core-seconds, growing), each with the drop of the loss during it. Below
            zero where the loss rises. Empty: not known.
        ends: Whether the end is known: by epochs, a goal, early stopping, or other jobs of the
            script. Otherwise `work` is until the loss levels off, and scripts seldom end there.
        cores: Cores that it puts to good use while others want them (`forecast.scaling`); None: not
            known.
        follows: Whether its compute threads become as many as it is granted while it runs. Else no
            trial on more cores tells anything of it.
        seconds: What `work` takes at the job's present speed; None: not known.
    """

    job: JobId
    work: float
    low: float
    high: float
    asymptote: float | None = None
    drops: tuple[tuple[float, float], ...] = ()
    ends: bool = True
    cores: float | None = None
    follows: bool = True
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CheckpointDone:
    task: TaskId
    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class CheckpointLost:
    """The checkpoint that a job's attempt was to go on from is not whole; `instead` is the newest
    one before it.
    """

    task: TaskId
    text: str
    instead: Checkpoint | None


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A job is to end: `kill` at once, otherwise with a checkpoint at the next step boundary.
    `reason` says why; None: a person asks for it.
    """

    job: JobId
    kill: bool = False
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class ResizeRequested:
    """A person asks for a running job of several tasks to have so many workers."""

    job: JobId
    workers: int


@dataclass(frozen=True, slots=True)
class MoveRequested:
    """A running job is to go on by another plan, from a checkpoint that it has just saved; or,
    where it `waits`, from the beginning: its engine has started none of its tasks yet.
    """

    job: JobId
    plan: Plan
    reason: Reason
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Wake:
    """The time that the controller asked to be woken at has come."""


Event = (
    NodeJoined
    | NodeLeft
    | JobSubmitted
    | JobPlanned
    | TaskStarted
    | TaskReady
    | TaskExited
    | TaskConnected
    | GpusUsed
    | TaskJoined
    | TaskLeaves
    | Progress
    | Usage
    | GpuMemoryUsed
    | MemoryUsed
    | Predicted
    | CheckpointDone
    | CheckpointLost
    | StopRequested
    | ResizeRequested
    | MoveRequested
    | Wake
)

# --- actions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlanJob:
    """Find a plan for the job; the answer is a `JobPlanned` with this revision."""

    job: JobId
    spec: Job
    revision: int


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start a task. One that `joins` others that are at work takes their state, and no
    checkpoint.
    """

    task: TaskId
    job: JobId
    spec: Job
    plan: Plan
    node: str
    attempt: int
    share: Share
    threads: int
    entitled_cores: float
    reason: Reason
    gpus: tuple[int, ...] | None = None  # of its node; None: all of them
    resume: Checkpoint | None = None
    joins: bool = False


@dataclass(frozen=True, slots=True)
class SetShare:
    """Change a running task's share. `entitled_cores` is what the share comes to when everybody
    wants the CPU; `threads`, about that many, is how many compute threads the task should have.
    """

    task: TaskId
    share: Share
    threads: int
    entitled_cores: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class TryJob:
    """A job has so many cores for some seconds, which others lend it, so that it is known what they
    bring it: shares say so already, and this is to be recorded.
    """

    job: JobId
    cores: float
    seconds: float
    beside: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class StopTask:
    """Ask a task to end: checkpoint at the next step boundary if it can, and `grace` seconds later
    it is killed. With a grace of 0 it is killed at once. One that `leaves` does so alone: the other
    workers go on.
    """

    task: TaskId
    grace: float
    reason: Reason
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Resize:
    """The job has this plan from now on; if it `restarts`, from its next attempt on. Its memory
    needs at least `least_workers`, as far as is known.
    """

    job: JobId
    plan: Plan
    restarts: bool = False
    least_workers: int = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """A task was lost, and the job survives it; `restarts` where all its tasks are started
    again.
    """

    job: JobId
    task: TaskId
    reason: Reason
    restarts: bool = False


@dataclass(frozen=True, slots=True)
class MarkJob:
    """The job is now in `state`, for `reason`; `ending`: what else there is to say of its end."""

    job: JobId
    state: JobState
    reason: Reason
    exit_code: int | None = None
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class MarkIdle:
    """A task has used hardly any of its entitled cores for a while, or uses them again. Others get
    threads for the cores that it leaves.
    """

    task: TaskId
    idle: bool


@dataclass(frozen=True, slots=True)
class Warn:
    """Something went wrong that people should know of, and that stopped nothing. If `job` is None,
    it concerns every run.
    """

    reason: Reason
    job: JobId | None = None


Action = (
    PlanJob | StartTask | SetShare | TryJob | StopTask | Resize | Fault | MarkJob | MarkIdle | Warn
)

# --- notices: what else a controller is told, and its log says ------------------------------------


@dataclass(frozen=True, slots=True)
class ControllerMade:
    """A hub has a new controller, under this policy. It knows no node and no job."""

    policy: str


@dataclass(frozen=True, slots=True)
class PairsKnown:
    """The costs that jobs are known to have for each other: the fields of an `Interference`."""

    pairs: Mapping[str, Mapping[str, Mapping[str, float]]]
    solo: Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class RunForgotten:
    """The controller drops the jobs of a run that has ended."""

    run: str


@dataclass(frozen=True, slots=True)
class ReadingsLeftOut:
    """From here on a log leaves out readings that led to no action: it has so many already."""

    after: int


Notice = ControllerMade | PairsKnown | RunForgotten | ReadingsLeftOut


def subject(what: Event | Action | Notice) -> TaskId | JobId | None:
    """Id of the task or job that an event or action is about; None where it is about none."""
    task_or_job: TaskId | JobId | None = getattr(what, "task", None) or getattr(what, "job", None)
    return task_or_job
