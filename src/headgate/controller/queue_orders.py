"""Orders of jobs that compete for room."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headgate.controller.free_resources import FreeResources, ResourceRequest
from headgate.controller.gpu_memory import WorkerSlot
from headgate.controller.gpu_seen import GpuUseSeen
from headgate.controller.records import JobRecord
from headgate.model.identifiers import JobId

RemainingSeconds = Callable[[JobId, float], float]
"""Remaining run time of a job at a time in seconds, known or predicted."""


@dataclass(slots=True, eq=False)
class Claim:
    """A job's request and its service so far.

    Args:
        served: Seconds for which it held its resources, up to `since`.
        since: When it got its present resources; None: it has none.
        slots: Places of its workers; empty: it has none.
        review: When its rank gets worse next.
        found: It holds resources that it was found to use without a request.
        passed: How often a job behind it started first because it ran better beside the running
            jobs.
        grew: When its observed use last grew.
        seen_bytes: Its observed use then.
        on_gpu: Its observed GPU memory; None: the need is known, or has settled.
        seen_on_gpu: The most that a worker was seen to hold of a GPU.
        size: Number of GPUs; 1 for a job without.
    """

    job: JobRecord
    request: ResourceRequest
    served: float = 0.0
    since: float | None = None
    slots: tuple[WorkerSlot, ...] = ()
    review: float | None = None
    found: bool = False
    passed: int = 0
    grew: float = 0.0
    seen_bytes: int = 0
    on_gpu: GpuUseSeen | None = None
    seen_on_gpu: int = 0
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = max(self.request.all_gpus, 1)

    @property
    def id(self) -> JobId:
        return self.job.id

    def hold(
        self, resources: FreeResources, request: ResourceRequest, slots: tuple[WorkerSlot, ...]
    ) -> None:
        """Take other resources in place of those that it holds."""
        resources.give(self.request, self.slots)
        self.request, self.slots = request, slots
        resources.take(request, slots)

    def attained(self, now: float) -> float:
        """GPU-seconds that it has had."""
        return (self.served + (now - self.since if self.since is not None else 0.0)) * self.size


class Order(ABC):
    """Ranks jobs; a higher priority comes first in any order.

    1. While a job waits, its rank stays.
    2. While it runs, its rank stays or improves, or gets worse at the time given by `worse_at`.

    Attributes:
        preempts: Whether a running job is stopped, with a checkpoint, for one that ranks before it.
        overtakes: Whether a job may start before one that ranks before it and does not fit yet.
    """

    name: str
    preempts = False
    overtakes = False

    @abstractmethod
    def rank(self, claim: Claim, now: float) -> tuple[float, ...]:
        """The lower, the sooner; equal ranks go by submission."""

    def worse_at(self, claim: Claim, now: float) -> float | None:
        """When a running job's rank gets worse next; None: never."""
        return None


class FifoOrder(Order):
    """First come, first served: no job overtakes or preempts another.

    Source: the baseline of Tiresias (NSDI 2019) and of Gavel (OSDI 2020). Use it to compare with.
    """

    name = "fifo"

    def rank(self, claim: Claim, now: float) -> tuple[float, ...]:
        return (claim.job.submitted,)


class SrptOrder(Order):
    """Least remaining GPU-seconds first.

    Objective: the mean completion time.
    Source: Schrage (1968) for one server. For gangs, the remaining time is multiplied by the number
    of GPUs. Use it if remaining work can be predicted and long jobs may wait.
    """

    name = "srpt"
    preempts = overtakes = True

    def __init__(self, remaining: RemainingSeconds) -> None:
        self._remaining = remaining

    def rank(self, claim: Claim, now: float) -> tuple[float, ...]:
        return (self._remaining(claim.job.id, now) * claim.size,)


class PatientOrder(Order):
    """Shortest remaining time first, with ageing: rank by arrival plus `patience` times the
    remaining time.

    Objective: the mean completion time, with a bound on the delay of long jobs. Only jobs that came
    at most patience · T seconds later overtake a job with T seconds left. `patience` 0 is first
    come, first served; infinite `patience` is `srpt`.
    Source: shortest remaining time first with linear ageing; Headgate's own. Use it as the default.
    """

    name = "headgate"
    preempts = overtakes = True

    def __init__(self, remaining: RemainingSeconds, patience: float = 30.0) -> None:
        self._remaining, self._patience = remaining, patience

    def rank(self, claim: Claim, now: float) -> tuple[float, ...]:
        return (claim.job.submitted + self._patience * self._remaining(claim.job.id, now),)


class LasOrder(Order):
    """Least attained service first, in queues: a job falls into the next queue after a number of
    GPU-seconds. Within a queue: first come, first served.

    Objective: the mean completion time if remaining work is unknown.
    Source: Tiresias (NSDI 2019), discretised two-dimensional LAS, without its promotion of starving
    jobs.
    """

    name = "las"
    preempts = overtakes = True

    def __init__(self, thresholds: Sequence[float] = (3_600.0, 36_000.0, 360_000.0)) -> None:
        self._thresholds = tuple(sorted(thresholds))

    def rank(self, claim: Claim, now: float) -> tuple[float, ...]:
        return (self._queue(claim, now), claim.job.submitted)

    def worse_at(self, claim: Claim, now: float) -> float | None:
        queue = self._queue(claim, now)
        if queue == len(self._thresholds):
            return None
        return now + (self._thresholds[queue] - claim.attained(now)) / claim.size

    def _queue(self, claim: Claim, now: float) -> int:
        return bisect_right(self._thresholds, claim.attained(now) + 1e-6)
