"""`las`: least attained service first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies.running_job import RunningJob
from headgate.policies.weighing import WeighingPolicy, check, first_come


class LasPolicy(WeighingPolicy):
    """The CPU goes to the jobs with the least service so far.

    Objective: a low mean completion time without any prediction, because most jobs are short.
    Rule: jobs are in queues by attained CPU time. The first queue ends at `first` core-seconds,
    each next one `factor` times later. The first non-empty queue goes first, by arrival. Within a
    queue no job is preempted, so that similar jobs do not keep changing places. Floors replace
    Tiresias' promotion of starving jobs.
    Source: discretised two-dimensional least attained service, Tiresias (NSDI 2019).
    Use it for jobs without a loss, or with losses that no curve fits.

    Args:
        first: Core-seconds that end the first queue.
        factor: How many times later each next queue ends.
    """

    name = "las"
    predicts = False

    def __init__(
        self, *, first: float = 60.0, factor: float = 10.0, itval: float = 10.0, floor: float = 0.05
    ) -> None:
        super().__init__(itval=itval, floor=floor)
        check(self.name, "first", first, first > 0, "a positive number of core-seconds")
        check(self.name, "factor", factor, factor > 1, "more than 1")
        self._ends = [first * factor**i for i in range(8)]

    def divide(
        self, now: float, cores: float, jobs: Sequence[RunningJob]
    ) -> Mapping[JobId, tuple[float, Reason]]:
        queues = {
            job.id: sum(job.served * job.gpus_per_core / job.priority >= end for end in self._ends)
            for job in jobs
        }
        order = sorted(jobs, key=lambda job: (queues[job.id], job.number))
        parts = first_come(cores, order, self.floor)
        # At the earliest, a job with all its allowed cores reaches the end of its queue then.
        left = (
            (self._ends[queues[job.id]] * job.priority / job.gpus_per_core - job.served)
            * job.node_cores_per_core
            / job.most_cores(cores)
            for job in jobs
            if queues[job.id] < len(self._ends)
        )
        self.look_at = now + min(left, default=math.inf)
        return {
            job.id: (
                parts[job.id],
                Reason.of(
                    ReasonKind.LEAST_SERVICE,
                    queue=queues[job.id] + 1,
                    used_core_seconds=job.served,
                ),
            )
            for job in order
        }
