"""Times sampled steps. A step goes from one report to the next; only sampled ones are waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from headgate.task import StepSpans
from headgate.task.measured import Step, is_sampled

_wait: Any = jax.block_until_ready


class Meter:
    """Marks of the running step.

    Args:
        deliver: Takes each measured step.

    Attributes:
        steps: Steps that ended so far.
        samples: Samples of the running step, where known.
    """

    def __init__(self, deliver: Callable[[Step], None]) -> None:
        self._deliver = deliver
        self._spans = StepSpans()
        self._open = False
        self._sampled = False
        self.steps = 0
        self.samples: int | None = None

    def begin(self, done: Any, reading: bool) -> None:
        """A step begins.

        Args:
            done: What the step before computed; waited for if this one is sampled.
            reading: Whether the script reads its data by itself, so that the step begins with that.
        """
        was_sampled, number = self._sampled, self.steps + 1
        self._open, self.samples = True, None
        self._sampled = is_sampled(number)
        if self._sampled:
            if not was_sampled:
                _wait(done)
            self._spans.begin("input" if reading else "other")

    def mark(self, name: str) -> None:
        """The span `name` of the running step begins."""
        if self._open and self._sampled:
            self._spans.enter(name)

    def end(self, done: Any) -> None:
        """The running step is over, once `done` is there."""
        if not self._open:
            return
        self._open = False
        self.steps += 1
        if self._sampled:
            _wait(done)
            spans, begins = self._spans.end(), self._spans.begins
            if list(spans) == ["other"]:  # nothing tells its parts
                spans, begins = {"step": spans["other"]}, {"step": begins["other"]}
            self._deliver(Step(self.steps, self.samples, spans, begins))

    def drop(self) -> None:
        """What runs is no step: an epoch ends in it."""
        self._open = self._sampled = False
