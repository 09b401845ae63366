"""Divides the time of a step into spans."""

from __future__ import annotations

import time
from collections.abc import Callable


class StepSpans:
    """Marks within one step. The time between two marks belongs to the first, so that the spans add
    up to the step exactly.

    Args:
        clock: Seconds of a monotonic clock. For an asynchronous device, the clock has to wait for
            it.

    Attributes:
        begins: Seconds from the step's start to the first start of each span.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._spans: dict[str, float] = {}
        self._name = ""
        self._began = 0.0
        self._entered = 0.0
        self._carved = 0.0
        self.begins: dict[str, float] = {}

    def begin(self, name: str) -> None:
        """Start a new step, in the span `name`."""
        self._spans = {}
        self._name = name
        self._carved = 0.0
        self._began = self._entered = self._clock()
        self.begins = {name: 0.0}

    @property
    def inside(self) -> str:
        """Name of the running span; empty outside of a step."""
        return self._name

    def enter(self, name: str) -> None:
        """End the running span, and begin the span `name`."""
        now = self._clock()
        self._spans[self._name] = (
            self._spans.get(self._name, 0.0) + now - self._entered - self._carved
        )
        self._name = name
        self._entered = now
        self._carved = 0.0
        if name:
            self.begins.setdefault(name, now - self._began)

    def carve(self, name: str, begin: float, seconds: float) -> None:
        """Move `seconds` of the running span, from clock time `begin` on, to the span `name`."""
        self._spans[name] = self._spans.get(name, 0.0) + seconds
        self._carved += seconds
        self.begins.setdefault(name, begin - self._began)

    def leave_out(self, seconds: float) -> None:
        """Take `seconds` out of the running span, and so out of the step."""
        self._carved += seconds

    def since_begin(self, moment: float) -> float:
        """Seconds from the step's start to `moment` by the clock."""
        return moment - self._began

    def end(self) -> dict[str, float]:
        """End the step. Returns seconds by span, in the order in which they first ended."""
        self.enter("")
        return self._spans
