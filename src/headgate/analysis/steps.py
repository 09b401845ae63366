"""How a training step divides: from the spans of sampled steps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from headgate.analysis.usage import Array

ORDER = (
    *("input", "compute", "forward", "backward", "push", "wait", "pull", "optimizer"),
    *("receive", "update", "send", "other", "idle"),
)
"""The order in which spans are shown: that of a worker's step, then that of a server's round."""

EXPOSED = ("push", "wait", "pull")
"""Spans of a worker that only wait for communication: what of it backward did not hide."""


@dataclass(frozen=True, slots=True, eq=False)
class StepSums:
    """The sampled steps of a task, summed up.

    Args:
        whole: Seconds of each step.
        waited: Those of each that waited for input.
        spans: By span, over all steps: seconds, bytes in and bytes out.
    """

    whole: Array
    waited: Array
    spans: Mapping[str, tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class Division:
    """How a step divides, over the steps that were sampled; of several tasks, each task's steps count.

    Args:
        steps: Number of sampled steps.
        step_seconds: Mean seconds of a step.
        seconds: Mean seconds of a step by span, in the order of a step.
        input_fraction: Fraction of the sampled time that waited for input, 0 to 1.
        input_low: Tenth percentile over the steps of that fraction.
        input_high: Ninetieth percentile.
        exposed_fraction: Fraction of the sampled time that only waited for communication, 0 to 1.
        bytes_in: Mean bytes that came in in a step, by span; of those with any.
        bytes_out: Mean bytes that went out in a step, by span; of those with any.
    """

    steps: int
    step_seconds: float
    seconds: Mapping[str, float]
    input_fraction: float
    input_low: float
    input_high: float
    exposed_fraction: float = 0.0
    bytes_in: Mapping[str, float] = field(default_factory=dict)
    bytes_out: Mapping[str, float] = field(default_factory=dict)

    def fraction(self, span: str) -> float:
        """Fraction of a step that is `span`, 0 to 1."""
        return self.seconds.get(span, 0.0) / self.step_seconds if self.step_seconds > 0 else 0.0

    @property
    def received(self) -> float:
        """Mean bytes that came in in a step."""
        return sum(self.bytes_in.values())

    @property
    def sent(self) -> float:
        """Mean bytes that went out in a step."""
        return sum(self.bytes_out.values())


def divide(tasks: Iterable[StepSums]) -> Division | None:
    """How a step of these tasks divides; None where none was sampled."""
    given = [task for task in tasks if len(task.whole)]
    if not given:
        return None
    whole = np.concatenate([task.whole for task in given])
    waited = np.concatenate([task.waited for task in given])
    sums: dict[str, Array] = defaultdict(lambda: np.zeros(3))
    for task in given:
        for name, values in task.spans.items():
            sums[name] += values
    fractions = waited / np.where(whole > 0, whole, 1.0)
    low, high = np.percentile(fractions, [10, 90])
    spent, steps = float(whole.sum()), len(whole)
    known = [name for name in ORDER if name in sums]
    means = {name: sums[name] / steps for name in [*known, *sorted(set(sums) - set(ORDER))]}
    exposed = float(sum(sums[name][0] for name in EXPOSED if name in sums))
    return Division(
        steps=steps,
        step_seconds=spent / steps,
        seconds={name: float(mean[0]) for name, mean in means.items()},
        input_fraction=float(waited.sum()) / spent if spent > 0 else 0.0,
        input_low=float(low),
        input_high=float(high),
        exposed_fraction=exposed / spent if spent > 0 else 0.0,
        bytes_in={name: float(mean[1]) for name, mean in means.items() if mean[1]},
        bytes_out={name: float(mean[2]) for name, mean in means.items() if mean[2]},
    )
