"""Reads what a GPU has computed once it is there, without ever waiting for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from headgate.task.observed_steps import Marks
from headgate.task.step_timing import StepSampling
from headgate.torch.rng import cuda_in_use


class DeviceSteps:
    """Times the sampled steps of a script on its GPU, by an event at each mark.

    Attributes:
        in_use: Whether the script uses a GPU whose time can be taken.
    """

    def __init__(self) -> None:
        self.in_use = False
        self._fails = False
        self._sampling = StepSampling()
        self._waiting: deque[tuple[int, Marks]] = deque()

    def next(self, number: int) -> Callable[[], Any] | None:
        """What takes the moments of step `number`, counted from 1; None: it is not sampled."""
        self.in_use = not self._fails and cuda_in_use()
        return _event if self.in_use and self._sampling.takes(number) else None

    def ended(self, number: int, marks: Marks) -> Iterator[tuple[int, dict[str, float]]]:
        """Note the end of a step. Yields number and seconds by span of steps whose events have
        passed by now.
        """
        if len(marks.moments) == len(marks.names) + 1:
            self._waiting.append((number, marks))
        while self._waiting and self._waiting[0][1].moments[-1].query():
            number, marks = self._waiting.popleft()
            try:
                yield number, _spans(marks)
            except RuntimeError:  # events of two GPUs: the times of this process have to do
                self._fails, self.in_use = True, False
                self._waiting.clear()


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _spans(marks: Marks) -> dict[str, float]:
    spans: dict[str, float] = {}
    for name, begin, end in zip(marks.names, marks.moments, marks.moments[1:]):
        spans[name] = spans.get(name, 0.0) + begin.elapsed_time(end) / 1000
    return spans


class LateLoss:
    """The latest loss that was looked at."""

    def __init__(self) -> None:
        self._value: float | None = None
        self._copy: Any = None
        self._copied: Any = None

    def begin(self, loss: Any) -> None:
        """Begin to read a loss. What is no tensor of one number is ignored."""
        if type(loss) is not torch.Tensor or loss.numel() != 1 or not loss.is_floating_point():
            return
        if loss.device.type == "cpu":
            self._value = loss.item()
        elif loss.device.type == "cuda" and self._copied is None:
            self._copy = torch.empty((), dtype=loss.dtype, pin_memory=True)
            self._copy.copy_(loss.detach().reshape(()), non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def take(self) -> float | None:
        """The loss, once, if it has been read."""
        if self._copied is not None and self._copied.query():
            self._value, self._copied = self._copy.item(), None
        value, self._value = self._value, None
        return value
