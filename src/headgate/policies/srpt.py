"""`srpt`: who is predicted to be done first goes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.events import JobId
from headgate.policies.weighing import Present, WeighingPolicy, first_come

_CLEARLY = 0.9
"""A job takes the first place only from one that takes so much longer: the last of two alike would keep changing."""


class SrptPolicy(WeighingPolicy):
    """The CPU goes to the job with the least predicted work left (for its priority), then to the next.

    Objective: the least mean completion time.
    Rule: jobs in the order of predicted core-seconds left over priority; each has most of what those before it leave.
    A job of which nothing is predicted yet is taken for one like the others here.
    Source: shortest remaining processing time, optimal where remaining work is known and any job can use the whole
    machine (Schrage 1968); with limits of cores it is a reference, not an optimum (heSRPT, Berg et al. 2020).
    Use it when only the mean counts and losses are predicted well. Long jobs wait as long as shorter ones keep coming.
    """

    name = "srpt"

    def __init__(self, *, itval: float = 10.0, floor: float = 0.05) -> None:
        super().__init__(itval=itval, floor=floor)
        self._first: JobId | None = None

    def divide(self, now: float, cores: float, jobs: Sequence[Present]) -> Mapping[JobId, tuple[float, str]]:
        left = {job.id: job.remaining() / job.priority for job in jobs}
        order = sorted(jobs, key=lambda job: left[job.id] * (_CLEARLY if job.id == self._first else 1.0))
        self._first = order[0].id
        parts = first_come(cores, order, self._floor)
        return {
            job.id: (parts[job.id], f"{_place(rank)}: {job.remaining_in_words()}") for rank, job in enumerate(order)
        }


def _place(rank: int) -> str:
    return "shortest" if rank == 0 else f"{rank} before it"
