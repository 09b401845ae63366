"""The session of a script whose steps are compiled calls: `task.observed_calls` drives it."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any, Protocol

from headgate.task.channel import Channel
from headgate.task.environment import TaskEnvironment
from headgate.task.observed_session import HookedSession, StepSource
from headgate.task.observed_steps import Marks

_LATE_SECONDS = 1.0
"""Time after which a loss is read that a step returned."""


class CallBackend(Protocol):
    """What computes."""

    @property
    def name(self) -> str: ...

    def is_traced(self) -> bool:
        """Whether a program is traced, so that nothing is computed."""

    def loops(self) -> bool:
        """Whether a loop of a program is traced."""

    def settle(self, outputs: Any) -> None:
        """Wait until the outputs of a step are computed."""

    def gpus(self) -> Iterable[int]:
        """Indices of the GPUs in use, as this process numbers them."""


class CallSource(StepSource, Protocol):
    """What sees compiled calls.

    Attributes:
        backend: Computed the latest step.
        outputs: What the step that has just ended returned; None between two steps.
    """

    backend: Any
    outputs: Any


def opened(environment: TaskEnvironment, framework: str, observer: CallSource) -> CallSession:
    """Connect, and have the session end with the script."""
    module = sys.modules[framework]
    name = "jax" if framework == "jax" else "keras"
    channel = Channel.open(environment, name, module.__version__, None, observes=True)
    return CallSession(environment, channel, observer)


class CallSession(HookedSession):
    """The session of one process. Its threads are as many as at its start."""

    def __init__(
        self, environment: TaskEnvironment, channel: Channel, observer: CallSource
    ) -> None:
        super().__init__(environment, channel, observer)
        self._calls = observer
        self._late: Any = None
        self._late_since = time.monotonic()

    def measure(self, steps: int, marks: Marks) -> None:
        if marks.are_whole:
            super().measure(steps, marks)
            return
        sums: dict[str, float] = {}
        marks.add_to(sums)
        self.evaluated(sums)

    def tell(
        self, number: int, samples: int | None, spans: dict[str, float], steps: int = 1
    ) -> None:
        if "input" not in spans:  # nothing tells its parts
            spans = {"step": sum(spans.values())}
        super().tell(number, samples, spans, steps)

    def saw_loss(self, loss: Any) -> None:
        """A step returned this loss. It is read later, when it is computed."""
        now = time.monotonic()
        if now - self._late_since >= _LATE_SECONDS:
            late, self._late, self._late_since = self._late, loss, now
            if late is not None:
                self._progress.report(late, {})

    def begin_epoch_of(self, epoch: int, epochs: int | None) -> None:
        """An epoch of a `fit` begins."""
        self._epoch = self._progress.epoch = epoch
        self._progress.epochs = epochs

    def epoch_over(self, loss: Any) -> None:
        """An epoch of a `fit` has ended, with this mean loss."""
        self._late = None
        self._progress.epoch_over(loss, {})

    def settle(self) -> None:
        self._calls.backend.settle(self._calls.outputs)

    def gpus(self) -> Iterable[int]:
        backend: CallBackend = self._calls.backend
        return backend.gpus()
