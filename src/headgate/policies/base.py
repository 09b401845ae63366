"""The contract of a policy: what moves shares between running jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.events import JobId
from headgate.policies.weights import FLOOR, MOST_CHANGES
from headgate.shares import Share


@dataclass(frozen=True, slots=True)
class Arrived:
    """A job starts: its claim on what is contended, the most cores it may use (None: no limit), and its workers."""

    job: JobId
    priority: float
    cores_limit: float | None = None
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Left:
    """A job ended; `done`: it came to its end, and has had what such jobs need. Otherwise it failed, was stopped, or is
    started again."""

    job: JobId
    done: bool = True


@dataclass(frozen=True, slots=True)
class Placed:
    """Where the tasks of a job are: of each node the cores that it has for jobs, and how many workers there are
    together (None: as many as it arrived with). Of who computes on GPUs, `on_gpus`, each of these stands for a node,
    `NODE/gpu0`, of as many cores as its own, so that weights on GPUs and on cores compare: its time is what is divided.
    Told of each job that arrives, and again when that changes; of who is on no node that was told all are taken to
    share one."""

    job: JobId
    cores: Mapping[str, float]
    on_gpus: bool = False
    workers: int | None = None


@dataclass(frozen=True, slots=True)
class Reported:
    """A job reported the metric of its progress rule, as the mean of `count` values; NaN where it was.

    `loss` falls as the job learns, on whatever scale: a metric of which more is better, such as an accuracy or a
    reward, comes with its sign turned. One of several `adversarial` losses, as of a GAN, rises and falls with the
    others and tells nothing of how far the job is.
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
    """What a job used, on the mean, since its last `Used`; `seconds` are those since then, if that is known for sure: a
    longer gap than usual counts whole then, and is no clock that jumped."""

    job: JobId
    cpu_cores: float
    memory_bytes: float
    disk_bytes_per_second: float = 0.0
    network_bytes_per_second: float = 0.0
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is left of a job, by its losses or the epochs it is to do: told now and then to policies that ask for it.

    Args:
        work: CPU time that it still takes, core-seconds: the median.
        low: Ends of a band that holds nine of ten.
        high: Ends of a band that holds nine of ten.
        asymptote: What its loss comes to in the end; None: not told.
        drops: CPU times (core-seconds, growing), each with what the loss falls by during it, below zero where it rises;
            empty: not told.
        ends: Whether the job says when it ends, by its epochs, its goal or its own early stopping, or others of its
            script told; else it is taken to end where its loss comes to rest, which scripts seldom do.
        cores: That it puts to good use while others want them (`analysis.scaling`); None: not told.
    """

    job: JobId
    work: float
    low: float
    high: float
    asymptote: float | None = None
    drops: tuple[tuple[float, float], ...] = ()
    ends: bool = True
    cores: float | None = None


Change = Arrived | Left | Placed | Reported | Used | Predicted


@dataclass(frozen=True, slots=True)
class Decision:
    """New shares of whole jobs, each with its reason; and when to be asked again though nothing changed. `reasons` are
    those of jobs whose share stays as it is, for another reason than before. A weight counts on each node that the job
    is on, against those of the jobs there."""

    shares: Mapping[JobId, tuple[Share, str]] = field(default_factory=dict)
    wake_at: float | None = None
    reasons: Mapping[JobId, str] = field(default_factory=dict)


class Policy(ABC):
    """Decides who gets what. Live and in simulation it is driven alike and cannot tell which.

    It is handed what changed and keeps what it needs. It must:

    1. Answer for any order of changes, changes of jobs it never heard of included (they are ignored).
    2. Name in `Decision.shares` only jobs that are present, and only those whose share changes.
    3. Leave every job more than nothing: a CPU weight of at least 1, a cap above 0.
    4. Be deterministic: the same calls, the same decisions.

    What it answers is held to `floor` and `most_changes`, and what is no share is dropped: `controller.safeguards`.

    Attributes:
        grants: Whether it ever grants anything; one that does not is asked nothing.
        predicts: Whether it wants to be told `Predicted`, for which curves have to be fitted.
        limits_disk: Whether it limits disk rates, so that users are told where those cannot be held.
        floor: Least part of an equal share that each job is left, whatever it grants; 0: as little as it says.
        most_changes: Of a job's share in a minute; what is more waits. `math.inf`: as many as it says.
    """

    name: str
    grants: bool = True
    predicts: bool = False
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
