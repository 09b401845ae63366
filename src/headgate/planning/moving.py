"""Decide whether a running job should switch to another plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

from headgate.model.plans import Plan, Prediction
from headgate.model.reasons import Reason, ReasonKind
from headgate.planning.choosing import in_words

_WORTH = 1.5
"""A move has to save this many times its cost, because forecasts of the remaining time may be
wrong.
"""


@dataclass(frozen=True, slots=True)
class Standing:
    """Present state of a job.

    Args:
        plan: Its plan.
        throughput: Measured samples a second.
        seconds_left: Remaining seconds at this rate.
        restart_seconds: Measured seconds from the last step before a restart to the first after it.
        moves_left: How often it may still be moved.
    """

    plan: Plan
    throughput: float
    seconds_left: float
    restart_seconds: float
    moves_left: int

    @property
    def could_pay(self) -> bool:
        """Whether a move could pay off, however fast the other plan is."""
        return self.moves_left > 0 and self.seconds_left > _WORTH * self.restart_seconds


@dataclass(frozen=True, slots=True)
class Move:
    """A switch to another plan, with the reason in words."""

    plan: Plan
    reason: Reason


def better(standing: Standing, best: Prediction) -> Move | None:
    """The move to the best plan; None: it is not worth its cost.

    The rate that counts is the geometric mean of the expected rate and the low end of its band. The
    best of many uncertain plans looks good partly by luck.

    Args:
        standing: Present state of the job.
        best: The best plan by the model, corrected by measurements of the present plan.
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
