"""How a job of a run stands now."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from headgate.events import ENDED, Checkpoint, JobState, Progress
from headgate.jobs import Job
from headgate.telemetry.patterns import ProgressReader

_LOSSES = 128


@dataclass(slots=True)
class LiveJob:
    """How a job stands now."""

    spec: Job
    position: int
    submitted: float
    reader: ProgressReader
    reader_failed: bool = False
    last_line: str = ""  # that an attempt printed
    state: JobState = "waiting"
    reason: str = ""
    exit_code: int | None = None
    started: float | None = None
    ended: float | None = None
    attempt: int = 0
    plan: str | None = None
    profile: str | None = None
    profile_key: str = ""  # of the script as it was when the job was handed in
    step: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    loss: float | None = None
    losses: list[float] = field(default_factory=list)
    losses_each: int = 1  # losses that one entry of `losses` is the mean of
    losses_open: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    not_a_number: bool = False
    reports_itself: bool = False
    threads: int = 0
    entitled_cores: float = 0.0
    cpu_cores: float | None = None
    memory_bytes: float | None = None
    checkpoint: Checkpoint | None = None

    def mark(self, state: JobState, reason: str, exit_code: int | None, now: float) -> None:
        """Take note of a new state, at `now` on the run's clock."""
        self.state, self.reason = state, reason
        if exit_code is not None:
            self.exit_code = exit_code
        if state == "running" and self.started is None:
            self.started = now
        if state in ENDED:
            self.ended = now

    def begin(self, attempt: int) -> None:
        """Take note that an attempt starts: its output is read anew."""
        self.attempt = attempt
        self.reader, self.reader_failed = ProgressReader(self.spec.progress), False
        self.reports_itself = self.not_a_number = False

    def progressed(self, progress: Progress) -> str | None:
        """Take note of what the job reported; what people should be warned of, once."""
        for name in ("step", "epoch", "epochs"):
            if (value := getattr(progress, name)) is not None:
                setattr(self, name, value)
        if progress.loss is not None:
            self.loss = progress.loss
            self._keep(progress.loss)
        self.metrics |= progress.metrics
        if progress.loss is None or math.isfinite(progress.loss) or self.not_a_number:
            return None
        self.not_a_number = True
        where = f" at step {self.step}" if self.step is not None else ""
        return f"its loss is no longer a number: {progress.loss}{where}"

    def _keep(self, loss: float) -> None:
        """Keep a loss for the sparkline: the whole course in at most `_LOSSES` means of ever more losses each."""
        if not math.isfinite(loss):
            return
        self.losses_open.append(loss)
        if len(self.losses_open) < self.losses_each:
            return
        self.losses.append(sum(self.losses_open) / len(self.losses_open))
        self.losses_open.clear()
        if len(self.losses) == _LOSSES:
            self.losses = [(a + b) / 2 for a, b in zip(self.losses[::2], self.losses[1::2], strict=True)]
            self.losses_each *= 2

    def snapshot(self, name: str) -> dict[str, Any]:
        """What a live view shows of it."""
        return {
            "name": name,
            "state": self.state,
            "reason": self.reason,
            "exit_code": self.exit_code,
            "started": self.started,
            "ended": self.ended,
            "attempt": self.attempt,
            "step": self.step,
            "epoch": self.epoch,
            "epochs": self.epochs,
            "loss": None if self.loss is None or not math.isfinite(self.loss) else self.loss,
            "losses": self.losses,
            "metrics": self.metrics,
            "threads": self.threads,
            "entitled_cores": self.entitled_cores,
            "cpu_cores": self.cpu_cores,
            "memory_bytes": self.memory_bytes,
        }
