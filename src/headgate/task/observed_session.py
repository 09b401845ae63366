"""The session of a script that calls none of Headgate's libraries: what hooks see of it drives it
in place of calls.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from headgate.task import Channel, Gate, TaskEnvironment, at_end
from headgate.task.observed_steps import EVALUATION, Marks, ObservedSteps
from headgate.task.overheads import overheads
from headgate.task.session import MeasuredStep, TaskSession
from headgate.task.step_timing import FIRST_STEPS, Step

_TOLD_SECONDS = 1.0
"""Time between two messages with the mean spans of the steps in it."""


class StepSource(Protocol):
    """What sees the script."""

    steps: ObservedSteps

    def first_samples(self) -> int | None: ...

    def off(self) -> None: ...


class HookedSession(TaskSession):
    """Reports steps and spans, and holds the script to its grant. It saves nothing, and never ends
    the script. It ends with the script.
    """

    order: tuple[str, ...] = ("input", "compute", "other", "step")
    """The spans of a step, in the order in which they begin."""

    def __init__(
        self, environment: TaskEnvironment, channel: Channel, observer: StepSource
    ) -> None:
        super().__init__(replace(environment, resume=None), channel)
        self.meter: HookedSession = self
        self.profiled = True  # see `headgate.torch.observer.StepObserver`
        self._observer = observer
        self._gate = Gate(channel, self.settle, self.gpus)
        self._before = self.steps = environment.steps
        self._sums: dict[str, float] = {}
        self._counted = 0  # steps in these sums
        self._told_at = time.monotonic()
        at_end(self._closed)

    # --- implemented by each framework ------------------------------------------------------------

    def settle(self) -> None:
        """Wait for what the last step has started on a device."""
        raise NotImplementedError

    def gpus(self) -> Iterable[int]:
        """Indices of the GPUs that the script trains on, as this process numbers them."""
        raise NotImplementedError

    def counts(self) -> bool:
        """Whether steps can be noted now."""
        return True

    def measured_step(
        self, number: int, samples: int | None, spans: dict[str, float], begins: dict[str, float]
    ) -> MeasuredStep:
        """A step with these spans."""
        return Step(number, samples, spans, begins)

    def report_loss(self) -> None:
        """Report the losses seen so far, as far as they are computed."""
        self._progress.report(None, {})

    def step_begins(self) -> None:
        """Prepare the next step."""

    # --- what is observed -------------------------------------------------------------------------

    def stepped(self, steps: int, marks: Marks) -> None:
        """Note the end of one or more steps of the script."""
        if self._channel.refused is not None:  # another process trains
            self._observer.off()
            return
        if not self.counts():
            return
        is_first = self.steps == self._before
        self.steps += steps
        self._progress.step = self.steps
        samples = self._observer.first_samples() if is_first else marks.samples
        if samples is not None:
            self._progress.samples = (self._progress.samples or 0) + samples
        if not is_first:
            self.measure(steps, marks)
        self._gate.boundary()
        if self._requests.pending:
            self.obey()
        self.report_loss()
        self.step_begins()

    def measure(self, steps: int, marks: Marks) -> None:
        """Add steps to the mean."""
        marks.add_to(self._sums)
        self.evaluated(self._sums)
        self._counted += steps
        self.tell_if_due(marks)

    def evaluated(self, sums: dict[str, float]) -> None:
        """Take the evaluation out of the seconds of spans: it is no part of a step."""
        seconds = sums.pop(EVALUATION, 0.0)
        if seconds:
            overheads.add(EVALUATION, seconds)

    def tell_if_due(self, marks: Marks) -> None:
        """Report the mean if it is due."""
        now = time.monotonic()
        if self.steps - self._before <= FIRST_STEPS or now - self._told_at >= _TOLD_SECONDS:
            self._told_at = now
            self._tell_mean(marks.samples)

    def drop(self) -> None:
        """Forget the steps since the last report."""
        self._sums, self._counted = {}, 0

    def _tell_mean(self, samples: int | None = None) -> None:
        """Report the mean of the steps since the last report."""
        count, sums = self._counted, self._sums
        self.drop()
        if count:
            spans = {name: seconds / count for name, seconds in sums.items()}
            self.tell(self.steps, samples, spans, count)

    def tell(
        self, number: int, samples: int | None, spans: dict[str, float], steps: int = 1
    ) -> None:
        """Report a step, or the mean of several."""
        begins: dict[str, float] = {}
        before = 0.0
        for name in self.order:
            begins[name] = before
            before += spans.get(name, 0.0)
        self.measured(self.measured_step(number, samples, spans, begins), steps)

    def close(self) -> None:
        """Send all pending messages, and what came after the last step."""
        sums: dict[str, float] = {}
        self._observer.steps.take().add_to(sums)
        self._observer.off()
        overheads.add(EVALUATION, sums.get(EVALUATION, 0.0))
        self._tell_mean()
        self.report_loss()
        super().close()

    def told_profile(self, profile: Mapping[str, Any]) -> None:
        """Send the profile of its first steps."""
        self._channel.send({"type": "profile", "profile": profile})

    def warn(self, message: Mapping[str, object]) -> bool:
        """Send a message of the observer's. Returns whether the engine is connected."""
        self._channel.send(message)
        return self._channel.connected

    def _closed(self) -> None:
        with suppress(Exception):  # the script has ended well
            self.close()

    # --- the grant --------------------------------------------------------------------------------

    def obey(self, at: Any = None) -> None:
        """Follow the threads granted. A stop comes as a signal, as to any script."""
        self._follow_threads()

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
