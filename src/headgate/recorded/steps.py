"""The parts of a training step, from the spans of sampled steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from headgate.recorded.usage import Array

ORDER = (
    *("input", "copy", "compute", "forward", "backward", "push", "wait", "pull", "optimizer"),
    *("receive", "update", "send", "other", "idle"),
)
"""Display order of spans: those of a worker's step, then those of a server's round."""

EXPOSED = ("push", "wait", "pull")
"""Spans of a worker that wait for communication not hidden by backward."""


Sums = tuple[float, float | None, float | None]


@dataclass(frozen=True, slots=True, eq=False)
class StepSums:
    """The sampled steps of a task, and their sums.

    Args:
        whole: Seconds of each step, or of a mean of several.
        waited: Seconds of each of these spent waiting for input; NaN: not measured.
        spans: By span, over all steps: seconds, bytes in and bytes out; None: not counted.
        counts: The number of steps that each of these is the mean of.
    """

    whole: Array
    waited: Array
    spans: Mapping[str, Sums]
    counts: Array


@dataclass(frozen=True, slots=True)
class StepBreakdown:
    """Mean parts of a step over the sampled steps of all tasks.

    Args:
        steps: Number of sampled steps.
        step_seconds: Mean seconds of a step.
        seconds: Mean seconds of a step by span, in the order of a step.
        input_fraction: Fraction of the sampled time spent waiting for input, 0 to 1; None: not
            measured.
        input_low: Tenth percentile of that fraction over the steps.
        input_high: Ninetieth percentile.
        exposed_fraction: Fraction of the sampled time spent only waiting for communication, 0 to 1;
            None: not measured.
        bytes_in: Mean bytes received in a step, for each span with a count.
        bytes_out: Mean bytes sent in a step, for each span with a count.
    """

    steps: int
    step_seconds: float
    seconds: Mapping[str, float]
    input_fraction: float | None
    input_low: float | None
    input_high: float | None
    exposed_fraction: float | None = None
    bytes_in: Mapping[str, float] = field(default_factory=dict)
    bytes_out: Mapping[str, float] = field(default_factory=dict)

    def fraction(self, span: str) -> float:
        """Fraction of a step in `span`, 0 to 1."""
        return self.seconds.get(span, 0.0) / self.step_seconds if self.step_seconds > 0 else 0.0

    @property
    def received(self) -> float | None:
        """Mean bytes received in a step; None: not counted."""
        return sum(self.bytes_in.values()) if self.bytes_in else None

    @property
    def sent(self) -> float | None:
        """Mean bytes sent in a step; None: not counted."""
        return sum(self.bytes_out.values()) if self.bytes_out else None


def divide(tasks: Iterable[StepSums]) -> StepBreakdown | None:
    """The parts of a step of these tasks; None: no step was sampled."""
    given = [task for task in tasks if len(task.whole)]
    if not given:
        return None
    step_seconds = np.concatenate([task.whole for task in given])
    waited = np.concatenate([task.waited for task in given])
    counts = np.concatenate([task.counts for task in given])
    spent, steps = float((step_seconds * counts).sum()), float(counts.sum())
    names = {name for task in given for name in task.spans}
    order = [name for name in ORDER if name in names] + sorted(names - set(ORDER))
    seconds, received, sent = (_means(given, order, index, steps) for index in range(3))
    measured = np.isfinite(waited)
    fractions = waited[measured] / np.where(step_seconds > 0, step_seconds, 1.0)[measured]
    low, high = np.percentile(fractions, [10, 90]) if len(fractions) else (None, None)
    exposed = [seconds[name] for name in EXPOSED if name in seconds]
    return StepBreakdown(
        steps=round(steps),
        step_seconds=spent / steps,
        seconds=seconds,
        input_fraction=_fraction((waited * counts)[measured], (step_seconds * counts)[measured])
        if len(fractions)
        else None,
        input_low=None if low is None else float(low),
        input_high=None if high is None else float(high),
        exposed_fraction=_fraction(np.array(exposed) * steps, step_seconds * counts)
        if exposed
        else None,
        bytes_in=received,
        bytes_out=sent,
    )


def _means(
    tasks: Iterable[StepSums], names: Iterable[str], index: int, steps: float
) -> dict[str, float]:
    """Means of one of the sums of each span over all steps, for spans that some task knows."""
    means = {}
    for name in names:
        known = [sums[index] for task in tasks if (sums := task.spans.get(name)) is not None]
        values = [value for value in known if value is not None]
        if values:
            means[name] = sum(values) / steps
    return means


def _fraction(part: Array, whole: Array) -> float:
    spent = float(whole.sum())
    return float(part.sum()) / spent if spent > 0 else 0.0
