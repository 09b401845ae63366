"""Where the time of one step went."""

from __future__ import annotations

import time
from collections.abc import Callable


class StepSpans:
    """Marks on one step; the time between two marks belongs to the former, so that the spans sum to the step exactly.

    Args:
        clock: Seconds, never going back. A device that works asynchronously needs a clock that waits for it.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._spans: dict[str, float] = {}
        self._name = ""
        self._entered = 0.0

    def begin(self, name: str) -> None:
        """Start a new step, in the span `name`."""
        self._spans = {}
        self._name = name
        self._entered = self._clock()

    @property
    def inside(self) -> str:
        """Name of the span that runs; empty outside a step."""
        return self._name

    def enter(self, name: str) -> None:
        """The span `name` begins, and ends the one before it."""
        now = self._clock()
        self._spans[self._name] = self._spans.get(self._name, 0.0) + now - self._entered
        self._name = name
        self._entered = now

    def end(self) -> dict[str, float]:
        """End the step; seconds by span, in the order in which they first ended."""
        self.enter("")
        return self._spans
