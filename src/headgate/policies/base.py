"""The contract of a policy: what moves shares between running jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.forecast.job_tracker import JobTracker
from headgate.model.events import Predicted as Predicted
from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason
from headgate.model.shares import Share
from headgate.policies.weights import FLOOR, MOST_CHANGES


@dataclass(frozen=True, slots=True)
class Arrived:
    """A job starts: its claim on what is contended, the most cores it may use (None: no limit), and
    its workers.

    `tracker` is what is known of its losses and its use, kept up to date before each call of
    `decide`, for policies that ask for it (`Policy.tracks`). It is to be read, never fed. None:
    nobody keeps one, and the changes tell everything.
    """

    job: JobId
    priority: float
    cores_limit: float | None = None
    workers: int = 1
    tracker: JobTracker | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Left:
    """A job ended; `done`: it came to its end, and has had what such jobs need. Otherwise it
    failed, was stopped, or is started again.
    """

    job: JobId
    done: bool = True


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the tasks of a job are. Told for each job that arrives, and again when that changes.

    Jobs whose nodes are not told are taken to share one node.

    Args:
        cores: For each node, the cores that it has for jobs. For a job on GPUs each GPU stands for
            a node, `NODE/gpu0`, with as many cores as its own node. So weights on GPUs and on cores
            compare.
        on_gpus: Whether the job computes on GPUs, whose time is then divided.
        workers: How many workers there are together; None: as many as it arrived with.
    """

    job: JobId
    cores: Mapping[str, float]
    on_gpus: bool = False
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    """A job reported the metric of its progress rule, as the mean of `count` values; NaN where it
    was.

    `loss` falls as the job learns, on whatever scale. A metric that gets better as it rises, such
    as an accuracy or a reward, comes with its sign turned. `adversarial` losses, such as those of a
    GAN, rise and fall with each other. They tell nothing of how far the job is.
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
    """What a job used since its last `Used`, as means.

    `seconds` is the time since then, if it is known for sure. A longer gap than usual then counts
    whole, and is not taken for a clock that jumped.
    """

    job: JobId
    cpu_cores: float
    memory_bytes: float
    disk_bytes_per_second: float = 0.0
    network_bytes_per_second: float = 0.0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Stalled:
    """A job has ceased to report, as its tracker says. Told to policies that read trackers."""

    job: JobId


Change = Arrived | Left | Placed | Reported | Used | Stalled | Predicted


@dataclass(frozen=True, slots=True)
class Trial:
    """A job has more cores for some seconds, so that it is known what they bring it.

    Args:
        cores: That it has.
        beside: The jobs that have fewer meanwhile.
    """

    job: JobId
    cores: float
    seconds: float
    beside: tuple[JobId, ...]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy answers.

    Args:
        shares: New shares of whole jobs, each with its reason. A weight counts on each node of the
            job, against the weights of the jobs there.
        wake_at: When to ask again though nothing changed, seconds; None: only after a change.
        reasons: New reasons of jobs whose share stays as it is.
        trial: One that begins with these shares, to be recorded; None: none does.
    """

    shares: Mapping[JobId, tuple[Share, Reason | str]] = field(default_factory=dict)
    wake_at: float | None = None
    reasons: Mapping[JobId, Reason | str] = field(default_factory=dict)
    trial: Trial | None = None


class Policy(ABC):
    """Decides the shares of jobs. It is driven alike live and in simulation, and cannot tell which.

    It is handed what changed and keeps what it needs. It must:

    1. Answer for any order of changes, changes of jobs it never heard of included (they are
       ignored).
    2. Name in `Decision.shares` only jobs that are present, and only those whose share changes.
    3. Leave every job more than nothing: a CPU weight of at least 1, a cap above 0.
    4. Be deterministic: the same calls, the same decisions.

    The controller holds its answers to `floor` and `most_changes`, and drops what is no share:
    `controller.safeguards`.

    Attributes:
        grants: Whether it ever grants anything. A policy that does not is never asked.
        predicts: Whether it wants to be told `Predicted`. Curves are fitted only then.
        tracks: Whether it reads `Arrived.tracker`. One is kept only then, or where others need it.
        limits_disk: Whether it limits disk rates. Users are told where these cannot be held.
        floor: Least part of an equal share that each job keeps, whatever the policy grants; 0: as
            little as it says.
        most_changes: Most changes of a job's share in a minute; later ones wait. `math.inf`: as
            many as it says.
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
            cores: Of all nodes together.
            changes: What happened since the last call; empty when only the time asked for has come.
        """
