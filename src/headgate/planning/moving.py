"""Whether a job that runs should go on under another plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headgate.model.plans import Plan, Prediction
from headgate.model.reasons import Reason, ReasonKind
from headgate.planning.choosing import in_words

_WORTH = 1.5
"""Times its cost that a move has to save: forecasts of what is left are wrong as well."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a job stands.

    Args:
        plan: What it runs by.
        throughput: Samples a second, measured.
        seconds_left: What is left of it at that pace.
        restart_seconds: From the last step before a restart to the first one after, measured.
        moves_left: How often it may still be moved.
    """

    plan: Plan
    throughput: float
    seconds_left: float
    restart_seconds: float
    moves_left: int

    @property
    def could_pay(self) -> bool:
        """Whether a move could be worth it, however fast the other plan."""
        return self.moves_left > 0 and self.seconds_left > _WORTH * self.restart_seconds


@dataclass(frozen=True, slots=True)
class Move:
    """Go on by another plan, and why."""

    plan: Plan
    reason: Reason


def better(standing: Standing, best: Prediction) -> Move | None:
    """The move to the plan that is expected to be best, None where it is not worth its cost.

    The rate that counts lies halfway, in ratio, between the expected one and the low end of its
    band. The best of many uncertain plans is best in part by luck.

    Args:
        standing: How the job stands.
        best: What the model says, corrected by what was measured of the plan that it runs by.
    """
    if best.plan == standing.plan or not standing.could_pay:
        return None
    rate = math.sqrt(best.throughput * best.low)
    saved = standing.seconds_left * (1 - standing.throughput / rate)
    if saved <= _WORTH * standing.restart_seconds:
        return None
    saved -= standing.restart_seconds
    reason = Reason.of(
        ReasonKind.MOVED,
        plan=in_words(best.plan),
        before=in_words(standing.plan),
        expected=best.throughput,
        measured=standing.throughput,
        saves_seconds=saved,
        left_seconds=standing.seconds_left,
        restart_seconds=standing.restart_seconds,
    )
    return Move(best.plan, reason)
