"""What a script reports, folded into a few messages a second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headgate.task.file_writes import file_writes
from headgate.task.overheads import overheads
from headgate.task.scalars import read

EVERY_SECONDS = 0.1
"""Time between two progress messages of a script that reports faster."""

SO_FAR_SECONDS = 2.0
"""Time without a loss after which that of the running epoch is sent as it is so far."""


class ProgressReporter:
    """Collects reports and sends the mean of their losses, by weight: of those that are finite,
    unless the last is not.

    What is no number is left out, and said so.

    Args:
        send: Takes a message and whether it can be missed: progress, and a note of what is no
            number.
        fetch: Brings what was reported to this process, all of a message at once: on a GPU each
            waits for it.
        clock: Seconds, never going back.

    Attributes:
        step: Steps so far.
        said: The same as the script says it: a number, or a tensor that has it, which is not waited
            for before a message is due. None, or what is no number: `step` is told.
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
        """Take a loss (None: none) and metrics. The last metric of each name counts.

        Args:
            weight: What the loss of this worker counts among those of all, 1 on the mean; one of 0
                is left out.
        """
        self._unsent = True
        if loss is not None:
            self._losses.append((loss, weight))
        if metrics:
            self._metrics.update(metrics)
        self._deliver_if_due()

    def epoch_so_far(self, loss: Any, metrics: Mapping[str, Any]) -> None:
        """A step was done after which the means of its epoch so far are these; sent where no loss
        was for a while.
        """
        now = self._clock()
        self._running_since = min(self._running_since, now)
        self._running = loss, metrics
        self._unsent = True
        if now - self._running_since >= SO_FAR_SECONDS:
            self._cover("part", loss, metrics)
        self._deliver_if_due()

    def epoch_over(self, loss: Any, metrics: Mapping[str, Any]) -> None:
        """The means of the epoch that is over are these."""
        self._cover("epoch", loss, metrics)
        self.flush()

    def flush(self) -> None:
        """Send what has not been sent."""
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
        """Weights and values as floats, None for what is none; of each name and type that is not
        one number the first is told.
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
    """The mean of numbers by their weights. One weight at least is above 0."""
    numbers = list(values)
    return sum(number * weight for number, weight in numbers) / sum(weight for _, weight in numbers)


def whole(number: Any, otherwise: int) -> int:
    """A count that a script gives, which may be NumPy's or a tensor; `otherwise` where it gives
    none.
    """
    try:
        return int(number)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last of tensors
        return otherwise
