"""Reports periods in which a worker waited for others much longer than usual, as for a failed NIC
or a slow node. Each is reported once, with its cost, when it is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any, Callable

LEAST_SECONDS = 1.0
"""Waits that cost less are not reported."""
_LEAST_ROUNDS = 5.0  # nor is one that costs less than so many usual rounds
_KNOWN = 5  # rounds after which it is known what is usual
_REMEMBERED = 21
_CALM = 3  # rounds as usual after which a wait is over


class StragglerWait:
    """The waits of a worker, by round (asynchronous: by step).

    A round is slow if the excess of its wait is longer than another usual round.

    Args:
        send: Takes a message for the engine.
    """

    def __init__(self, send: Callable[[Mapping[str, Any]], object]) -> None:
        self._send = send
        self._usual: deque[tuple[float, float]] = deque(maxlen=_REMEMBERED)
        self._ended: float | None = None
        self._calm = 0
        self._lost = 0.0
        self._steps = (0, 0)
        self._names: set[str] = set()

    def add(self, begin: float, end: float, step: int, names: Iterable[str] = ()) -> None:
        """Note the end of a round.

        Args:
            begin: When this worker had done its own part and began to wait, in seconds of any
                clock.
            end: When the wait was over.
            step: Number of its step.
            names: Tasks that it waited for, as far as is known.
        """
        before, self._ended = self._ended, end
        waited = end - begin
        if before is None:
            return
        if len(self._usual) < _KNOWN:
            self._usual.append((end - before, waited))
            return
        extra = waited - median(wait for _, wait in self._usual)
        if extra > self._usual_round:
            self._steps = (self._steps[0] if self._lost else step, step)
            self._lost += extra
            self._names.update(names)
            self._calm = 0
            return
        self._usual.append((end - before, waited))
        self._calm += 1
        if self._lost and self._calm >= _CALM:
            self.close()

    def skip(self, end: float) -> None:
        """Skip a round in which tasks came or went. Its duration is reported elsewhere, or due to a
        request.
        """
        self._ended = end

    def close(self) -> None:
        """End the period of waiting, and report it if it cost enough."""
        if self._lost >= max(
            LEAST_SECONDS, _LEAST_ROUNDS * self._usual_round if self._lost else 0.0
        ):
            names = ", ".join(sorted(self._names)) or "the others"
            first, last = self._steps
            text = f"waited for {names} in step{'' if first == last else f's {first} to'} {last}"
            self._send({"type": "fault", "text": text, "seconds": self._lost, "steps": 0})
        self._lost = 0.0
        self._names.clear()

    @property
    def _usual_round(self) -> float:
        return median(length for length, _ in self._usual)
