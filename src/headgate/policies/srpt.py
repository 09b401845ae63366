"""`srpt`: the job predicted to finish first goes first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason
from headgate.policies.running_job import RunningJob
from headgate.policies.weighing import SteadyOrder, WeighingPolicy, before_each, first_come


class SrptPolicy(WeighingPolicy):
    """Shortest remaining time first: the CPU goes to the job with the least predicted work left,
    relative to its priority.

    Objective: the least mean completion time.
    Rule: jobs are ordered by predicted core-seconds left over priority. Each gets most of what
    those before it leave. A job without a prediction is ranked by its Gittins index. Diverging and
    stalled jobs come last.
    Source: shortest remaining processing time. It is optimal if remaining work is known and any job
    can use the whole machine (Schrage 1968). With core limits it is a reference, not an optimum
    (heSRPT, Berg et al. 2020).
    Use it when only the mean counts and losses are predicted well. Long jobs wait as long as
    shorter ones keep coming.
    """

    name = "srpt"

    def __init__(self, *, itval: float = 10.0, floor: float = 0.05) -> None:
        super().__init__(itval=itval, floor=floor)
        self._order = SteadyOrder()

    def divide(
        self, now: float, cores: float, jobs: Sequence[RunningJob]
    ) -> Mapping[JobId, tuple[float, Reason]]:
        order = self._order.shortest(jobs)
        parts = first_come(cores, order, self.floor)
        before = before_each(cores, order)
        return {
            job.id: (parts[job.id], job.ranked(before[job.id], is_shortest=True)) for job in order
        }
