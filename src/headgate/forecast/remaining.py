"""Predict the remaining work of a job from its losses, epochs, use and speed.

The remaining steps are computed once. The cost of a step converts them to core-seconds, and its
duration to seconds. A `JobTracker` makes a `Question` that can be answered anywhere, also in
another thread. Only `answer` imports numpy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from headgate.forecast.epoch_steps import Estimate
from headgate.forecast.step_time import rising
from headgate.model.events import Predicted
from headgate.model.identifiers import JobId

if TYPE_CHECKING:
    from headgate.forecast.curves import Fit

_AHEAD = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Horizons of predicted drops, as fractions of the steps done so far."""
_PATIENCE = 0.2
"""Without epochs or a goal, a job is assumed to end after a rest of its loss this long, as a
fraction of the steps done so far.
"""
_WINDOWS = 8
"""Number of parts of the time after the first reports; their median ignores pauses."""


@dataclass(frozen=True, slots=True)
class Question:
    """All inputs of a forecast.

    Args:
        points: Step, loss and number of reports of each point.
        step: The job's last step.
        cost: Core-seconds of a step; 0: unknown.
        epochs: Steps left by its number of epochs.
        goal: The loss at which it ends.
        rest: Early stopping: steps without an improvement, and the least improvement; None: no
            early stopping.
        step_seconds: Seconds of a step; None: unknown.
    """

    points: tuple[tuple[float, float, float], ...]
    step: float
    cost: float
    epochs: Estimate | None
    goal: float | None
    rest: tuple[float, float] | None = None
    step_seconds: float | None = None


def step_seconds(reports: Iterable[tuple[float, float]], fewest: float = 1.0) -> float | None:
    """Seconds of a step from reports (time in s, step): the median over several parts of the time,
    after the first reports. Repeated steps do not count.

    Returns:
        None: too few reports, or they cover fewer than `fewest` steps.
    """
    kept = rising(reports)
    if len(kept) < 2 or kept[-1][1] - kept[0][1] < fewest:
        return None
    count = min(_WINDOWS, len(kept) - 1)
    ends = [kept[i * (len(kept) - 1) // count] for i in range(count + 1)]
    seconds = median(
        (after[0] - before[0]) / (after[1] - before[1]) for before, after in pairwise(ends)
    )
    return seconds if seconds > 0 else None


def answer(job: JobId, question: Question) -> Predicted | None:
    """Fit the losses and predict the remaining work. Takes milliseconds.

    Returns:
        None: no prediction is possible.
    """
    from headgate.forecast import curves

    fitted = curves.fit(question.points)
    steps, _ = first_end(fitted, question)
    if steps is None:
        return None
    asymptote, drops = None, []
    if fitted is not None:
        asymptote = fitted.asymptote
        ahead = [part * max(question.step, 1.0) for part in _AHEAD]
        middle = fitted.at([question.step, *(question.step + steps for steps in ahead)]).middle
        drops = [
            (steps_ahead * question.cost, float(middle[0] - value))
            for steps_ahead, value in zip(ahead, middle[1:], strict=True)
        ]
    work, low, high = (count * question.cost for count in steps[:3])
    if not math.isfinite(high):
        return None
    ends = question.epochs is not None or question.goal is not None or question.rest is not None
    seconds = steps.steps * question.step_seconds if question.step_seconds is not None else None
    return Predicted(job, work, low, high, asymptote, tuple(drops), ends, seconds=seconds)


def _after(steps: float, estimate: Estimate) -> Estimate:
    """The estimate after some more steps."""
    low, middle, high = (
        max(left - steps, 0.0) for left in (estimate.low, estimate.steps, estimate.high)
    )
    return Estimate(middle, low, high, estimate.likely)


def first_end(fitted: Fit | None, question: Question) -> tuple[Estimate | None, str]:
    """Steps left after the last one, and what ends the job: `epochs`, `goal` or `rest`.

    The end is the earliest of its epochs, goal and early stopping. An improbable end never comes
    before a probable one. A job without any of these ends when its loss levels off.
    """
    step, epochs, goal, stopping = question.step, question.epochs, question.goal, question.rest
    ends = [(epochs, "epochs")] if epochs is not None else []
    if fitted is not None:
        since = max(step - fitted.step, 0.0)  # steps since the last known loss
        if goal is not None:
            ends.append((_after(since, fitted.to(goal)), "goal"))
        if stopping is not None:
            ends.append((_after(since, fitted.to_plateau(*stopping, passed=stopping[0])), "rest"))
        if not ends:
            ends.append((_after(since, fitted.to_plateau(_PATIENCE * step)), "rest"))
    return min(ends, key=lambda end: (end[0].likely < 0.5, end[0].steps), default=(None, "epochs"))
