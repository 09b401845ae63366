"""Orders of jobs, where not all fit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headgate.controller.free_resources import ResourceRequest
from headgate.controller.gpu_memory import WorkerSlot
from headgate.controller.gpu_seen import GpuUseSeen
from headgate.controller.records import JobRecord
from headgate.model.identifiers import JobId

RemainingSeconds = Callable[[JobId, float], float]
"""Seconds that a job would still run for, at a time: known, or predicted."""


@dataclass(slots=True, eq=False)
class Claim:
    """What a job asks for, and what it has had.

    Args:
        served: Seconds that it had it, up to `since`.
        since: When it got what it has now; None: it has nothing.
        slots: Of its workers; empty: it has nothing.
        review: When its rank gets worse next.
        found: It has what it was found to use, without having asked.
        passed: How often one behind it was started before it, because it goes better beside those
            that run.
        grew: When what it was seen to use grew last.
        seen_bytes: What it was seen to use then, of a job whose need was guessed.
        on_gpu: What it is seen to hold of its GPUs, if nothing is known of its need; None: it is
            known, or settled.
        size: GPUs; 1 for a job that has none.
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
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.size = max(self.request.all_gpus, 1)

    def attained(self, now: float) -> float:
        """GPU-seconds that it had."""
        return (self.served + (now - self.since if self.since is not None else 0.0)) * self.size


class Order(ABC):
    """Ranks jobs; those of a higher priority come first in any order.

    1. While a job waits, its rank stays.
    2. While it runs, its rank gets better or stays; where it gets worse, `worse_at` said when.

    Attributes:
        preempts: Whether a job that runs is stopped, with a checkpoint, for one that ranks before
            it.
        overtakes: Whether a job may start before one that ranks before it and does not fit yet.
    """

    name: str
    preempts = False
    overtakes = False

    @abstractmethod
    def rank(self, claim: Claim, now: float) -> tuple[float, ...]:
        """The lower, the sooner; of equal ranks the one that was handed in first."""

    def worse_at(self, claim: Claim, now: float) -> float | None:
        """When a running job's rank gets worse next; None: never."""
        return None


class FifoOrder(Order):
    """First come, first served: no job starts before one that came earlier, none is stopped for
    another.

    Source: the baseline of Tiresias (NSDI 2019) and of Gavel (OSDI 2020). Use it to compare with.
    """

    name = "fifo"

    def rank(self, claim: Claim, now: float) -> tuple[float, ...]:
        return (claim.job.submitted,)


class SrptOrder(Order):
    """Least remaining GPU-seconds first.

    Objective: the mean completion time. Source: Schrage (1968) for one server; for gangs the
        remaining time counts as
    often as it has GPUs. Use it where remaining work can be predicted and long jobs may wait.
    """

    name = "srpt"
    preempts = overtakes = True

    def __init__(self, remaining: RemainingSeconds) -> None:
        self._remaining = remaining

    def rank(self, claim: Claim, now: float) -> tuple[float, ...]:
        return (self._remaining(claim.job.id, now) * claim.size,)


class PatientOrder(Order):
    """Shortest remaining time first, with ageing: rank by arrival plus `patience` times what
    remains.

    Objective: the mean completion time, with a bound on what a long job pays for it. A job with T
        seconds left is
    overtaken only by jobs that came at most patience · T seconds after it. `patience` 0 is first
    come, first served. Without a limit it is `srpt`.
    Source: shortest remaining time first with linear ageing; Headgate's own. Use it as the default.
    """

    name = "headgate"
    preempts = overtakes = True

    def __init__(self, remaining: RemainingSeconds, patience: float = 30.0) -> None:
        self._remaining, self._patience = remaining, patience

    def rank(self, claim: Claim, now: float) -> tuple[float, ...]:
        return (claim.job.submitted + self._patience * self._remaining(claim.job.id, now),)


class LasOrder(Order):
    """Least attained service first, in queues: a job that had so many GPU-seconds falls into the
    next one; within a queue first come, first served.

    Objective: the mean completion time where nothing is known of what remains.
    Source: Tiresias (NSDI 2019), discretised two-dimensional LAS, without its promotion of those
        that starve.
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
