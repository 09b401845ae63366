"""Folds a script's reports into a few messages a second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headgate.task.file_writes import file_writes
from headgate.task.overheads import overheads
from headgate.task.scalars import read

EVERY_SECONDS = 0.1
"""Time between two progress messages, if the script reports faster."""

SO_FAR_SECONDS = 2.0
"""Time without a loss after which the current epoch's mean so far is sent."""


class ProgressReporter:
    """Collects reports and sends the weighted mean of the finite losses, unless the last loss is
    not finite.

    Values that are no numbers are left out, with a note.

    Args:
        send: Takes a message, and whether it can be dropped.
        fetch: Reads the values of a message all at once, because each read from a GPU blocks.
        clock: Seconds of a monotonic clock.

    Attributes:
        step: Steps so far.
        said: The script's own step number: a number, or a tensor that is read only when a message
            is due. None, or no number: `step` is sent.
    """

    def __init__(
        self,
        send: Callable[[Mapping[str, object], bool], None],
        fetch: Callable[[Sequence[Any]], Sequence[Any]] = list,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._fetch = fetch
        self._clock = clock
        self._losses: list[tuple[Any, Any]] = []  # and what each weighs
        self._metrics: dict[str, Any] = {}
        self._covers = ""
        self._running: tuple[Any, Mapping[str, Any]] | None = None
        self._running_since = float("inf")
        self._remarked: set[tuple[str, str]] = set()
        self._unsent = False
        self._sent_at = float("-inf")
        self.step = 0
        self.said: Any = None
        self.epoch: int | None = None
        self.epochs: int | None = None
        self.within: float | None = None
        self.samples: int | None = None

    def report(self, loss: Any, metrics: Mapping[str, Any], weight: Any = 1.0) -> None:
        """Take a loss (None: none) and metrics. The last value of each metric counts.

        Args:
            weight: Weight of this worker's loss in the mean over all workers, 1 on average. A loss
                of weight 0 is left out.
        """
        self._unsent = True
        if loss is not None:
            self._losses.append((loss, weight))
        if metrics:
            self._metrics.update(metrics)
        self._deliver_if_due()

    def epoch_so_far(self, loss: Any, metrics: Mapping[str, Any]) -> None:
        """Note the means of the running epoch so far. They are sent if there was no loss for a
        while.
        """
        now = self._clock()
        self._running_since = min(self._running_since, now)
        self._running = loss, metrics
        self._unsent = True
        if now - self._running_since >= SO_FAR_SECONDS:
            self._cover("part", loss, metrics)
        self._deliver_if_due()

    def epoch_over(self, loss: Any, metrics: Mapping[str, Any]) -> None:
        """Note the means of an epoch that has ended."""
        self._cover("epoch", loss, metrics)
        self.flush()

    def flush(self) -> None:
        """Send everything that has not been sent."""
        if self._running is not None:
            self._cover("part", *self._running)
        self._deliver(now=True)

    def _cover(self, what: str, loss: Any, metrics: Mapping[str, Any]) -> None:
        if self._losses or self._metrics:
            self._deliver()  # of reports, which do not cover the same
        self._losses = [] if loss is None else [(loss, 1.0)]
        self._metrics = dict(metrics)
        self._covers, self._unsent = what, True
        self._running, self._running_since = None, float("inf")

    def _deliver_if_due(self) -> None:
        if self._clock() - self._sent_at >= EVERY_SECONDS:
            self._deliver()

    def _deliver(self, now: bool = False) -> None:
        file_writes.tell(lambda message: self._send(message, False))
        overheads.tell(lambda message: self._send(message, True), now)
        if not self._unsent:
            return
        step = whole(self.said, self.step)
        message: dict[str, object] = {"type": "progress", "step": step, "count": len(self._losses)}
        about = {
            "epoch": self.epoch,
            "epochs": self.epochs,
            "within": self.within,
            "samples": self.samples,
        }
        message.update((name, value) for name, value in about.items() if value is not None)
        if self._covers:
            message["covers"] = self._covers
        reported = len(self._losses)
        weights, numbers = self._read(
            [weight for _, weight in self._losses],
            [("loss", loss) for loss, _ in self._losses] + list(self._metrics.items()),
        )
        losses = [
            (number, weight)
            for (_, number), weight in zip(numbers, weights)
            if number is not None and weight > 0
        ]
        if losses:
            finite = [(loss, weight) for loss, weight in losses if math.isfinite(loss)]
            last = losses[-1][0]
            message["loss"] = weighted_mean(finite) if math.isfinite(last) else last
            message["count"] = len(losses)
        if any(weight != 1.0 for weight in weights):
            message["weight"] = sum(weight for _, weight in losses) / max(len(losses), 1)
        if metrics := {name: number for name, number in numbers[reported:] if number is not None}:
            message["metrics"] = metrics
        self._losses, self._metrics, self._covers = [], {}, ""
        self._unsent = False
        self._send(message, True)
        self._sent_at = self._clock()

    def _read(
        self, weights: Sequence[Any], values: Sequence[tuple[str, Any]]
    ) -> tuple[list[float], list[tuple[str, float | None]]]:
        """Weights and values as floats, None for values that are no numbers. Notes the first such
        value of each name and type.
        """
        fetched = self._fetch([*weights, *(value for _, value in values)])
        numbers: list[tuple[str, float | None]] = []
        for (name, _), value in zip(values, fetched[len(weights) :]):
            number, remark = read(value)
            numbers.append((name, number))
            if remark and (about := (name, type(value).__name__)) not in self._remarked:
                self._remarked.add(about)
                left_out = "" if number is not None else "; it is left out"
                self._send(
                    {
                        "type": "note",
                        "warns": True,
                        "text": f"report({name}=...): {remark}{left_out}",
                    },
                    False,
                )
        return [float(weight) for weight in fetched[: len(weights)]], numbers


def weighted_mean(values: Iterable[tuple[float, float]]) -> float:
    """The weighted mean of (value, weight) pairs. At least one weight is above 0."""
    numbers = list(values)
    return sum(number * weight for number, weight in numbers) / sum(weight for _, weight in numbers)


def whole(number: Any, otherwise: int) -> int:
    """A count given by a script, which may be of NumPy or a tensor; `otherwise` if it gives
    none.
    """
    try:
        return int(number)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last of tensors
        return otherwise
