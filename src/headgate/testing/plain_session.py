"""A framework in plain Python, and its session: an example of how to support another framework."""

from __future__ import annotations

import json
import platform
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from headgate.task import Channel, TaskEnvironment, at_end, saving
from headgate.task.saving import ResumeError
from headgate.task.session import StartPoint, TaskSession
from headgate.task.step_timing import Step, StepMeter, Timing, fits, memory_peak_bytes, step_times

Batch = TypeVar("Batch")
_NOW, _OF_EPOCH = "random", "epoch_random"


class PlainSession(TaskSession):
    """The session of a script that trains numbers, with data drawn from Python's own random stream.

    Args:
        environment: This task's identity.
        channel: The channel to the engine.
    """

    meter: StepMeter

    def __init__(self, environment: TaskEnvironment, channel: Channel) -> None:
        super().__init__(environment, channel)
        self.threads = 1
        self._source = environment.mode
        self._weights: list[float] = []
        self._position = 0
        self._skips = 0
        self._epoch_random: Any = random.getstate()
        self._timings: list[Timing] = []
        self.meter = StepMeter(self._timed, lambda done: None, every_step=self.profiling)
        at_end(self.close)

    @classmethod
    def connect(cls, environment: TaskEnvironment) -> PlainSession:
        """The session of this process's script."""
        return cls(environment, Channel.open(environment, "plain", platform.python_version(), None))

    # --- calls of the script ----------------------------------------------------------------------

    def prepare(self, weights: list[float]) -> list[float]:
        """The trained numbers, changed in place to those of the checkpoint to resume from."""
        self._weights = weights
        if self._saved is not None:
            weights[:] = self._saved["weights"]
        return weights

    def batches(self, batches: Sequence[Batch]) -> Iterator[Batch]:
        """The remaining batches of an epoch."""
        left, self._skips = batches[self._skips :], 0
        if len(left) < len(batches):
            self.rejoin()
        for batch in left:
            self.meter.mark("compute")
            yield batch

    def report(self, loss: float) -> None:
        """Report a step."""
        self.steps += 1
        self._position += 1
        self.meter.end(None)
        self._progress.step = self.steps
        self._progress.report(loss, {})
        self._gate.boundary()
        if self.boundary():
            self.obey(self._position)
        self.meter.begin(None)

    # --- implemented for the framework ------------------------------------------------------------

    def begin_epoch(self, epoch: int, epochs: int | None, start: StartPoint) -> None:
        super().begin_epoch(epoch, epochs, start)
        self._position = self._skips = start.place.get("position") or 0
        if start.place and not self._skips:
            self.rejoin()
        elif start.place:
            self._restore(_OF_EPOCH)
        self._epoch_random = random.getstate()
        self.meter.begin(None)

    def rejoin(self) -> None:
        self._restore(_NOW)

    def end_epoch(self, epoch: int) -> str:
        self.meter.drop()
        return super().end_epoch(epoch)

    def read(self, path: str) -> tuple[Any, Mapping[str, Any]]:
        try:
            saved = json.loads(Path(path, "state.json").read_bytes())
            return saved, saved["place"]
        except (OSError, ValueError, KeyError) as error:
            raise ResumeError(
                f"checkpoint {path} cannot be read: {error}; resume from another one"
            ) from error

    def write(self, folder: Path, place: Mapping[str, Any]) -> tuple[Path, int]:
        path = folder / f"step-{self.steps}"
        states = {_NOW: random.getstate(), _OF_EPOCH: self._epoch_random}
        with saving.replacing(path) as partial:
            partial.mkdir()
            (partial / "state.json").write_text(
                json.dumps({"weights": self._weights, "place": place, **states})
            )
        return path, saving.size(path)

    def position(self, why: str, at: int | None, after: int | None) -> dict[str, Any]:
        if after is not None:
            return {"epoch": after + 1, "position": 0}
        return {"epoch": self._epoch, "position": at}

    def state_bytes(self) -> int:
        return 8 * len(self._weights)

    def set_threads(self, threads: int) -> None:
        self.threads = threads

    def profile(self) -> dict[str, Any]:
        times = step_times("cpu", self._timings)
        return {
            "framework": "plain",
            "framework_version": platform.python_version(),
            "source": self._source,
            "parameters_dense": len(self._weights),
            "memory_peak_bytes": memory_peak_bytes(),
            "step_times": times,
            "fits": fits(times),
        }

    def _timed(self, step: Step) -> None:
        self._timings.append(Timing(self.threads, 1, step.compute_seconds))
        self.measured(step)

    def _restore(self, name: str) -> None:
        version, words, gauss = self._saved[name]
        random.setstate((version, tuple(words), gauss))
