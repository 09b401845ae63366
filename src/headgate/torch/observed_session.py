"""The session of a PyTorch script that calls none of Headgate's libraries: what `task.observing`
sees drives it in place of calls.
"""

from __future__ import annotations

import time
import weakref
from typing import TYPE_CHECKING, Any

import torch

from headgate.task import Channel, TaskEnvironment
from headgate.task.observed_session import HookedSession
from headgate.task.observed_steps import EVALUATION, Marks
from headgate.task.progress import EVERY_SECONDS
from headgate.torch.device_copies import DeviceCopies
from headgate.torch.late_readings import DeviceSteps, LateLoss
from headgate.torch.meter import Step
from headgate.torch.observed_arithmetic import StepArithmetic
from headgate.torch.rng import cuda_in_use
from headgate.torch.spinning import Spinning

if TYPE_CHECKING:
    from headgate.task.observing import ScriptObserver


def opened(environment: TaskEnvironment, observer: ScriptObserver) -> ObservedSession:
    """Connect, and have the session end with the script."""
    channel = Channel.open(
        environment, "torch", torch.__version__, torch.initial_seed(), observes=True
    )
    return ObservedSession(environment, channel, observer)


class ObservedSession(HookedSession):
    """The session of one process. Its threads follow the grant."""

    order = ("input", "copy", "forward", "backward", "wait", "optimizer", "other")

    def __init__(
        self, environment: TaskEnvironment, channel: Channel, observer: ScriptObserver
    ) -> None:
        super().__init__(environment, channel, observer)
        self._script = observer
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._spinning = Spinning()
        self._threads = torch.get_num_threads()
        self._read_at = time.monotonic()
        self._device = DeviceSteps()
        self._copies = DeviceCopies(observer)
        self._loss = LateLoss()
        self._arithmetic: StepArithmetic | None = StepArithmetic()

    # --- what is observed -------------------------------------------------------------------------

    def optimizer_ended(self, optimizer: Any) -> None:
        """An optimizer has ended its step."""
        self._optimizers.add(optimizer)
        if self._arithmetic is not None and not self._arithmetic.goes_on(self.steps - self._before):
            samples, made = self._progress.samples, self.steps - self._before
            costs = self._arithmetic.costs(self._optimizers, samples and samples / made)
            costs = {**self._arithmetic.facts(self._optimizers), **(costs or {})}
            self._arithmetic = None
            self._channel.send({"type": "costs", "costs": costs})

    def saw_loss(self, loss: Any) -> None:
        """A backward pass begins at this loss."""
        self._script.wants_loss = False
        self._loss.begin(loss)

    def counts(self) -> bool:
        return not (cuda_in_use() and torch.cuda.is_current_stream_capturing())

    def report_loss(self) -> None:
        self._progress.report(self._loss.take(), {})

    def step_begins(self) -> None:
        now = time.monotonic()
        if now - self._read_at >= EVERY_SECONDS:
            self._read_at = now
            self._script.wants_loss = True
        self._observer.steps.moment = self._device.next(self.steps + 1)
        if self._device.in_use:
            self._copies.step_begins()

    def close(self) -> None:
        self._copies.end()
        super().close()

    def tell_if_due(self, marks: Marks) -> None:
        if not self._device.in_use:
            super().tell_if_due(marks)
            return
        self.drop()
        for number, spans in self._device.ended(self.steps, marks):
            spans.pop(EVALUATION, None)
            self.tell(number, marks.samples, spans)

    def measured_step(
        self, number: int, samples: int | None, spans: dict[str, float], begins: dict[str, float]
    ) -> Step:
        return Step(number, samples, spans, begins, loader_workers=self._script.loader_workers)

    # --- the grant --------------------------------------------------------------------------------

    def set_threads(self, threads: int) -> None:
        observer, own = self._script, torch.get_num_threads()
        if not observer.sets_threads or own != self._threads:  # the user has set them
            observer.sets_threads = False
            self._channel.send({"type": "threads", "threads": own})
            return
        if threads != self._threads:
            observer.set_threads(threads)
            self._threads = threads
        super().set_threads(threads)
        self._spinning.allow(self._channel.spin)

    def settle(self) -> None:
        for gpu in self.gpus():
            torch.cuda.synchronize(gpu)

    def gpus(self) -> set[int]:
        if not cuda_in_use():
            return set()
        return {p.device.index for known in self._optimizers for p in _steps(known) if p.is_cuda}


def _steps(optimizer: Any) -> list[Any]:
    """What an optimizer of PyTorch, or of Keras over it, steps."""
    if hasattr(optimizer, "param_groups"):
        return [p for group in optimizer.param_groups for p in group["params"]]
    return [variable.value for variable in optimizer.variables]
