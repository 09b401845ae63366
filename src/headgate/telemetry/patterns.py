"""Progress read from what a script prints, for scripts that do not report it themselves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from headgate.errors import UsageError
from headgate.jobs import ProgressRule
from headgate.telemetry.expressions import Expression, TooSlowError
from headgate.telemetry.lines import Found, Scanner

LONGEST_LINE = 4096
"""Characters of a line that are looked at."""

_LONGEST_PATTERN = 1000
_MANY = 16  # a repeat of at most so many turns cannot blow up a search

_ESCAPE = re.compile(r"\x1b(?:\[[0-9;?]{0,24}[@-~]|\][^\x07\x1b]{0,256}(?:\x07|\x1b\\)|[()][A-Z0-9]|[=>78DEHM])")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a script said of its progress.

    Args:
        step: Step as the script counts it, but never falling back when a new epoch starts counting anew; of a line that
            tells none, as the summary of an epoch, the last one told.
        epoch: Epoch as the script counts it (from 0 or from 1).
        epochs: Number of epochs it is going to run.
        loss: The training loss (or the metric that the job names); NaN and infinity as printed.
        metrics: Other values of that line by name, `val_loss` among them.
        samples: Samples seen, where the script counts those; like `step` never falling back.
    """

    step: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: int | None = None


def check_pattern(pattern: str, metric: str = "loss") -> str | None:
    """Why a job's own regular expression cannot be used, None when it can.

    It needs a named group for the metric (`(?P<loss>...)`, `(?P<value>...)` or the metric's own name); `step`, `epoch`
    and `epochs` are read where it has them. An expression whose search could take a time exponential in the line's
    length is refused: a repeat of something that itself repeats or offers alternatives.
    """
    if len(pattern) > _LONGEST_PATTERN:
        return f"it has {len(pattern)} characters; expected at most {_LONGEST_PATTERN}"
    try:
        compiled = re.compile(pattern)
        tree = import_module("re._parser").parse(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"it is no regular expression: {error}"
    if _group_of(compiled, metric) is None:
        name = metric if metric.isidentifier() else "value"
        return f"it has no named group for the metric; put (?P<{name}>...) around it"
    if _explodes(tree, inside=False):
        return (
            "it repeats something that itself repeats or offers alternatives, and could search for ever; "
            "make the inner part possessive, as in (?:\\d++,)*, or write it out"
        )
    return None


class ProgressReader:
    """Reads progress from lines of output, one after the other.

    Args:
        rule: The metric, and the job's own expression if it has one.

    Raises:
        UsageError: The job's own expression cannot be used (see `check_pattern`).
    """

    def __init__(self, rule: ProgressRule) -> None:
        self.problem: str | None = None
        """Why the job's own expression is no longer searched for; None as long as it is."""
        self._expression: Expression | None = None
        if rule.pattern is not None:
            reason = check_pattern(rule.pattern, rule.metric)
            if reason is not None:
                raise UsageError(f"progress.pattern {rule.pattern!r}: {reason}")
            self._expression = Expression(rule.pattern)
            self._group = _group_of(self._expression.pattern, rule.metric) or rule.metric
        self._as_fraction = rule.goal is not None and rule.goal <= 1.0
        self._scanner = Scanner(rule.metric, as_fraction=self._as_fraction)
        self._epoch: int | None = None
        self._epochs: int | None = None
        self._steps = _Running()
        self._samples = _Running()
        self._bar: tuple[int, int | None] | None = None
        self._last: Reading | None = None

    def feed(self, lines: Iterable[str]) -> list[Reading]:
        """What these lines say; a line that says nothing of progress, or repeats the last, gives no reading."""
        readings = []
        for line in lines:
            for text in shown(line):
                found = self._search(self._expression, text) if self._expression else self._scanner.scan(text)
                reading = self._reading(found) if found is not None else None
                if reading is not None:
                    self._last = reading
                    readings.append(reading)
        return readings

    def _reading(self, found: Found) -> Reading | None:
        new_epoch = found.epoch is not None and found.epoch != self._epoch
        if new_epoch:
            self._epoch = found.epoch
            self._bar = None
        if found.epochs is not None:
            self._epochs = found.epochs
        if found.keras and found.step is not None and self._evaluates(found.step, found.total):
            metrics = {f"eval_{name}": value for name, value in found.metrics.items()}
            if found.loss is not None:
                metrics["eval_loss"] = found.loss
            if not metrics:
                return None
            return Reading(step=self._steps.latest, epoch=self._epoch, epochs=self._epochs, metrics=metrics)
        if found.loss is None and not found.metrics and not new_epoch:
            return None
        reading = Reading(
            step=self._steps.latest if found.step is None else self._steps.count(found.step, found.total, self._epoch),
            epoch=self._epoch,
            epochs=self._epochs,
            loss=found.loss,
            metrics=found.metrics,
            samples=None if found.samples is None else self._samples.count(found.samples, found.total, self._epoch),
        )
        # Bars are drawn again and again; a script that counts no steps may well have the same loss twice.
        return None if reading.step is not None and reading == self._last else reading

    def _evaluates(self, step: int, total: int | None) -> bool:
        """Whether a Keras bar belongs to `evaluate`: after the epoch's own, of another length or starting anew."""
        if self._epoch is None:
            return False
        if self._bar is not None and (total != self._bar[1] or step < self._bar[0]):
            return True
        self._bar = (step, total)
        return False

    def _search(self, expression: Expression, text: str) -> Found | None:
        if self.problem is not None:
            return None
        try:
            match = expression.search(text)
        except TooSlowError as error:
            self.problem = f"progress.pattern {error}; it is no longer searched for, and the job goes on"
            return None
        if match is None:
            return None
        values = {name: _number(text) for name, text in match.groupdict().items() if text is not None}
        loss = values.pop(self._group, None)
        if loss is not None and self._as_fraction and "%" in text[match.end(self._group) - 1 :][:3]:
            loss /= 100.0
        step, epoch, epochs = (_whole(values.pop(name, None)) for name in ("step", "epoch", "epochs"))
        metrics = {name: value for name, value in values.items() if value is not None}
        if loss is None and epoch is None and not metrics:
            return None
        return Found(loss=loss, metrics=metrics, step=step, epoch=epoch, epochs=epochs)


class _Running:
    """Makes a count that starts anew with each epoch into one that runs on.

    Attributes:
        latest: The count that came last; None before the first.
    """

    def __init__(self) -> None:
        self.latest: int | None = None
        self._base = 0
        self._count = 0
        self._total: int | None = None
        self._epoch: int | None = None

    def count(self, count: int, total: int | None, epoch: int | None) -> int:
        if count < self._count and epoch != self._epoch:
            self._base += self._total or self._count
        self._count, self._total, self._epoch = count, total, epoch
        self.latest = self._base + count
        return self.latest


def shown(line: str) -> Iterator[str]:
    """The line as a terminal would show it: its start, without colours, each state that it was redrawn in."""
    if len(line) > LONGEST_LINE:
        line = line[:LONGEST_LINE]
    if "\x1b" in line:
        line = _ESCAPE.sub("", line)
    if "\r" in line or "\b" in line:
        for state in line.replace("\b", "\r").split("\r"):
            if state.strip():
                yield state
    else:
        yield line


def _group_of(pattern: re.Pattern[str], metric: str) -> str | None:
    return next((name for name in (metric, "loss", "value") if name in pattern.groupindex), None)


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", "").removesuffix("%"))
    except ValueError:
        return None


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and abs(value) < 1e15 else None


def _explodes(tree: Any, *, inside: bool) -> bool:
    """Whether a parsed expression has a long repeat, not possessive, of something that can match in several ways."""
    for operation, argument in tree:
        kind = str(operation)
        if kind in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, body = argument
            if inside and low != high:
                return True
            if _explodes(body, inside=inside or int(high) > _MANY):
                return True
        elif kind == "POSSESSIVE_REPEAT":
            if _explodes(argument[2], inside=False):
                return True
        elif kind == "ATOMIC_GROUP":
            if _explodes(argument, inside=False):
                return True
        elif kind == "BRANCH":
            if inside or any(_explodes(branch, inside=False) for branch in argument[1]):
                return True
        elif kind in ("SUBPATTERN", "ASSERT", "ASSERT_NOT"):
            if _explodes(argument[-1], inside=inside):
                return True
        elif kind == "GROUPREF_EXISTS" and any(
            branch is not None and _explodes(branch, inside=inside) for branch in argument[1:]
        ):
            return True
    return False
