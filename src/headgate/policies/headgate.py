"""`headgate`: shortest expected remaining work first, within a bound on how far anybody may fall behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.events import JobId
from headgate.policies.themis import FairFinish
from headgate.policies.weighing import Present, WeighingPolicy, check, first_come

RHO = 1.5
"""Finish-time fairness that nobody is to exceed: time shared over time alone on 1/n."""
_CLEARLY = 0.9
_ROUNDS_AHEAD = 2.0


class HeadgatePolicy(WeighingPolicy):
    """The CPU goes to the job that is expected to be done first, unless somebody would end too late for it.

    Objective: the least mean completion time at a makespan no worse than that of the system's own sharing, and nobody
    starved: no ρ (finish-time fairness) above a bound.
    Rule: each job has a latest end, `rho` times what it would take alone on 1/n, n the mean number of jobs that were
    present. Jobs that would miss it if they had not all they can use from now on go first, the most pressed first; then
    the others by their work left over priority; each has all it may use of what those before it leave, and the
    others their floor. Work left is the harmonic mean of its band, so that of two jobs with one median the less certain
    goes first: it may be the one that ends soon, and a short look tells. Who diverges comes last. Only weights are set:
    what one does not use the others have, so that no core idles that anybody wants and the makespan stays.
    Source: shortest remaining processing time (Schrage 1968) with the deadlines of Themis' fairness (NSDI 2020); the
    harmonic mean stands for the Gittins index, optimal under uncertainty.
    Use it, unless one of the others' objectives is yours.

    Args:
        rho: The bound. 1 comes close to an equal share, large ones to `srpt`: a lower mean at a higher maximum.
    """

    name = "headgate"

    def __init__(self, *, rho: float = RHO, itval: float = 10.0, floor: float = 0.05) -> None:
        super().__init__(itval=itval, floor=floor)
        check(self.name, "rho", rho, rho >= 1, "1 or more")
        self._rho = rho
        self._finish = FairFinish()
        self._first: JobId | None = None

    def divide(self, now: float, cores: float, jobs: Sequence[Present]) -> Mapping[JobId, tuple[float, str]]:
        fair = self._finish.fair(now, cores, jobs)
        ahead = _ROUNDS_AHEAD * self.itval
        expected = {job.id: _expected(job) / job.priority for job in jobs}
        slack = {}
        for job in jobs:
            latest = job.arrived + self._rho * fair[job.id]
            slack[job.id] = latest - now - job.remaining()[0] / job.most_cores(cores)
        pressed = {job.id for job in jobs if slack[job.id] < min(ahead, 0.1 * fair[job.id]) and not job.diverging}

        def place(job: Present) -> tuple[int, float, int]:
            if job.diverging:
                return 2, 0.0, job.number
            if job.id in pressed:
                return 0, slack[job.id], job.number
            return 1, expected[job.id] * (_CLEARLY if job.id == self._first else 1.0), job.number

        order = sorted(jobs, key=place)
        self._first = order[0].id
        parts = first_come(cores, order, self._floor)
        return {job.id: (parts[job.id], self._why(job, rank, job.id in pressed)) for rank, job in enumerate(order)}

    def _why(self, job: Present, rank: int, pressed: bool) -> str:
        if job.diverging:
            return "its loss diverges: last"
        if pressed:
            return f"would end later than {self._rho:g} times its fair time"
        left, low, high = job.remaining()
        before = "first" if rank == 0 else f"{rank} before it"
        if job.prediction is None:
            return f"{before}: nothing predicted yet, {left:.3g} core-seconds had"
        return f"{before}: {left:.3g} core-seconds left ({low:.3g} to {high:.3g})"


def _expected(job: Present) -> float:
    middle, low, high = job.remaining()
    if low <= 0.0:
        return 0.0
    return 1.0 / (0.25 / low + 0.5 / middle + 0.25 / high)
