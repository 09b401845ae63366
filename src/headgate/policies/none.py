"""`none`: the kernel's own sharing."""

from __future__ import annotations

from collections.abc import Sequence

from headgate.policies.base import Change, Decision, Policy


class NoPolicy(Policy):
    """Grants nothing and takes nothing.

    Objective: none; the baseline for other policies.
    Rule: every task keeps the kernel's default weight, and all cores as its threads.
    Source: the system's own sharing, the control of FlowCon (ICPP 2019).
    Use it to see the effect of Headgate's sandboxes alone.
    """

    name = "none"
    grants = False

    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        return Decision()
