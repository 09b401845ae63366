"""Short trials on machines with two cores: a job gets both for some seconds to measure their
benefit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

from headgate.model.identifiers import JobId
from headgate.policies.base import Trial
from headgate.policies.placements import Placements
from headgate.policies.running_job import TRIAL_CORES, RunningJob

SECONDS, LEAST_SECONDS, MOST_SECONDS = 5.0, 4.0, 60.0
"""Length of a trial: default, least and most. Threads and readings need one or two seconds to
follow, and three give the result (`headgate.forecast.scaling`).
"""
_YOUNGEST_SECONDS = 60.0
"""A younger job may end soon, and the cost of its steps is hardly known."""
_LEAST_CORES = 0.7
"""Least use of its one core. A job with less waits for something else, or others have the core."""
_MOST_COST = 0.03
"""Most core-seconds that trials take from others, as a fraction of the use of the jobs there."""


class ShortTrials:
    """Runs one trial at a time, once for each job.

    A trial takes a core from the jobs beside it for some seconds. All trials of the present jobs
    take at most 3 % of their use so far.

    Args:
        seconds: Length of a trial; 0: no trials.

    Attributes:
        ends_at: When the present trial ends; infinity: there is none.
        next_at: When a trial that costs too much now may begin; infinity: there is none.
        begun: The trial that began with the last look; None: none did.
    """

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.ends_at = self.next_at = math.inf
        self.begun: Trial | None = None
        self._current: JobId | None = None

    def look(
        self,
        now: float,
        cores: float,
        order: Sequence[RunningJob],
        nodes: Placements,
        left_alone: Collection[JobId],
        may_turn: Callable[[float, JobId], bool],
    ) -> RunningJob | None:
        """The job on trial now; None: there is none.

        Args:
            now: Seconds.
            cores: Cores of all nodes together.
            order: The jobs, first to last.
            nodes: Their nodes.
            left_alone: Jobs that must not lose cores.
            may_turn: Whether a job's share may change now, and back when its trial ends.
        """
        self.begun, self.next_at = None, math.inf
        current = next((job for job in order if job.id == self._current), None)
        if (
            current is not None
            and now < self.ends_at
            and current.told_cores is None
            and not current.last_because
        ):
            return current
        self._current, self.ends_at = None, math.inf
        for job in order if self.seconds else ():
            # checked first: few of very many jobs qualify
            if not _may_be_tried(now, cores, job, nodes):
                continue
            beside = [
                other for other in order if other is not job and _share_a_node(job, other, nodes)
            ]
            if not beside or any(
                other.id in left_alone or len(nodes.of[other.id]) > 1 for other in beside
            ):
                continue
            jobs_together = [job, *beside]
            cost = sum(job_on_trial.trial_cost for job_on_trial in jobs_together) + self.seconds
            lacks = cost / _MOST_COST - sum(job_on_trial.attained for job_on_trial in jobs_together)
            if lacks > 0.0:
                self.next_at = min(self.next_at, now + lacks / TRIAL_CORES)
            elif not all(may_turn(now, job_on_trial.id) for job_on_trial in jobs_together):
                self.next_at = now
            else:
                self._current, self.ends_at = job.id, now + self.seconds
                job.trial_cost = self.seconds
                self.begun = Trial(
                    job.id, TRIAL_CORES, self.seconds, tuple(other.id for other in beside)
                )
                return job
        return None


def _may_be_tried(now: float, cores: float, job: RunningJob, nodes: Placements) -> bool:
    """Whether a trial of a job would show something."""
    if (
        not job.is_to_be_tried
        or job.trial_cost
        or job.last_because
        or now - job.arrived < _YOUNGEST_SECONDS
    ):
        return False
    if job.used is None or job.used.cpu_cores < _LEAST_CORES:
        return False
    return job.most_cores(cores) == TRIAL_CORES and len(nodes.of[job.id]) == 1


def _share_a_node(job: RunningJob, other: RunningJob, nodes: Placements) -> bool:
    return not nodes.of[job.id].keys().isdisjoint(nodes.of[other.id])


def trial_parts(
    tried: RunningJob, order: Sequence[RunningJob], nodes: Placements, floor: float, cores: float
) -> dict[JobId, float]:
    """Cores of the jobs on the node of a trial: the tried job gets all but the floors of the
    others.
    """
    beside = [job for job in order if job is not tried and _share_a_node(tried, job, nodes)]
    parts = {job.id: floor * nodes.equal(job.id) for job in beside}
    return {**parts, tried.id: tried.most_cores(cores) - sum(parts.values())}
