"""The contract of a policy, which moves shares between running jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.forecast.job_tracker import JobTracker
from headgate.model.events import Predicted as Predicted
from headgate.model.events import StepPace
from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason
from headgate.model.shares import Share
from headgate.policies.weights import FLOOR, MOST_CHANGES


@dataclass(frozen=True, slots=True)
class Arrived:
    """A job starts: its priority, its core limit (None: no limit), and its workers.

    `tracker` has its losses and use, updated before each call of `decide`, for policies that ask
    for it (`Policy.tracks`). Policies read it and never feed it. None: nobody keeps one, and the
    changes carry everything.
    """

    job: JobId
    priority: float
    cores_limit: float | None = None
    workers: int = 1
    tracker: JobTracker | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Left:
    """A job ended. `done`: it completed, so its total work is known. Otherwise it failed, was
    stopped, or is started again.
    """

    job: JobId
    done: bool = True


@dataclass(frozen=True, slots=True)
class Changed:
    """A user changed the priority or core limit of a running job."""

    job: JobId
    priority: float
    cores_limit: float | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a job's tasks are. Sent for each arriving job, and again when that changes.

    Jobs without known nodes are assumed to share one node.

    Args:
        cores: For each node, its cores for jobs. For a job on GPUs each GPU is a node, `NODE/gpu0`,
            with the cores of its real node. So weights on GPUs and on cores are comparable.
        on_gpus: Whether the job computes on GPUs, whose time is then divided.
        workers: Number of workers; None: as at its arrival.
    """

    job: JobId
    cores: Mapping[str, float]
    on_gpus: bool = False
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    """A job reported its metric, as the mean of `count` values; NaN if it was NaN.

    `loss` falls as the job learns, on any scale. A rising metric, such as an accuracy or a reward,
    is negated. `adversarial` losses, such as those of a GAN, rise and fall with each other and do
    not show progress.
    """

    job: JobId
    loss: float
    step: int | None
    epoch: int | None
    epochs: int | None
    count: int
    adversarial: bool = False


@dataclass(frozen=True, slots=True)
class Used:
    """Mean use of a job since its last `Used`.

    `seconds` is the time since then, if known for sure. A longer gap than usual then counts fully,
    and is not taken for a clock jump. `pace`: what its steps wait for; None: unknown.
    """

    job: JobId
    cpu_cores: float
    memory_bytes: float
    disk_bytes_per_second: float = 0.0
    network_bytes_per_second: float = 0.0
    seconds: float | None = None
    pace: StepPace | None = None


@dataclass(frozen=True, slots=True)
class Stalled:
    """A job stopped reporting, by its tracker. Sent to policies that read trackers."""

    job: JobId


Change = Arrived | Changed | Left | Placed | Reported | Used | Stalled | Predicted


@dataclass(frozen=True, slots=True)
class Trial:
    """A job gets more cores for some seconds, to measure their benefit.

    Args:
        cores: Its cores during the trial.
        beside: The jobs that have fewer meanwhile.
    """

    job: JobId
    cores: float
    seconds: float
    beside: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """A policy's answer.

    Args:
        shares: New shares of whole jobs, each with its reason. A weight counts on each node of the
            job, against the weights of the jobs there.
        wake_at: When to ask again without changes (s); None: only after a change.
        reasons: New reasons of jobs whose share stays.
        trial: A trial that begins with these shares, for the record; None: none.
    """

    shares: Mapping[JobId, tuple[Share, Reason | str]] = field(default_factory=dict)
    wake_at: float | None = None
    reasons: Mapping[JobId, Reason | str] = field(default_factory=dict)
    trial: Trial | None = None


class Policy(ABC):
    """Decides the shares of jobs. It is driven in the same way live and in simulation, and cannot
    tell these apart.

    It gets all changes and keeps what it needs. It must:

    1. Answer any order of changes, and ignore changes of unknown jobs.
    2. Name in `Decision.shares` only jobs that are present, and only those whose share changes.
    3. Leave every job more than nothing: a CPU weight of at least 1, a cap above 0.
    4. Be deterministic: the same calls, the same decisions.

    The controller enforces `floor` and `most_changes`, and drops invalid shares:
    `controller.safeguards`.

    Attributes:
        grants: Whether it ever grants anything. If not, it is never asked.
        predicts: Whether it needs `Predicted`. Curves are fitted only then.
        tracks: Whether it reads `Arrived.tracker`. A tracker is kept only then, or if others need
            it.
        limits_disk: Whether it limits disk rates. Users are told if these cannot be enforced.
        floor: Least fraction of an equal share for each job, whatever the policy grants; 0: no
            floor.
        most_changes: Most changes of a job's share in a minute; later ones wait. `math.inf`: no
            limit.
    """

    name: str
    grants: bool = True
    predicts: bool = False
    tracks: bool = False
    limits_disk: bool = False
    floor: float = FLOOR
    most_changes: float = MOST_CHANGES

    @abstractmethod
    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        """New shares after `changes`.

        Args:
            now: Seconds; never goes back.
            cores: Cores of all nodes together.
            changes: What happened since the last call; empty: only the requested time has come.
        """
