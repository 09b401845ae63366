"""Predict a job's loss and end from its complete record."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headgate.forecast import curves
from headgate.forecast.epoch_steps import Estimate
from headgate.forecast.job_tracker import JobTracker
from headgate.forecast.remaining import first_end
from headgate.forecast.step_time import ReportTime
from headgate.model.progress import Progress

_FARTHEST = 4.0
"""The forecast reaches up to this many times the steps done."""
_PARTS = 60


class ExpectedAt(NamedTuple):
    """The metric at a step: the median of the curves, and the ends of a 90 % band."""

    step: float
    middle: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Expected:
    """The past and predicted course of a job.

    Args:
        points: Step and metric since the last jump of its level, without spikes.
        step: The last step.
        reported: Time of its last report (s).
        seconds_per_step: Mean seconds of its latest steps; None: unknown.
        step_time: Variation of that; None: unknown.
        cost: Core-seconds of a step; 0: unknown.
        family: The likeliest family of curves; None: too few points.
        progress: Fraction of the way from the first to the final level, 0 to 1.
        asymptote: Final value of the metric.
        curve: The metric from the last step on.
        left: Steps left with a 90 % band; None: unpredictable.
        until: What ends it: `epochs`, `goal`, or `rest` (no further improvement).
        diverging: The loss rises beyond its noise, or is no longer finite.
    """

    points: tuple[tuple[float, float], ...]
    step: float
    reported: float
    seconds_per_step: float | None
    step_time: ReportTime | None
    cost: float
    family: str | None
    progress: float | None
    asymptote: float | None
    curve: tuple[ExpectedAt, ...]
    left: Estimate | None
    until: str
    diverging: bool

    def seconds(self, waited: float = 0.0) -> Estimate | None:
        """Seconds left, like `left`, `waited` seconds after its last report."""
        return self.step_time.of(self.left, waited) if self.left and self.step_time else None

    def core_seconds(self) -> Estimate | None:
        """Core-seconds left, like `left`."""
        return self.left.times(self.cost) if self.left and self.cost else None


def expect(
    reports: Iterable[tuple[float, float | None, Progress]],
    used: Sequence[tuple[float, float]] = (),
    goal: float | None = None,
    rising: bool = False,
    stopping: tuple[int, float] | None = None,
    began: float | None = None,
) -> Expected | None:
    """Predict the course of a job from its reports.

    Args:
        reports: Time (s), metric or None, and progress of each report, in the order of time.
        used: Mean cores in use until each time (s), in the order of time.
        goal: The value of its metric at which it ends; None: no goal.
        rising: Whether a greater value of that metric is better.
        stopping: Early stopping, as of `JobTracker`.
        began: When its script was started (s); None: unknown.

    Returns:
        None: it reported no number.
    """
    tracker, now = JobTracker(0.0, goal=goal, rising=rising, began=began), 0.0
    tracker.stopping = stopping
    readings, reported = deque(used), 0.0
    for now, value, progress in reports:
        while readings and readings[0][0] <= now:
            tracker.use(*readings.popleft())
        tracker.report(now, value, progress)
        reported = now if value is not None or progress.step is not None else reported
    question = tracker.question(now)
    if not question.points:
        return None
    sign = -1.0 if rising else 1.0
    fitted = curves.fit(question.points)
    left, until = first_end(fitted, question)
    return Expected(
        points=tuple((at, sign * value) for at, value, _ in question.points),
        step=question.step,
        reported=reported,
        step_time=tracker.step_time(),
        seconds_per_step=question.step_seconds,
        cost=question.cost,
        family=fitted.family if fitted is not None else None,
        progress=fitted.progress if fitted is not None else None,
        asymptote=sign * fitted.asymptote if fitted is not None else None,
        curve=_curve(fitted, question.step, left, sign) if fitted is not None else (),
        left=left,
        until=until,
        diverging=tracker.diverging,
    )


def expected_end(tracker: JobTracker, rising: bool = False) -> ExpectedAt | None:
    """What the metric of a live job is expected to end with; None: too few values.

    Args:
        tracker: Its tracker.
        rising: Whether a greater value of the metric is better.
    """
    question = tracker.question(0.0)  # no cost is asked for
    fitted = curves.fit(question.points) if question.points else None
    if fitted is None:
        return None
    left, _ = first_end(fitted, question)
    return _curve(fitted, question.step, left, -1.0 if rising else 1.0)[-1]


def _curve(
    fitted: curves.Fit, step: float, left: Estimate | None, sign: float
) -> tuple[ExpectedAt, ...]:
    ahead = min(
        left.steps if left is not None and left.steps > 0.0 else step, _FARTHEST * max(step, 1.0)
    )
    steps = [step + ahead * part / _PARTS for part in range(_PARTS + 1)]
    band = fitted.at(steps)
    curve = []
    for at, middle, lower, upper in zip(steps, *(bound.tolist() for bound in band), strict=True):
        low, high = sorted((sign * lower, sign * upper))
        curve.append(ExpectedAt(at, sign * middle, low, high))
    return tuple(curve)
