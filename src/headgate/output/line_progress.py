"""The progress in one line of a script's output."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

_UNITS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}
_UNIT = r"(?:us|ms|sec|s|min|m|h|d)"
_DURATION = (
    rf"((?:\d{{1,9}}(?:\.\d{{1,9}})?\s?{_UNIT}\s?){{1,4}})(?![\w.])"
    r"|(\d{1,4}(?::\d\d){1,2})(?![\d:])"
)
_REMAINING = re.compile(rf"\bremaining(?:\stime)?\s{{0,2}}[:=]\s{{0,4}}(?:{_DURATION})")
_LASTS = re.compile(rf"(?:{_DURATION})$")
_PART = re.compile(rf"(\d+(?:\.\d+)?)\s?({_UNIT})")


class LineProgress(NamedTuple):
    """The progress in a line; None and False for what it does not state.

    Attributes:
        loss: The loss, or the metric that is searched for.
        metrics: Other values by name.
        step: Step as printed, often counted from the start of the epoch.
        epoch: Epoch as printed.
        epochs: Number of epochs.
        samples: Samples as printed, often counted from the start of the epoch.
        total: Total of the step or sample count, for an epoch or for the whole training.
        steps: Number of steps of the whole training.
        within: Fraction of the epoch that is done, 0 to 1, if the epoch is printed as a fraction.
        evaluates: Whether the line belongs to an evaluation, which has its own counts.
        keras: Whether the line is a progress bar of Keras, which looks the same in training and
            evaluation.
        drawn: Whether the line is a progress bar that may be redrawn.
        trains: Whether the line says that it belongs to the training.
        bar: Count and total of a progress bar without a name and values.
        heads: Whether the line only announces an evaluation.
        recalls: Whether the line announces values of the best epoch so far.
        remaining: Remaining seconds of the whole training.
        part: Name of the loss, if it is a part of one, or one of several models'.
        averaged: How many steps or samples of the epoch loss and metrics are means over, and the
            total; None: no means.
    """

    loss: float | None = None
    metrics: Mapping[str, float] = MappingProxyType({})
    step: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    samples: int | None = None
    total: int | None = None
    steps: int | None = None
    within: float | None = None
    evaluates: bool = False
    keras: bool = False
    drawn: bool = False
    trains: bool = False
    bar: tuple[int, int] | None = None
    heads: bool = False
    recalls: bool = False
    part: str | None = None
    remaining: float | None = None
    averaged: tuple[int, int | None] | None = None

    @property
    def values(self) -> tuple[object, ...]:
        """Values and position, by which two lines are compared."""
        return self.loss, self.metrics, self.step, self.epoch, self.epochs, self.samples

    def renamed(self, part: str, metric: str = "loss") -> LineProgress:
        """The line as one of an evaluation: its loss, or other followed metric, becomes a metric of
        `part`.
        """
        metrics = {f"{part}_{name}": value for name, value in self.metrics.items()}
        if self.loss is not None:
            metrics[f"{part}_{metric}"] = self.loss
        return self._replace(loss=None, metrics=metrics, evaluates=True)


def remaining(line: str) -> float | None:
    """Remaining seconds of the training in a lower-case line, as CatBoost prints: `remaining: 1m
    12s`.
    """
    match = _REMAINING.search(line) if "remaining" in line else None
    return _seconds(match) if match is not None else None


def duration(text: str) -> float | None:
    """Seconds of a duration such as `0.50s` or `1h 2m`; None for anything else."""
    match = _LASTS.match(text)
    return _seconds(match) if match is not None else None


def _seconds(match: re.Match[str]) -> float:
    if match[1] is not None:
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(match[1]))
    seconds = 0.0
    for part in match[2].split(":"):
        seconds = seconds * 60.0 + int(part)
    return seconds
