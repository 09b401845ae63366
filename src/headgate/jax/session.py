"""One JAX script under an engine: its step boundaries, what happens there, and what the engine is
told.

A report is a step boundary: the script has dispatched a step and reports the state after it. The
end of an epoch is one too.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import jax
import numpy as np

from headgate.jax import checkpoints, joining, recording
from headgate.jax.costs import Costs
from headgate.jax.placing import Placing, length
from headgate.jax.stopping import StopTogether
from headgate.jax.training_state import TrainingState
from headgate.task import Channel, Gate, TaskEnvironment, at_end
from headgate.task.saving import CheckpointError
from headgate.task.scalars import traced
from headgate.task.session import StartPoint, TaskSession
from headgate.task.step_timing import FIRST_STEPS, Step, StepMeter
from headgate.task.sync_points import SyncPoints

_wait: Any = jax.block_until_ready
_MOST_AHEAD = 1000
"""Most reports with losses that are not computed yet. Past it, the session waits for the oldest."""


@dataclass(frozen=True)
class _Report:
    step: int
    said: Any
    epoch: int | None
    samples: int | None
    loss: Any
    metrics: Mapping[str, Any]

    def is_ready(self) -> bool:
        values: tuple[Any, ...] = (self.said, self.loss, *self.metrics.values())
        return all(map(_is_computed, values))


class Session(TaskSession):
    """The session of a JAX script that runs under an engine.

    Raises:
        JoinError: The call comes too late, or JAX cannot run the job's plan.
    """

    meter: StepMeter

    def __init__(self, environment: TaskEnvironment, channel: Channel) -> None:
        super().__init__(environment, channel)
        self._placing = Placing()
        self._samples = self._progress.samples
        self._trained: TrainingState | None = None
        self._before: list[TrainingState] = []  # what was trained before it
        self._ends: list[dict[str, Any]] = list((self._resume or {}).get("ends", ()))
        self._reports: deque[_Report] = deque()
        self._passes = Passes()
        self._reading = False
        self._dealt = 0
        self._deals = self._dropped = 0
        self._fed = False
        self._done: list[int] | None = None
        self._compare = True
        self._rng: dict[str, Any] = {}
        self._costs = Costs(environment.mode, self._placing)
        self.meter = StepMeter(self._measured, _wait)
        self._computed: Any = ()
        self._gate = Gate(channel, lambda: _wait(self._computed), self._placing.gpus)
        if self.plan:
            self._requests, self._sync_points = (
                StopTogether(channel),
                SyncPoints(channel, self.script_position),
            )
            self._sync_points.watch(self.script_position)
        at_end(self.close)

    def join(self) -> str:
        if not self.plan:
            joining.check_early()
        threads = self._channel.take_threads()
        if threads is not None:
            joining.set_threads(threads)
        if self.plan:
            joining.join(self._channel, self.plan)
        return ""

    # --- calls of the script ----------------------------------------------------------------------

    def prepare(self, parts: Sequence[Any]) -> tuple[Any, ...]:
        """The parts of the state, from the checkpoint or worker 0, on all devices.

        A `prepare` within an epoch replaces the parts of the one before. Between loops over epochs
        it begins another training, as of the next fold.

        Raises:
            ResumeError: The checkpoint does not fit.
        """
        former, again = self._trained, self._trained is not None and self._epoch is not None
        if former is not None and not again:
            self._before.append(former)
        first = 0
        if former is not None:
            first = former.first if again else former.end
        self._trained = trained = TrainingState(parts, first)
        resume = self._resume
        if resume is not None and not again and trained.is_in(self._saved):
            trained.loaded(self._saved, resume.get("kinds", {}), resume.get("prepared", {}))
            self._saved = trained.without(self._saved)
        elif not again:
            if resume is not None:
                self.note(
                    "what the script prepares now came after the checkpoint was taken: it "
                    "starts afresh"
                )
            if self.plan:
                trained.take_first(self._placing)
        if self.recorder is not None:
            recording.prepared(self.recorder, trained)
        return trained.with_values(lambda name, leaf: self._placing.replicate(leaf))

    def shard(self, batch: Any, loose: bool = True) -> Any:
        """Divide a global batch between all devices."""
        self._drop()
        self._deals += 1
        self._fed = True
        if loose:
            self.meter.mark("input")
            self._reading = self._passes.loose = True
        if self._compare:
            self._compare = False
            self._placing.compare(batch)
        self._costs.saw_batch(batch)
        size = length(batch)
        if size is not None:
            self._dealt += size
            self.meter.samples = (self.meter.samples or 0) + self._placing.part(size)
        placed = self._placing.shard(batch)
        self.meter.mark("compute")
        return placed

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches of a pass, each divided between all devices."""
        self._costs.trains_on(batches)
        try:
            yield from self._passes.over(batches, self._deal)
        finally:
            self._drop()

    def begin(self) -> StartPoint | None:
        start = super().begin()
        if start is None and self._phase < len(self._ends):
            _restore_rng(self._ends[self._phase])
        if self.plan and start is not None and not start.place:
            _restore_rng(_unpacked(*self._placing.from_first([_packed(_captured_rng())])))
        return start

    def left(self) -> None:
        super().left()
        self._ends[self._phase :] = [_captured_rng()]

    def rejoin(self) -> None:
        if self._resume is not None:
            _restore_rng(self._resume["rng"])

    def begin_epoch(self, epoch: int, epochs: int | None, start: StartPoint) -> None:
        super().begin_epoch(epoch, epochs, start)
        if start.place:
            self.rejoin()
        skips = start.place["passes"] if start.place else []
        self._passes.enter_epoch(skips)
        self._done = list(skips) or None
        self._compare = True
        self._rng = _captured_rng()
        self._costs.begins()
        self._begin_step(())

    def report(self, loss: Any, step: int | None, metrics: Mapping[str, Any], state: Any) -> None:
        if any(map(traced, (loss, *metrics.values()))):
            self._progress.report(loss, metrics)  # which says so
            return
        done = (loss, metrics, state)
        if isinstance(step, jax.Array):
            step = step.copy()  # part of a state whose memory the next step may need
        if loss is not None or state is not None:
            self.steps += 1
            self._fed = False
            self.meter.end(done, more=step)
        if state is not None:
            if self._trained is None:
                raise RuntimeError("report(state=...) before prepare(): prepare the state first")
            self._trained.came_to(state)
        if self._trained is not None and (loss is not None or state is not None):
            self._trained.stepped()
            if self.recorder is not None:
                recording.stepped(self.recorder, self.steps, self._epoch, self._trained)
        self._done = self._passes.done()
        if self._dealt:
            self._samples, self._dealt = (self._samples or 0) + self._dealt, 0
        self._reports.append(_Report(self.steps, step, self._epoch, self._samples, loss, metrics))
        self._tell()
        if self.profiling and self.meter.steps >= FIRST_STEPS:
            self.end()
        self._computed = loss, metrics  # not the state, whose memory the next step may need
        self._gate.boundary()
        if self.boundary():
            self.obey()
        self._begin_step(done)

    def _begin_step(self, done: Any) -> None:
        # the script reads its data itself
        self.meter.begin(done, "input" if self._reading else "other")

    def like(self, value: Any, number: float) -> Any:
        return (
            jax.numpy.asarray(number, value.dtype)
            if isinstance(value, (jax.Array, np.ndarray))
            else number
        )

    @property
    def rank(self) -> int:
        return jax.process_index()

    def end_epoch(self, epoch: int) -> str:
        self.meter.drop()
        return super().end_epoch(epoch)

    def _deal(self, read: Callable[[], Any]) -> Any:
        self.meter.mark("input")
        self._reading = False
        return self.shard(read(), loose=False)

    # --- several workers --------------------------------------------------------------------------

    def script_position(self) -> dict[str, Any]:
        return {**super().script_position(), "rounds": self._deals, "dropped": self._dropped}

    def settings(self) -> list[dict[str, float]]:
        return [] if self._trained is None else [self._trained.sizes()]

    def _drop(self) -> None:
        """The batch dealt last is finished. If no step was reported, it was dropped."""
        self._dropped += self._fed
        self._fed = False

    def boundary(self) -> bool:
        if isinstance(self._requests, StopTogether):
            self._requests.passed()
        return super().boundary()

    def defers(self, epoch: int) -> bool:
        epochs = self._progress.epochs
        goes_on = not self.plan and epochs is not None and epoch + 1 < epochs
        return goes_on and self._trained is not None and self._trained.changed

    def obey(self, at: Any = None) -> None:
        if self._trained is not None and not self.plan and self._trained.changed:
            # a report between two steps, while the model holds other values than those trained
            return
        super().obey(at)

    # --- checkpoints ------------------------------------------------------------------------------

    def saves_inside(self, at: Any) -> bool:
        if self._epoch is None or self._done is not None:
            return True
        self.note(
            "batches do not come from headgate.jax.batches: a checkpoint is saved at the end "
            "of the epoch"
        )
        return False

    @property
    def _all(self) -> list[TrainingState]:
        return [*self._before, *([] if self._trained is None else [self._trained])]

    def state_bytes(self) -> int | None:
        return self._trained.bytes if self._trained is not None and self._trained.known else None

    def read(self, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
        return checkpoints.read(path)

    def write(self, folder: Path, place: Mapping[str, Any]) -> tuple[Path, int]:
        if self._trained is None:
            raise CheckpointError("the script does not call prepare()")
        arrays: dict[str, Any] = {}
        for trained in self._all:
            if trained.known or trained is self._trained:
                arrays |= trained.arrays()
            else:
                self.note(
                    "the state of a finished training is gone: a resume will not have its result"
                )
        return checkpoints.write(folder, self.steps, arrays, place)

    def position(self, why: str, at: Any, after: int | None) -> dict[str, Any] | None:
        if self.rank or (self._trained is None and why != "request"):
            return None
        epoch, done = self._epoch, self._done
        if after is not None and done == self._passes.done():
            epoch, done, self._rng = after + 1, [], _captured_rng()
        if epoch is None:
            self.note(
                "the script does not use headgate.jax.epochs: a resume starts its epochs again"
            )
        elif done is None:
            self.note(
                "batches do not come from headgate.jax.batches: a resume starts the epoch again"
            )
        return {
            "samples": self._samples,
            "epoch": epoch,
            "position": None if done is None or epoch is None else sum(done),
            "passes": done or [],
            "rng": self._rng or _captured_rng(),
            "kinds": {name: kind for state in self._all for name, kind in state.kinds().items()},
            "prepared": {
                name: form for state in self._all for name, form in state.prepared.items()
            },
            "ends": self._ends,
        }

    # --- messages to the engine -------------------------------------------------------------------

    def _measured(self, step: Step) -> None:
        self._costs.stepped(step)
        self.measured(step)

    def profile(self) -> dict[str, Any] | None:
        return None if self.rank else self._costs.profile(self._trained)

    def flush(self, wait: bool = False) -> None:
        self._tell(wait)
        super().flush()

    def _tell(self, wait: bool = False) -> None:
        """Pass on the reports whose values are computed. Never wait in the middle of training."""
        while self._reports and (
            wait or len(self._reports) > _MOST_AHEAD or self._reports[0].is_ready()
        ):
            report = self._reports.popleft()
            self._progress.step, self._progress.said = report.step, report.said
            self._progress.epoch = report.epoch
            self._progress.samples = report.samples
            self._progress.report(report.loss, report.metrics)


def _is_computed(value: Any) -> bool:
    """Whether a value is computed, so that reading it does not block."""
    try:
        return bool(value.is_ready())
    except (AttributeError, RuntimeError):  # no array, or one whose memory was given away
        return True


def _captured_rng() -> dict[str, Any]:
    """The states of Python's and NumPy's random streams, which may shuffle data, as plain
    values.
    """
    version, state, gauss = random.getstate()
    kind, words, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(state), gauss],
        "numpy": [str(kind), [int(word) for word in words], position, has_gauss, cached],
    }


def _restore_rng(state: Mapping[str, Any]) -> None:
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(tuple(state["numpy"]))


def _packed(state: Mapping[str, Any]) -> Any:
    """Random states as one array, without the spare normal number that either stream may keep."""
    return np.array([*state["python"][1], *state["numpy"][1], state["numpy"][2]], np.uint32)


def _unpacked(words: Any) -> dict[str, Any]:
    numbers = [int(word) for word in words]
    captured_rng = _captured_rng()
    version, state, _ = captured_rng["python"]
    count = len(state)
    return {
        "python": [version, numbers[:count], None],
        "numpy": [captured_rng["numpy"][0], numbers[count:-1], numbers[-1], 0, 0.0],
    }


class Passes:
    """The passes over data in the current epoch.

    Attributes:
        counts: Batches that each pass gave, in the order in which the passes began.
        loose: Whether a batch of this epoch came another way, so that the counts do not locate the
            script.
    """

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.loose = False
        self._skips: list[int] = []

    def enter_epoch(self, skips: Sequence[int]) -> None:
        """Begin an epoch. Its first passes skip `skips` batches."""
        self.counts = []
        self.loose = False
        self._skips = list(skips)

    def done(self) -> list[int] | None:
        """Batches that each pass gave; None if they do not locate the script."""
        return None if self.loose or not self.counts else list(self.counts)

    def over(
        self, batches: Iterable[Any], deal: Callable[[Callable[[], Any]], Any]
    ) -> Iterator[Any]:
        """The batches of one pass.

        Args:
            deal: Called with a function that reads the next batch. Returns what the script gets.
        """
        number = len(self.counts)
        skip = self._skips[number] if number < len(self._skips) else 0
        self.counts.append(skip)
        counts = self.counts  # those of this epoch, also when it ends in the middle of the pass
        if isinstance(batches, Sequence):
            inner: Iterator[Any] = (batches[index] for index in range(skip, len(batches)))
        else:
            inner = iter(batches)
            next(islice(inner, skip, skip), None)
        while True:
            try:
                batch = deal(lambda: next(inner))
            except StopIteration:
                return
            counts[number] += 1
            yield batch
