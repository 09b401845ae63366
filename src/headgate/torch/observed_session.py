"""The session of a PyTorch script that calls none of Headgate's libraries: what `task.observing`
sees drives it in place of calls.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from headgate.task import Channel, Gate, TaskEnvironment, at_end
from headgate.task.observed_steps import EVALUATION, Marks
from headgate.task.overheads import overheads
from headgate.task.progress import EVERY_SECONDS
from headgate.task.session import TaskSession
from headgate.task.step_timing import FIRST_STEPS
from headgate.torch.late_readings import DeviceSteps, LateLoss
from headgate.torch.meter import Step
from headgate.torch.observed_arithmetic import StepArithmetic
from headgate.torch.rng import cuda_in_use
from headgate.torch.spinning import Spinning

if TYPE_CHECKING:
    from headgate.task.observing import ScriptObserver

_TOLD_SECONDS = 1.0
"""Time between two messages with the mean spans of the steps in it."""
_ORDER = ("input", "forward", "backward", "optimizer", "other")


def opened(environment: TaskEnvironment, observer: ScriptObserver) -> ObservedSession:
    """Connect, and have the session end with the script."""
    channel = Channel.open(
        environment, "torch", torch.__version__, torch.initial_seed(), observes=True
    )
    session = ObservedSession(replace(environment, resume=None), channel, observer)
    at_end(lambda: _closed(session))
    return session


class ObservedSession(TaskSession):
    """Reports steps and spans, and holds the script to its grant. It saves nothing, and never ends
    the script.
    """

    def __init__(
        self, environment: TaskEnvironment, channel: Channel, observer: ScriptObserver
    ) -> None:
        super().__init__(environment, channel)
        self.meter: ObservedSession = self
        self.profiled = True  # see `StepObserver`
        self._observer = observer
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._gate = Gate(channel, self._settle, self._gpus)
        self._spinning = Spinning()
        self._threads = torch.get_num_threads()
        self._before = self.steps = environment.steps
        self._sums: dict[str, float] = {}
        self._counted = 0  # steps in these sums
        self._told_at = self._read_at = time.monotonic()
        self._device = DeviceSteps()
        self._loss = LateLoss()
        self._arithmetic: StepArithmetic | None = StepArithmetic()

    # --- what is observed -------------------------------------------------------------------------

    def optimizer_ended(self, optimizer: Any) -> None:
        """An optimizer has ended its step."""
        self._optimizers.add(optimizer)
        if self._arithmetic is not None and not self._arithmetic.goes_on(self.steps - self._before):
            samples, made = self._progress.samples, self.steps - self._before
            costs = self._arithmetic.costs(self._optimizers, samples and samples / made)
            self._arithmetic = None
            if costs is not None:
                self._channel.send({"type": "costs", "costs": costs})

    def saw_loss(self, loss: Any) -> None:
        """A backward pass begins at this loss."""
        self._observer.wants_loss = False
        self._loss.begin(loss)

    def stepped(self, steps: int, marks: Marks) -> None:
        """Note the end of one or more steps of the script."""
        if self._channel.refused is not None:  # another process trains
            self._observer.off()
            return
        if cuda_in_use() and torch.cuda.is_current_stream_capturing():
            return
        is_first = self.steps == self._before
        self.steps += steps
        self._progress.step = self.steps
        samples = self._observer.first_samples() if is_first else marks.samples
        if samples is not None:
            self._progress.samples = (self._progress.samples or 0) + samples
        if not is_first:
            self._measure(steps, marks)
        self._gate.boundary()
        if self._requests.pending:
            self.obey()
        now = time.monotonic()
        if now - self._read_at >= EVERY_SECONDS:
            self._read_at = now
            self._observer.wants_loss = True
        self._progress.report(self._loss.take(), {})
        self._observer.steps.moment = self._device.next(self.steps + 1)

    def _measure(self, steps: int, marks: Marks) -> None:
        marks.add_to(self._sums)
        evaluated = self._sums.pop(EVALUATION, 0.0)
        if evaluated:
            overheads.add(EVALUATION, evaluated)
        self._counted += steps
        if self._device.in_use:
            self._sums, self._counted = {}, 0
            for number, spans in self._device.ended(self.steps, marks):
                spans.pop(EVALUATION, None)
                self._tell(number, marks.samples, spans)
            return
        now = time.monotonic()
        if self.steps - self._before <= FIRST_STEPS or now - self._told_at >= _TOLD_SECONDS:
            self._told_at = now
            self._tell_mean(marks.samples)

    def _tell_mean(self, samples: int | None = None) -> None:
        """Report the mean of the steps since the last report."""
        count, sums = self._counted, self._sums
        self._sums, self._counted = {}, 0
        if count:
            spans = {name: seconds / count for name, seconds in sums.items()}
            self._tell(self.steps, samples, spans)

    def _tell(self, number: int, samples: int | None, spans: dict[str, float]) -> None:
        step = Step(number, samples, spans, loader_workers=self._observer.loader_workers)
        before = 0.0
        for name in _ORDER:
            step.begins[name] = before
            before += spans.get(name, 0.0)
        self.measured(step)

    def close(self) -> None:
        """Send all pending messages, and what came after the last step."""
        sums: dict[str, float] = {}
        self._observer.steps.take().add_to(sums)
        self._observer.off()
        overheads.add(EVALUATION, sums.get(EVALUATION, 0.0))
        self._tell_mean()
        self._progress.report(self._loss.take(), {})
        super().close()

    def told_profile(self, profile: Mapping[str, Any]) -> None:
        """Send the profile of its first steps."""
        self._channel.send({"type": "profile", "profile": profile})

    def warn(self, message: Mapping[str, object]) -> bool:
        """Send a message of the observer's. Returns whether the engine is connected."""
        self._channel.send(message)
        return self._channel.connected

    # --- the grant --------------------------------------------------------------------------------

    def obey(self, at: Any = None) -> None:
        """Follow the threads granted. A stop comes as a signal, as to any script."""
        self._follow_threads()

    def set_threads(self, threads: int) -> None:
        observer, own = self._observer, torch.get_num_threads()
        if not observer.sets_threads or own != self._threads:  # the user has set them
            observer.sets_threads = False
            self._channel.send({"type": "threads", "threads": own})
            return
        if threads != self._threads:
            observer.set_threads(threads)
            self._threads = threads
        self._spinning.allow(self._channel.spin)

    def _settle(self) -> None:
        """Wait for what it has started on its GPUs: only a task that is held to a grant does."""
        for gpu in self._gpus():
            torch.cuda.synchronize(gpu)

    def _gpus(self) -> set[int]:
        if not cuda_in_use():
            return set()
        groups = (group for known in self._optimizers for group in known.param_groups)
        return {p.device.index for group in groups for p in group["params"] if p.is_cuda}

    # --- it is part of no plan, and saves nothing -------------------------------------------------

    def planned(self) -> Mapping[str, Any]:
        return {}

    def read(self, path: str) -> tuple[Any, Mapping[str, Any]]:
        raise NotImplementedError

    def write(self, folder: Path, place: Mapping[str, Any]) -> tuple[Path, int]:
        raise NotImplementedError

    def position(self, why: str, at: Any, after: int | None) -> dict[str, Any] | None:
        return None

    def profile(self) -> dict[str, Any] | None:
        return None


def _closed(session: ObservedSession) -> None:
    with suppress(Exception):  # the script has ended well
        session.close()
