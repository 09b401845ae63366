"""What a script reports, folded into a few messages a second."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

EVERY_SECONDS = 0.1
"""Time between two progress messages of a script that reports faster."""


class Progress:
    """Collects reports and sends the mean of their losses: of those that are numbers, unless the last is none.

    Args:
        send: Takes the message.
        numbers: Turns what was reported into floats, all of a message at once: on a GPU each conversion waits for it.
        clock: Seconds, never going back.

    Attributes:
        step: Steps so far.
        said: The same as the script says it: a number, or a tensor that has it, which is not waited for before a
            message is due. None, or what is no number: `step` is told.
    """

    def __init__(
        self,
        send: Callable[[Mapping[str, object]], None],
        numbers: Callable[[Sequence[Any]], list[float]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._numbers = numbers
        self._clock = clock
        self._losses: list[Any] = []
        self._metrics: dict[str, Any] = {}
        self._unsent = False
        self._sent_at = float("-inf")
        self.step = 0
        self.said: Any = None
        self.epoch: int | None = None
        self.epochs: int | None = None
        self.within: float | None = None
        self.samples: int | None = None

    def report(self, loss: Any, metrics: Mapping[str, Any]) -> None:
        """Take a loss (None: none) and metrics, of which the last of each name counts."""
        self._unsent = True
        if loss is not None:
            self._losses.append(loss)
        if metrics:
            self._metrics.update(metrics)
        if self._clock() - self._sent_at >= EVERY_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Send what has not been sent."""
        if not self._unsent:
            return
        step = whole(self.said, self.step)
        message: dict[str, object] = {"type": "progress", "step": step, "count": len(self._losses)}
        if self.epoch is not None:
            message["epoch"] = self.epoch
        if self.epochs is not None:
            message["epochs"] = self.epochs
        if self.within is not None:
            message["within"] = self.within
        if self.samples is not None:
            message["samples"] = self.samples
        if self._losses:
            losses = self._numbers(self._losses)
            numbers = [loss for loss in losses if math.isfinite(loss)]
            message["loss"] = sum(numbers) / len(numbers) if math.isfinite(losses[-1]) else losses[-1]
        if self._metrics:
            message["metrics"] = dict(zip(self._metrics, self._numbers(list(self._metrics.values()))))
        self._losses = []
        self._metrics = {}
        self._unsent = False
        self._send(message)
        self._sent_at = self._clock()


def whole(number: Any, otherwise: int) -> int:
    """A count that a script gives, which may be NumPy's or a tensor; `otherwise` where it gives none."""
    try:
        return int(number)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # the last of tensors
        return otherwise
