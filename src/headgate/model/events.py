"""Events that the controller is told: plain frozen values.

Times are seconds on the hub's clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Literal

from headgate.model.cluster import Node
from headgate.model.endings import Checkpoint, Ending, Exit
from headgate.model.identifiers import JobId, TaskId
from headgate.model.job_states import JobState
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.progress import Progress
from headgate.model.reasons import Reason

GpuUse = Literal["no", "maybe", "yes", "seen-none"]

GRACE_SECONDS = 10.0
"""Seconds from a stop request to the kill."""
CONNECTED_GRACE_SECONDS = 60.0
"""The same for a task that answers on the channel: it first finishes its step and saves a
checkpoint.
"""


@dataclass(frozen=True, slots=True)
class NodeJoined:
    """A node joined or changed. `runs`: the runs whose jobs may newly use it."""

    node: Node
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """A node left, `for_good` if it cannot come back. `runs`: only their jobs lose it; empty: all
    do. A `TaskExited` follows for each of its tasks.
    """

    node: str
    runs: tuple[str, ...] = ()
    for_good: bool = False


@dataclass(frozen=True, slots=True)
class KeptSideBySide:
    """What jobs keep of their rates alone when they run side by side on a GPU, as measured.

    Args:
        place: Name of the node, and of its GPU.
        jobs: Keys of the jobs, in order. A key covers script, arguments and variables.
        kept: The fraction that each keeps.
    """

    place: str
    jobs: tuple[str, ...]
    kept: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TakenUp:
    """How a job stood when its hub died; the next hub takes it up.

    Args:
        state: Its state.
        attempt: Number of its latest attempt; 0: it had not started.
        plan: The plan of that attempt, with the node of each task.
        gpus: GPUs that its task may see; None: all.
        goes_on: Whether its task runs, or has ended meanwhile in a known way.
        ran: Seconds since that attempt started.
        lost: Why its tasks are gone; None: they are not, or it had none.
        ending: Details of its end, if it had ended.
        reason: Why it had ended; None: unknown, or it had not.
    """

    state: JobState
    attempt: int = 0
    plan: Plan | None = None
    gpus: tuple[int, ...] | None = None
    goes_on: bool = False
    ran: float = 0.0
    lost: Reason | None = None
    ending: Ending | None = None
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class JobSubmitted:
    """A job was submitted. All jobs of a run are submitted before any other event of them.

    A forerunner may be missing if it finished in the run that this run resumes. The job does not
    wait for it.

    Args:
        nodes: Names of the nodes that it may use; empty: those of its plan.
        memory_bytes: Known memory of a worker; None: not known.
        work: Core-seconds that such jobs took in all: the likely number and a 90 % band; None: not
            known.
        gpus: GPUs of a node that its environment allows, in that order; None: all.
        divides: Whether its script shards the model's memory among its workers, as FSDP does.
        gpu_memory_bytes: Known memory of a worker on each of its GPUs; None: not known.
        uses_gpus: Whether its program computes on a GPU, judging by its command.
        key: Key of its script, arguments and variables; empty: not known.
        beside: What is known of it and others side by side on GPUs.
        script: Key of its script, whatever its arguments; empty: not known.
        best_at_once: How many jobs of it at once brought most in an earlier run; None: not known.
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
    key: str = ""
    beside: tuple[KeptSideBySide, ...] = ()
    script: str = ""
    best_at_once: int | None = None
    taken_up: TakenUp | None = None


@dataclass(frozen=True, slots=True)
class SlotsStated:
    """So many jobs of all runs together run at once; None: as many as the cores are for."""

    jobs: int | None


@dataclass(frozen=True, slots=True)
class MachineShared:
    """From now on the arbiter of a shared machine says when jobs start there; `shared` False:
    nobody. `node`: the machine; jobs on other nodes do not ask.
    """

    shared: bool
    node: str


@dataclass(frozen=True, slots=True)
class JobGranted:
    """The arbiter lets a waiting job start, with these GPUs for each of its workers."""

    job: JobId
    gpus: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class JobPlanned:
    """The answer to `PlanJob`; dropped if `revision` is no longer the job's."""

    job: JobId
    revision: int
    plan: Plan


@dataclass(frozen=True, slots=True)
class TaskStarted:
    task: TaskId
    pid: int


@dataclass(frozen=True, slots=True)
class TaskReady:
    """A task of a role is ready. With a `failure`: it was not ready in time."""

    task: TaskId
    failure: Reason | None = None


@dataclass(frozen=True, slots=True)
class TaskExited:
    task: TaskId
    exit: Exit


@dataclass(frozen=True, slots=True)
class TaskConnected:
    """The task's library connected."""

    task: TaskId
    framework: str


@dataclass(frozen=True, slots=True)
class GpusUsed:
    """The task's library reported the GPUs of its node that it computes on."""

    task: TaskId
    gpus: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TaskJoined:
    """A worker that joined running ones has their state and counts from now on."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class TaskLeaves:
    """A worker announced that it ends before the others, who go on."""

    task: TaskId


@dataclass(frozen=True, slots=True)
class StepPace:
    """What the steps of a task or job wait for.

    Args:
        waiting: Its threads that were ready and had no core, on average.
        main_ready: Fraction of time in which the busiest thread of its training process ran or was
            ready.
        input: Fraction of its steps in which they waited for input.
        gpu_busy: Fraction of time in which its GPU computed; 0: unknown.
    """

    waiting: float
    main_ready: float
    input: float
    gpu_busy: float = 0.0

    def toward(self, other: StepPace, part: float) -> StepPace:
        """Each value moved by `part` of the way to that of another."""
        values = {
            f.name: getattr(self, f.name) + part * (getattr(other, f.name) - getattr(self, f.name))
            for f in fields(self)
        }
        return StepPace(**values)


@dataclass(frozen=True, slots=True)
class Usage:
    """Mean use of a task since its last usage event, `seconds` ago (None: not known for sure).
    Unmeasurable values are 0. `pace`: what its steps wait for; None: no spans tell it.
    """

    task: TaskId
    cpu_cores: float
    memory_bytes: float
    disk_bytes_per_second: float = 0.0
    network_bytes_per_second: float = 0.0
    seconds: float | None = None
    gpu_memory_bytes: float = 0.0
    pace: StepPace | None = field(default=None, kw_only=True)


@dataclass(frozen=True, slots=True)
class GpuMemoryUsed:
    """Bytes in use on each GPU of a node by all programs, and bytes `held` by each task, as far as
    known.

    Args:
        single: GPUs in a compute mode that allows one process at a time.
        closed: GPUs whose compute mode now allows no further process.
    """

    node: str
    used: Mapping[int, float]
    held: Mapping[TaskId, Mapping[int, float]]
    single: frozenset[int] = frozenset()
    closed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class MemoryUsed:
    """Available bytes of a node's memory, and the bytes that each task there holds, as far as
    known. `busy_cores`: its cores in use by all programs; None: not known.
    """

    node: str
    available: float
    held: Mapping[TaskId, float]
    busy_cores: float | None = None


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predicted remaining work of a job, from its losses or its number of epochs.

    Args:
        work: Remaining CPU time, core-seconds: the median.
        low: Lower end of a 90 % band.
        high: Upper end of that band.
        asymptote: Final loss; None: not known.
        drops: Increasing CPU times (core-seconds), each with the drop of the loss during it,
            negative if the loss rises. Empty: not known.
        ends: Whether the end is known: by epochs, a goal, early stopping, or other jobs of the
            script. Otherwise `work` lasts until the loss levels off, and scripts seldom end there.
        cores: Cores that it uses efficiently while others want them (`forecast.scaling`); None: not
            known.
        follows: Whether its thread count follows its grant while it runs. If not, a trial on more
            cores says nothing.
        seconds: Duration of `work` at the job's present speed; None: not known.
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
    """The checkpoint to resume a job from is damaged; `instead` is the newest older one."""

    task: TaskId
    text: str
    instead: Checkpoint | None


@dataclass(frozen=True, slots=True)
class StopRequested:
    """A job has to end: at once (`kill`), or with a checkpoint at the next step boundary. `reason`:
    None: a person asked.
    """

    job: JobId
    kill: bool = False
    reason: Reason | None = None


@dataclass(frozen=True, slots=True)
class ResizeRequested:
    """A person asks for another number of workers of a running job."""

    job: JobId
    workers: int


@dataclass(frozen=True, slots=True)
class ChangeRequested:
    """A user changed the limits or fields of a live job: `spec` is the job from now on."""

    job: JobId
    spec: Job


@dataclass(frozen=True, slots=True)
class MoveRequested:
    """A running job goes on with another plan, from a checkpoint that it just saved. With `waits`
    it starts over: its engine has not started any task.
    """

    job: JobId
    plan: Plan
    reason: Reason
    waits: bool = False


@dataclass(frozen=True, slots=True)
class JobGivesBack:
    """A job ends with a checkpoint, which frees memory and GPUs, and waits again for room. One that
    ends already stays as it is.

    Args:
        attempt: The attempt of it that is meant; None: the running one.
        reason: Why.
        ends: It ends for good.
    """

    job: JobId
    attempt: int | None
    reason: Reason
    ends: bool = False


@dataclass(frozen=True, slots=True)
class PauseRequested:
    """A job has to pause. A running one is frozen with its memory, or with `release` ended with a
    checkpoint, which frees memory and GPUs. A waiting one stays in the queue.

    Args:
        urgent: Id of the urgent job that it makes room for; empty: its user asked.
    """

    job: JobId
    release: bool = False
    urgent: str = ""


@dataclass(frozen=True, slots=True)
class UnpauseRequested:
    """A paused job goes on. `refused`: it could not be frozen, and runs as before."""

    job: JobId
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Wake:
    """The time at which the controller asked to be woken."""


Event = (
    NodeJoined
    | NodeLeft
    | JobSubmitted
    | SlotsStated
    | MachineShared
    | JobGranted
    | JobGivesBack
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
    | ChangeRequested
    | MoveRequested
    | PauseRequested
    | UnpauseRequested
    | Wake
)


# --- notices: what else a controller is told and logs ---------------------------------------------


@dataclass(frozen=True, slots=True)
class ControllerMade:
    """A hub made a new controller under this policy, without nodes or jobs."""

    policy: str


@dataclass(frozen=True, slots=True)
class PairsKnown:
    """Known slowdowns of jobs by each other: the fields of an `Interference`."""

    pairs: Mapping[str, Mapping[str, Mapping[str, float]]]
    solo: Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class RunForgotten:
    """The controller drops the jobs of an ended run."""

    run: str


@dataclass(frozen=True, slots=True)
class ReadingsLeftOut:
    """From here on the log omits readings without actions: it has too many already."""

    after: int


Notice = ControllerMade | PairsKnown | RunForgotten | ReadingsLeftOut
