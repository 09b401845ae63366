"""The time of steps: of the first, and of two in fifty after them."""

from __future__ import annotations

import time
from collections.abc import Callable

from headgate.task import StepSpans
from headgate.task.measured import Step, is_sampled


class Meter:
    """Marks of the running step; other steps than those that are sampled cost a comparison a mark.

    Args:
        deliver: Takes each measured step.
        every_step: Sample all steps.

    Attributes:
        steps: Steps that ended so far.
        sampled: Whether the running step is measured.
    """

    def __init__(self, deliver: Callable[[Step], None], every_step: bool = False) -> None:
        self._deliver = deliver
        self._every_step = every_step
        self._spans = StepSpans(time.perf_counter)
        self.steps = 0
        self.sampled = False

    def begin(self, span: str) -> None:
        """A step begins, in this span."""
        number = self.steps + 1
        self.sampled = self._every_step or is_sampled(number)
        if self.sampled:
            self._spans.begin(span)

    def mark(self, name: str) -> None:
        """The span `name` of the running step begins."""
        if self.sampled:
            self._spans.enter(name)

    def end(self, samples: int | None) -> None:
        """The running step is over."""
        self.steps += 1
        if self.sampled:
            self.sampled = False
            self._deliver(Step(self.steps, samples, self._spans.end(), self._spans.begins))

    def drop(self) -> None:
        """What began was no step: the end of an epoch came."""
        self.sampled = False
