"""How a job's loss goes on and when it would end, from all that was recorded of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from headgate.analysis import curves
from headgate.analysis.forecast import first_end
from headgate.analysis.losses import EpochSteps, Estimate, Losses

_PACES = 200
"""Reports of the latest steps that tell how long one takes."""
_FARTHEST = 4.0
"""The curve is told up to so many times the steps that are done."""
_PARTS = 60


class Report(NamedTuple):
    """What a job reported at a time: `value` is its metric, the mean of `of` reports; fields it lacked are None."""

    t: float
    step: int | None
    epoch: int | None
    epochs: int | None
    value: float | None
    of: int
    within: float | None = None
    steps: int | None = None


class At(NamedTuple):
    """The metric at a step: the median of the curves, and the ends of a band that holds nine of ten."""

    step: float
    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of a job's course, and expected of it.

    Args:
        points: Step and metric, cleaned of spikes, since its level last jumped.
        step: The last step.
        seconds_per_step: Of its latest steps, the median; None: not to be told.
        family: The likeliest family of curves; None: there are too few points for any.
        progress: How much of the way from the first to the last level is done, 0 to 1.
        asymptote: What the metric comes to in the end.
        curve: The metric from the last step on.
        left: Steps left, and a band that holds nine of ten; None: not to be told.
        until: What ends it then: `epochs`, `goal`, or `rest`, where the metric gets no better.
        diverging: The loss rises beyond its noise, or is no number any more.
    """

    points: tuple[tuple[float, float], ...]
    step: float
    seconds_per_step: float | None
    family: str | None
    progress: float | None
    asymptote: float | None
    curve: tuple[At, ...]
    left: Estimate | None
    until: str
    diverging: bool

    def seconds(self) -> Estimate | None:
        """Seconds left, as `left`."""
        if self.left is None or self.seconds_per_step is None:
            return None
        pace, (steps, low, high, likely) = self.seconds_per_step, self.left
        return Estimate(steps * pace, low * pace, high * pace, likely)


def expect(
    reports: Iterable[Report],
    goal: float | None = None,
    rising: bool = False,
    stopping: tuple[int, float] | None = None,
) -> Expected | None:
    """What follows from the reports of a job, in the order of time.

    Args:
        goal: The value of its metric at which it ends; None: it has none.
        rising: Whether more of that metric is better.
        stopping: Epochs without a gain of so much after which it ends by itself, as of `forecast.Outlook`.

    Returns:
        None where it reported no number.
    """
    losses, epochs = Losses(rising=rising), EpochSteps()
    paces: list[tuple[float, float]] = []
    for report in reports:
        before = losses.seen
        if report.value is not None:
            losses.add(report.step, report.value, report.of)
        if report.step is not None:
            epochs.add(report.step, report.epoch, report.epochs, report.within, report.steps)
        elif report.value is not None:
            epochs.add(losses.seen, report.epoch, report.epochs, reports=losses.seen - before)
        if report.value is not None or report.step is not None:
            paces.append((report.t, float(report.step if report.step is not None else losses.seen)))
    points = losses.points()
    if not points:
        return None
    sign = -1.0 if rising else 1.0
    step = max(losses.step, paces[-1][1])
    fitted = curves.fit(points)
    aim = sign * goal if goal is not None else None
    left, until = first_end(fitted, step, epochs.left(), aim, epochs.rest(stopping))
    return Expected(
        points=tuple((at, sign * value) for at, value, _ in points),
        step=step,
        seconds_per_step=_pace(paces[-_PACES:]),
        family=fitted.family if fitted is not None else None,
        progress=fitted.progress if fitted is not None else None,
        asymptote=sign * fitted.asymptote if fitted is not None else None,
        curve=_curve(fitted, step, left, sign) if fitted is not None else (),
        left=left,
        until=until,
        diverging=losses.diverging,
    )


def _curve(fitted: curves.Fit, step: float, left: Estimate | None, sign: float) -> tuple[At, ...]:
    ahead = min(left.steps if left is not None and left.steps > 0.0 else step, _FARTHEST * max(step, 1.0))
    steps = [step + ahead * part / _PARTS for part in range(_PARTS + 1)]
    band = fitted.at(steps)
    found = []
    for at, middle, one, other in zip(steps, *(each.tolist() for each in band), strict=True):
        low, high = sorted((sign * one, sign * other))
        found.append(At(at, sign * middle, low, high))
    return tuple(found)


def _pace(reports: list[tuple[float, float]]) -> float | None:
    """Seconds a step: pauses, as between two attempts, and steps that are done again do not count."""
    pairs = pairwise(reports)
    each = [(t - before) / (step - last) for (before, last), (t, step) in pairs if step > last]
    found = median(each) if each else 0.0
    return found if found > 0.0 and math.isfinite(found) else None
