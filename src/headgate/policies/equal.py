"""`equal`: equal shares, times priority."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import WEIGHT_DEFAULT, Share
from headgate.policies.base import Arrived, Change, Changed, Decision, Left, Policy


class EqualPolicy(Policy):
    """Each job gets the same part of the CPU, times its priority.

    Objective: the fair share of n jobs on m machines, m/n machines each.
    Rule: weights in proportion to priorities, w_i / Σw under contention; other jobs use what one
    leaves.
    Source: weighted fair queueing; the `equal` baseline of FlowCon (ICPP 2019), by weights instead
    of caps.
    Use it when nothing is known of the jobs, or when all should get the same.
    """

    name = "equal"
    floor = 0.0  # the user's priorities are final

    def __init__(self) -> None:
        self._present: set[JobId] = set()

    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        shares: dict[JobId, tuple[Share, Reason]] = {}
        for change in changes:
            if isinstance(change, Arrived):
                self._present.add(change.job)
            if isinstance(change, Arrived | Changed) and change.job in self._present:
                weight = min(max(WEIGHT_DEFAULT * change.priority, 1.0), 10_000.0)
                shares[change.job] = (
                    Share(cpu_weight=weight),
                    Reason.of(ReasonKind.EQUAL_SHARE, priority=change.priority),
                )
            elif isinstance(change, Left):
                self._present.discard(change.job)
                shares.pop(change.job, None)
        return Decision(shares)
