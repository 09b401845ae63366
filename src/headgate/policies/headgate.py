"""`headgate`: shortest expected remaining work first, with a bound on the delay of each job."""

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
"""Bound on finish-time fairness: time shared over time alone on 1/n."""
_SHORTEST_SECONDS = 10.0
"""Shorter fair times count as this, as in bounded slowdown: a job that has hardly begun gives no
reason to delay others.
"""
_ENOUGH = 0.85
"""Fraction of its trial cores that a job has to get for a trial to count."""


class HeadgatePolicy(WeighingPolicy):
    """Shortest expected remaining time first, with a bound on how late any job ends.

    Objective: the least mean completion time, without a longer makespan than the kernel's own
    sharing. No job starves: each has a ρ (finish-time fairness) within a bound.

    Rule:

    1. Jobs are ordered by remaining work over priority, least first. Each gets most of what those
       before it leave.
    2. While others want cores, a job gets no more than it uses efficiently: one, or one for each
       worker, until it was seen to gain from more. To find out, a job of one task gets two cores
       for a while. If there are only two, it gets them once, for 5 s.
       A job whose steps wait for its GPU, NIC or loader gets the cores with which these no longer
       wait for it, and hardly more: `headgate.forecast.core_need`.
    3. Each job has a latest end: `rho` times what it would take alone on 1/n. n is the mean number
       of jobs that were present. A job that would miss it with an equal share from now on gets at
       least an equal share.
    4. A job without a prediction is ranked by its Gittins index.
    5. Diverging and stalled jobs come last. Rule 3 does not apply to a diverging job.
    6. Only weights are set, so other jobs use what one leaves, and no core idles that any job
       wants.

    The order is by core-seconds left. So each core goes where it buys the largest part of what is
    left of a job, as long as that job has a use for it.

    Source: shortest remaining processing time (Schrage 1968). Gittins index (1979) for unknown
    remaining time. Jobs whose speed is a power of their cores (heSRPT, Berg et al. 2020). Deadlines
    from Themis' fairness (NSDI 2020). Cores by what they do to steps: Synergy (OSDI 2022).
    Use it unless you have the objective of another policy.

    Args:
        rho: The bound, kept as far as later jobs allow. Near 1 it approaches equal shares. A large
            one is `srpt`: a lower mean at a higher maximum.
        trial: Seconds of a trial of one job on both of two cores; 0: no trials.
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
                equal, job.fastest_cores(cores)
            )
            if job.tracker.diverging:
                continue
            if ends > latest:
                pressed.add(job.id)
            else:
                spare = min(spare, latest - ends)
        short = self._trials.look(now, cores, order, nodes, pressed, self.may_turn)
        self.begun, self.ends_at = self._trials.begun, self._trials.ends_at
        # No job needs its bound, and no trial can begin, before this time.
        self.look_at = min(now + spare, self._trials.next_at)
        tried = next(
            (job for job in order if job.is_to_be_tried and job.most_cores(cores) > TRIAL_CORES),
            None,
        )
        for job in order:
            job.on_trial = job is tried or job is short
        parts = first_come(cores, order, self.floor, well=True, behind=pressed)
        if tried is not None and parts[tried.id] < _ENOUGH * TRIAL_CORES:
            tried.on_trial = False  # not yet: jobs before it leave too little
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
        late = Reason.of(ReasonKind.ENDS_LATE, rho=self._rho)
        return job.told(late if pressed else job.ranked(before))
