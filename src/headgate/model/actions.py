"""Actions that the controller asks for: plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.model.endings import Checkpoint, Ending
from headgate.model.events import Event, KeptSideBySide, Notice
from headgate.model.identifiers import JobId, TaskId
from headgate.model.job_states import JobState
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.reasons import Reason
from headgate.model.shares import Share


@dataclass(frozen=True, slots=True)
class PlanJob:
    """Find a plan for the job; answered by a `JobPlanned` with this revision."""

    job: JobId
    spec: Job
    revision: int


@dataclass(frozen=True, slots=True)
class StartTask:
    """Start a task. A task that `joins` running ones takes their state instead of a checkpoint."""

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
    gpus: tuple[int, ...] | None = None  # of its node; None: all
    resume: Checkpoint | None = None
    joins: bool = False


@dataclass(frozen=True, slots=True)
class SetShare:
    """Change a running task's share.

    Args:
        entitled_cores: Cores of the share when every task wants the CPU.
        threads: How many compute threads the task should have, about as many.
    """

    task: TaskId
    share: Share
    threads: int
    entitled_cores: float
    reason: Reason


@dataclass(frozen=True, slots=True)
class TryJob:
    """A job gets more cores for some seconds, lent by others, to measure their benefit. Its
    `SetShare`s are separate; this is for the record.
    """

    job: JobId
    cores: float
    seconds: float
    beside: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class ShareGpu:
    """A job runs side by side with others on its GPU from now on, or takes turns with them. Its
    `SetShare` is separate. `measured`: a new measurement to keep.
    """

    job: JobId
    side_by_side: bool
    reason: Reason
    measured: KeptSideBySide | None = None


@dataclass(frozen=True, slots=True)
class BoundRun:
    """It is measured how many jobs of a run bring most at once.

    Args:
        job: One of them.
        script: Key of its script; empty: not known.
        at_once: How many; None: as many as the cores are for, since nothing tells.
        reason: What was measured.
    """

    job: JobId
    script: str
    at_once: int | None
    reason: Reason


@dataclass(frozen=True, slots=True)
class StopTask:
    """Ask a task to end: with a checkpoint at the next step boundary if it can. After `grace`
    seconds it is killed; 0: at once. If it `leaves`, only this worker ends.
    """

    task: TaskId
    grace: float
    reason: Reason
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class HoldJob:
    """Freeze all tasks of a job together until it is told to go on (`held` is False)."""

    job: JobId
    held: bool


@dataclass(frozen=True, slots=True)
class Resize:
    """Change the plan of a job, from its next attempt on if it `restarts`. `least_workers`: as many
    as its memory needs, as far as known.
    """

    job: JobId
    plan: Plan
    restarts: bool = False
    least_workers: int = 1


@dataclass(frozen=True, slots=True)
class Fault:
    """A task was lost and its job survives. If it `restarts`, all its tasks are started again."""

    job: JobId
    task: TaskId
    reason: Reason
    restarts: bool = False


@dataclass(frozen=True, slots=True)
class MarkJob:
    """The job enters `state` for `reason`; `ending`: details of its end."""

    job: JobId
    state: JobState
    reason: Reason
    exit_code: int | None = None
    ending: Ending | None = None


@dataclass(frozen=True, slots=True)
class MarkIdle:
    """A task left its entitled cores idle for a while, or uses them again. Idle cores give threads
    to other tasks.
    """

    task: TaskId
    idle: bool


@dataclass(frozen=True, slots=True)
class Warn:
    """A fault that people should know of and that stopped nothing. `job` None: it concerns every
    run.
    """

    reason: Reason
    job: JobId | None = None


Action = (
    PlanJob
    | StartTask
    | SetShare
    | TryJob
    | ShareGpu
    | BoundRun
    | StopTask
    | HoldJob
    | Resize
    | Fault
    | MarkJob
    | MarkIdle
    | Warn
)


def subject(what: Event | Action | Notice) -> TaskId | JobId | None:
    """Id of the task or job of an event or action; None: it has none."""
    task_or_job: TaskId | JobId | None = getattr(what, "task", None) or getattr(what, "job", None)
    return task_or_job
