"""How a training step divides: from the spans of sampled steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

ORDER = ("input", "forward", "backward", "optimizer", "push", "wait", "pull", "update", "other")
"""The order in which spans are shown: that of the step itself."""


@dataclass(frozen=True, slots=True)
class Division:
    """How a step divides, over the steps that were sampled.

    Args:
        steps: Number of sampled steps.
        step_seconds: Mean seconds of a step.
        seconds: Mean seconds of a step by span, in the order of a step.
        input_fraction: Fraction of the sampled time that waited for input, 0 to 1.
        input_low: Tenth percentile over the steps of that fraction.
        input_high: Ninetieth percentile.
    """

    steps: int
    step_seconds: float
    seconds: Mapping[str, float]
    input_fraction: float
    input_low: float
    input_high: float

    def fraction(self, span: str) -> float:
        """Fraction of a step that is `span`, 0 to 1."""
        return self.seconds.get(span, 0.0) / self.step_seconds if self.step_seconds > 0 else 0.0


def divide(spans: Iterable[tuple[object, str, float]]) -> Division | None:
    """How a step divides; None without any span.

    Args:
        spans: A key that is the same for all spans of one step, the span's name, its seconds.
    """
    steps: dict[object, list[float]] = defaultdict(lambda: [0.0, 0.0])
    sums: dict[str, float] = defaultdict(float)
    for step, name, seconds in spans:
        sums[name] += seconds
        both = steps[step]
        both[0] += seconds
        if name == "input":
            both[1] += seconds
    if not steps:
        return None
    whole, waited = np.array(list(steps.values())).T
    fractions = waited / np.where(whole > 0, whole, 1.0)
    low, high = np.percentile(fractions, [10, 90])
    spent = float(whole.sum())
    known = [name for name in ORDER if name in sums]
    return Division(
        steps=len(steps),
        step_seconds=spent / len(steps),
        seconds={name: sums[name] / len(steps) for name in [*known, *sorted(set(sums) - set(ORDER))]},
        input_fraction=float(waited.sum()) / spent if spent > 0 else 0.0,
        input_low=float(low),
        input_high=float(high),
    )
