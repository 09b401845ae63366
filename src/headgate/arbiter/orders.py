"""Jobs that an administrator holds or lets go first, whichever attempt of them it is."""

from __future__ import annotations

from collections.abc import Iterable

from headgate.arbiter.records import Demand, MachineJob

_FORGET_SECONDS = 600.0
"""An order ends when the job's hub has not named the job for so long."""


class JobOrders:
    """Keeps an administrator's orders about jobs until these have ended.

    Args:
        now: Seconds.
        held: Jobs that are held, as kept.
        first: Jobs that go first, as kept.
    """

    def __init__(self, now: float, held: Iterable[MachineJob], first: Iterable[MachineJob]) -> None:
        self._held, self._first = dict.fromkeys(held, now), dict.fromkeys(first, now)

    @property
    def held(self) -> frozenset[MachineJob]:
        return frozenset(self._held)

    @property
    def first(self) -> frozenset[MachineJob]:
        return frozenset(self._first)

    def is_held(self, job: MachineJob) -> bool:
        """Whether it must not start."""
        return job.of_all_attempts in self._held

    def is_first(self, job: MachineJob) -> bool:
        """Whether it goes before all others."""
        return job.of_all_attempts in self._first

    def give(self, now: float, job: MachineJob, held: bool, first: bool) -> None:
        """Replace the order about a job."""
        for orders, is_ordered in ((self._held, held), (self._first, first)):
            orders.pop(job.of_all_attempts, None)
            if is_ordered:
                orders[job.of_all_attempts] = now

    def starts(self, job: MachineJob) -> None:
        """Drop the order to let a job go first, as it does."""
        self._first.pop(job.of_all_attempts, None)

    def hear(self, now: float, demand: Demand) -> None:
        """Drop the orders about jobs that their hub no longer names."""
        for orders in (self._held, self._first):
            of_hub = [job for job in orders if job.hub == demand.hub]
            if not of_hub:
                continue
            jobs = (*demand.waiting, *demand.running)
            named = {MachineJob(demand.hub, job.id).of_all_attempts for job in jobs}
            for job in of_hub:
                if job in named:
                    orders[job] = now
                elif now - orders[job] > _FORGET_SECONDS:
                    del orders[job]
