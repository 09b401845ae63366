"""A task of an attempt while it lives."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from headgate.forecast.core_need import InputPart
from headgate.hub.messages import OPEN, RunningMean
from headgate.model.events import StepPace
from headgate.model.identifiers import TaskName
from headgate.model.progress import Progress
from headgate.output.failures import FailureReader
from headgate.output.patterns import ProgressReader
from headgate.sampling.columns import Column

_SHOWN: tuple[Column, ...] = (
    "cpu_cores",
    "memory_bytes",
    "gpu_busy",
    "gpu_memory_bytes",
    "net_in",
    "net_out",
)
SILENT_SECONDS = 20.0
"""Time in which an observed task may print its first loss, before others count."""


@dataclass(slots=True)
class ObservedTask:
    """The progress of a task whose steps are seen in its process, and whose losses in its output.

    If it prints none for a while, its losses are those that its backward passes begin at.
    """

    _step: int | None = None
    _samples: int | None = None
    _prints_loss: bool = False
    _silent_until: float | None = None

    def counted(self, progress: Progress, now: float) -> Progress:
        """A report of its process, at `now` in seconds of any clock."""
        self._step, self._samples = progress.step, progress.samples
        if self._silent_until is None:
            self._silent_until = now + SILENT_SECONDS
        hides = self._prints_loss or now < self._silent_until
        return replace(progress, loss=None) if hides else progress

    def printed(self, progress: Progress) -> Progress:
        """A report of its output, with the steps that its process counts."""
        self._prints_loss = self._prints_loss or progress.loss is not None
        if self._step is None:
            return progress
        steps = progress.steps
        if steps is not None:  # in all, as the script counts
            steps = round(steps * self._step / progress.step) if progress.step else None
        return replace(progress, step=self._step, samples=self._samples, steps=steps)


@dataclass(slots=True)
class LiveTask:
    """The present state of a task; `state` is `running`, `joining`, `leaving` or `ended`."""

    name: TaskName
    node: str
    reader: ProgressReader
    reader_failed: bool = False
    reports_itself: bool = False
    observed: ObservedTask | None = None  # None: its script reports itself, or prints all
    complaints: int = 0  # warnings about its invalid messages
    failure: FailureReader = field(default_factory=FailureReader)
    state: str = "running"
    began: float = field(default_factory=time.time)  # seconds since the epoch
    stated_threads: int | None = None  # threads stated by its job
    threads: int = 0
    granted_threads: int = 0  # threads that it would have if it could change them
    follows_threads: bool = False
    spin: bool = True
    entitled_cores: float = 0.0
    idle: bool = False
    gpus: tuple[int, ...] = ()  # reported by it
    held_gpus: tuple[int, ...] = ()  # on which it holds memory
    gate: Mapping[str, object] = field(default_factory=lambda: OPEN)  # its own gate
    # the gate that was sent to it
    held_by: Mapping[str, object] = field(default_factory=lambda: OPEN)
    usage: Mapping[Column, float] | None = None
    input_part: InputPart = field(default_factory=InputPart)
    mean: RunningMean = field(default_factory=RunningMean)

    def pace(self) -> StepPace | None:
        """What its steps wait for, by its last reading and its spans; None: unknown."""
        used, input_part = self.usage or {}, self.input_part.value
        # Held between its steps, it uses fewer cores for another reason.
        if input_part is None or "cpu_waiting" not in used or "cores" in self.held_by:
            return None
        return StepPace(
            used["cpu_waiting"], used.get("main_ready", 1.0), input_part, used.get("gpu_busy", 0.0)
        )

    def grant_threads(self, threads: int) -> None:
        """Grant this many threads. A task without a library of Headgate's keeps its initial
        threads.
        """
        self.granted_threads = threads
        if self.stated_threads is not None:
            self.threads = self.stated_threads
        elif self.follows_threads or not self.threads:
            self.threads = threads

    def snapshot(self) -> dict[str, Any]:
        """What a live view shows of the task."""
        used = self.usage or {}
        return {
            "task": self.name,
            "node": self.node,
            "state": self.state,
            "threads": self.threads,
            "entitled_cores": self.entitled_cores,
            "gpus": list(self.held_gpus or self.gpus),
            **{column: used.get(column) for column in _SHOWN},
        }
