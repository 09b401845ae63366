"""`headgate`: shortest expected remaining work first, within a bound on how far anybody may fall
behind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies.running_job import TRIAL_CORES, RunningJob
from headgate.policies.themis import FairFinish
from headgate.policies.trials import LEAST_SECONDS, MOST_SECONDS, SECONDS, ShortTrials, trial_parts
from headgate.policies.weighing import (
    SteadyOrder,
    WeighingPolicy,
    before_each,
    check,
    first_come,
    nodes_of,
)

RHO = 2.0
"""Finish-time fairness that nobody is to exceed: time shared over time alone on 1/n."""
_SHORTEST_SECONDS = 10.0
"""Fair times that are shorter count as this, as in bounded slowdown: of a job that has hardly begun
nothing is known that another should stand back for.
"""
_ENOUGH = 0.85
"""The part of the cores that a job is tried on which it must have for that."""


class HeadgatePolicy(WeighingPolicy):
    """Shortest expected remaining time first, with a bound on how late any job ends.

    Objective: the least mean completion time, at a makespan no worse than that of the system's own
        sharing. No job
    starves: none has a ρ (finish-time fairness) above a bound.

    Rule:

    1. Jobs are ordered by work left over priority, the least first. Each has most of what those
       before it leave.
    2. While others want cores, a job has no more than it puts to good use. That is one, or one for
       each of its workers, until it was seen to gain by more. To find out, a job of one task is
       tried on two cores for a while; where there are no more than two, once, and for 5 s.
    3. Each job has a latest end: `rho` times what it would take alone on 1/n. n is the mean number
       of jobs that were present. A job that would miss it with an equal share from now on has at
       least an equal share.
    4. A job without a prediction is ranked by its Gittins index.
    5. Diverging and stalled jobs come last. Rule 3 does not hold for a diverging job.
    6. Only weights are set: what one job does not use the others have. So no core idles that any
       job wants.

    Source: shortest remaining processing time (Schrage 1968). Gittins index (1979) where remaining
        time is not known.
    Jobs whose speed is a power of their cores (heSRPT, Berg et al. 2020). Deadlines by Themis'
    fairness (NSDI 2020).
    Use it, unless the objective of another policy is yours.

    Args:
        rho: The bound, kept as far as jobs that come later let it. Near 1 it comes close to an
            equal share. A large one is `srpt`: a lower mean at a higher maximum.
        trial: Seconds for which a job on one of two cores is tried on both; 0: it is not.
    """

    name = "headgate"
    tries = True

    def __init__(
        self, *, rho: float = RHO, trial: float = SECONDS, itval: float = 10.0, floor: float = 0.05
    ) -> None:
        super().__init__(itval=itval, floor=floor)
        check(self.name, "rho", rho, rho >= 1, "1 or more")
        fits = trial == 0 or LEAST_SECONDS <= trial <= MOST_SECONDS
        check(
            self.name, "trial", trial, fits, f"0, or {LEAST_SECONDS:g} to {MOST_SECONDS:g} seconds"
        )
        self._rho = rho
        self._finish = FairFinish()
        self._order = SteadyOrder()
        self._trials = ShortTrials(trial)

    def divide(
        self, now: float, cores: float, jobs: Sequence[RunningJob]
    ) -> Mapping[JobId, tuple[float, Reason]]:
        fair = self._finish.fair(now, cores, jobs)
        nodes = nodes_of(cores, jobs)
        order = self._order.shortest(jobs)
        pressed, spare = set(), math.inf
        for job in jobs:
            latest = job.arrived + self._rho * max(fair[job.id], _SHORTEST_SECONDS)
            equal = nodes.equal(job.id) * len(nodes.of[job.id])
            ends = now + job.remaining() * job.node_cores_per_core / min(
                equal, job.most_cores(cores)
            )
            if job.tracker.diverging:
                continue
            if ends > latest:
                pressed.add(job.id)
            else:
                spare = min(spare, latest - ends)
        short = self._trials.look(now, cores, order, nodes, pressed, self.may_turn)
        self.begun, self.ends_at = self._trials.begun, self._trials.ends_at
        # No sooner would one be pressed, even if it stood still, nor might a trial begin.
        self.look_at = min(now + spare, self._trials.next_at)
        tried = next(
            (job for job in order if job.is_to_be_tried and job.most_cores(cores) > TRIAL_CORES),
            None,
        )
        for job in order:
            job.on_trial = job is tried or job is short
        parts = first_come(cores, order, self.floor, well=True, behind=pressed)
        if tried is not None and parts[tried.id] < _ENOUGH * TRIAL_CORES:
            tried.on_trial = False  # not yet: those before it leave too little
        before = before_each(cores, order)
        decided = {
            job.id: (parts[job.id], self._why(job, before[job.id], job.id in pressed))
            for job in order
        }
        if short is not None:
            lent = trial_parts(short, order, nodes, self.floor, cores)
            decided |= {
                id: (part, Reason.of(ReasonKind.LENDS_CORES, job=short.id.name))
                for id, part in lent.items()
            }
            decided[short.id] = (
                lent[short.id],
                Reason.of(ReasonKind.ON_TRIAL, seconds=self._trials.seconds),
            )
        return decided

    def _why(self, job: RunningJob, before: int, pressed: bool) -> Reason:
        return Reason.of(ReasonKind.ENDS_LATE, rho=self._rho) if pressed else job.ranked(before)
