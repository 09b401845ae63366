"""One training script under an engine: where its steps end, what is done there, and what is told to the engine.

A step boundary is a report: the script has dispatched a step, and its state is the one after it. The end of an epoch is
one too.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from headgate.jax import checkpoints, joining
from headgate.jax.costs import Costs
from headgate.jax.meter import Meter
from headgate.jax.passes import Passes
from headgate.jax.placing import Placing, length
from headgate.jax.stopping import StopTogether
from headgate.jax.trained import Trained
from headgate.task import Channel, Gate, ProgressReporter, Saver, Stop, TaskEnvironment, at_end, plan_of
from headgate.task.measured import FIRST_STEPS
from headgate.task.meetings import Meetings
from headgate.task.progress import whole
from headgate.task.saving import restored
from headgate.task.values import traced

_FLUSH_SECONDS = 2.0
_wait: Any = jax.block_until_ready
_MOST_AHEAD = 1000
"""Reports whose losses are not computed yet past which the oldest is waited for."""


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
        return all(map(_is_there, values))


class Session:
    """The state of a script that runs under an engine.

    Raises:
        JoinError: It comes too late, or JAX cannot run the job's plan.
    """

    def __init__(self, environment: TaskEnvironment, channel: Channel) -> None:
        self._channel = channel
        self._profiling = environment.mode == "profile"
        plan = {} if self._profiling else plan_of(channel)
        if not plan:
            joining.check_early()
        threads = channel.take_threads()
        if threads is not None:
            joining.set_threads(threads)
        if plan:
            joining.join(channel, plan)
        self._stopping = StopTogether(channel) if plan else None
        self._meetings = Meetings(channel, self._standing) if plan else None
        self._placing = Placing()
        self._saved: dict[str, Any] = {}
        self._resume: dict[str, Any] | None = None
        if environment.resume is not None and not self._profiling:
            self._saved, self._resume = restored(environment.resume, checkpoints.read, channel.send)
        self._progress = ProgressReporter(channel.send)
        self._saver = Saver(environment.checkpoints, channel.send)
        self._steps: int = self._resume["step"] if self._resume else 0
        self._samples: int | None = self._resume["samples"] if self._resume else None
        self._trained: Trained | None = None
        self._reports: deque[_Report] = deque()
        self._passes = Passes()
        self._reading = False
        self._dealt = 0
        self._deals = self._dropped = 0
        self._fed = False
        self._done: list[int] | None = None
        self._phase = -1
        self._epoch: int | None = None
        self._compare = True
        self._rng: dict[str, Any] = {}
        self._ended = False
        self._noted: set[str] = set()
        self._costs = Costs(
            environment.mode, lambda: self._trained, lambda: (self._steps, self._epoch), self._placing, channel.send
        )
        self._meter = Meter(self._costs.stepped)
        self._computed: Any = ()
        self._gate = Gate(channel, lambda: _wait(self._computed), self._placing.gpus)
        if self._meetings is not None:
            self._meetings.watch(self._standing)
        at_end(self.close)

    # --- what the script calls ---------------------------------------------------------------------------------------

    def prepare(self, parts: Sequence[Any]) -> tuple[Any, ...]:
        """The parts of the state, from the checkpoint or worker 0, on all devices.

        Raises:
            ResumeError: The checkpoint does not fit.
            RuntimeError: It was called before.
        """
        if self._trained is not None:
            raise RuntimeError("prepare() was called twice; give it all parts of the state at once: prepare(a, b)")
        self._trained = trained = Trained(parts)
        if self._resume is not None:
            trained.loaded(self._saved, self._resume.get("kinds", {}), self._resume.get("prepared", {}))
            self._saved = {}
        elif self._stopping is not None:
            trained.take_first(self._placing)
        return trained.with_values(lambda name, leaf: self._placing.replicate(leaf))

    def shard(self, batch: Any, loose: bool = True) -> Any:
        """A global batch, divided between all devices."""
        self._drop()
        self._deals += 1
        self._fed = True
        if loose:
            self._meter.mark("input")
            self._reading = self._passes.loose = True
        if self._compare:
            self._compare = False
            self._placing.compare(batch)
        self._costs.saw_batch(batch)
        size = length(batch)
        if size is not None:
            self._dealt += size
            self._meter.samples = (self._meter.samples or 0) + self._placing.part(size)
        placed = self._placing.shard(batch)
        self._meter.mark("compute")
        return placed

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches of a pass, each divided between all devices."""
        self._costs.trains_on(batches)
        try:
            yield from self._passes.over(batches, self._deal)
        finally:
            self._drop()

    def epochs(self, count: int) -> Iterator[int]:
        """Epoch numbers, from the one to resume on; saves and obeys between them."""
        self._phase += 1
        self._progress.epochs = whole(count, 0)
        start, resume = 0, None
        if self._resume is not None and self._resume["phase"] is not None:
            if self._phase < self._resume["phase"]:
                return
            if self._phase == self._resume["phase"]:
                start, resume = self._resume["epoch"], self._resume
                if start >= count:
                    self.note(f"the checkpoint is at the end of epoch {start} of {count}: nothing is left to train")
        if resume is not None:
            _restore_rng(resume["rng"])
        elif self._stopping is not None:
            _restore_rng(_unpacked(*self._placing.from_first([_packed(_captured_rng())])))
        try:
            for epoch in range(start, count):
                self._enter(epoch, [] if resume is None else resume["passes"])
                resume = None
                yield epoch
                self._end_epoch(epoch)
        finally:
            self._epoch = None
            if self._meetings is not None:
                self._meetings.left()

    def report(self, loss: Any, step: int | None, metrics: Mapping[str, Any], state: Any) -> None:
        if any(map(traced, (loss, *metrics.values()))):
            self._progress.report(loss, metrics)  # which says so
            return
        done = (loss, metrics, state)
        if loss is not None or state is not None:
            self._steps += 1
            self._fed = False
            self._meter.end(done)
        if state is not None:
            if self._trained is None:
                raise RuntimeError("report(state=...) before prepare(): prepare the state first")
            self._trained.came_to(state)
        self._done = self._passes.done()
        if self._dealt:
            self._samples, self._dealt = (self._samples or 0) + self._dealt, 0
        if isinstance(step, jax.Array):
            step = step.copy()  # part of a state whose memory the next step may need
        self._reports.append(_Report(self._steps, step, self._epoch, self._samples, loss, metrics))
        self._tell()
        if self._profiling and self._meter.steps >= FIRST_STEPS:
            self._end()
        self._computed = loss, metrics  # not the state, whose memory the next step may need
        self._gate.boundary()
        if self._stops_here():
            self._save(self._channel.stopping or "stop")
            self._end()
        if self._channel.pending and self._may_save():
            self._save("request")
        self._meter.begin(done, self._reading)

    def mean(self, value: Any) -> Any:
        """The mean of a number over the workers; of an array's, an array."""
        if self._meetings is None:
            return value
        mean = self._met(self._meetings.mean(float(value)))
        return jax.numpy.asarray(mean, value.dtype) if isinstance(value, (jax.Array, np.ndarray)) else mean

    def agree(self, flag: Any) -> Any:
        """Whether the flag holds in any worker."""
        return flag if self._meetings is None else self._met(self._meetings.agree(bool(flag)))

    @property
    def rank(self) -> int:
        """This worker's index."""
        return jax.process_index()

    def close(self) -> None:
        """Send what is left; called when the interpreter ends."""
        if self._meetings is not None:
            self._meetings.close(None if self._ended or self._channel.stopping else self._standing())
        self._tell(wait=True)
        self._progress.flush()
        if self._meter.steps:
            self._costs.tell()
        self._channel.flush(_FLUSH_SECONDS)
        if self._meetings is not None:
            self._meetings.exit_failed()

    # --- epochs and batches ------------------------------------------------------------------------------------------

    def _enter(self, epoch: int, skips: Sequence[int]) -> None:
        self._epoch = epoch
        self._passes.enter_epoch(skips)
        self._done = list(skips) or None
        self._compare = True
        self._rng = _captured_rng()
        self._costs.begins()
        self._meter.begin((), self._reading)

    def _end_epoch(self, epoch: int) -> None:
        self._meter.drop()
        self._gate.pause()
        self._tell()
        if self._meetings is not None:
            self._meetings.compare([] if self._trained is None else [self._trained.sizes()])
        stops = self._stops_here()
        asked = self._channel.take_checkpoint()
        known = self._trained is not None and self._trained.known
        if stops or asked or (known and self._trained is not None and self._saver.due(self._trained.bytes)):
            complete = self._done == self._passes.done()
            if complete:
                self._rng = _captured_rng()
            why = (self._channel.stopping or "stop") if stops else "request" if asked else "epoch"
            self._save(why, after=epoch if complete else None)
        if stops:
            self._end()

    def _deal(self, read: Callable[[], Any]) -> Any:
        self._meter.mark("input")
        self._reading = False
        return self.shard(read(), loose=False)

    # --- several workers ---------------------------------------------------------------------------------------------

    def _standing(self) -> dict[str, Any]:
        counts = {"rounds": self._deals, "step": self._steps, "dropped": self._dropped}
        return {**counts, "phase": self._phase, "epoch": self._epoch}

    def _drop(self) -> None:
        """The batch that was dealt last is done with: no step was made of it where none was reported."""
        self._dropped += self._fed
        self._fed = False

    def _met(self, result: Any) -> Any:
        """The result of a meeting. Ends this worker where there is none, because the job ends."""
        if result is None:
            self._save(self._channel.stopping or "stop")
            self._end()
        return result

    # --- requests ----------------------------------------------------------------------------------------------------

    def _stops_here(self) -> bool:
        if self._stopping is not None:
            return self._stopping.here()
        return bool(self._channel.stopping)

    def _may_save(self) -> bool:
        """Whether a checkpoint was asked for, and this is where to save it."""
        self._channel.take_threads()  # those of XLA stay as many as they were at the start
        if self._epoch is not None and self._done is None:
            self.note("batches do not come from headgate.jax.batches: a checkpoint is saved at the end of the epoch")
            return False
        return self._channel.take_checkpoint()

    def _end(self) -> None:
        self._ended = True
        self._tell(wait=True)
        self._progress.flush()
        self._costs.tell()
        self._channel.flush(_FLUSH_SECONDS)
        raise Stop

    # --- checkpoints -------------------------------------------------------------------------------------------------

    def _save(self, why: str, after: int | None = None) -> None:
        """Save the state that was reported last.

        Args:
            after: The epoch that is complete in it; None in the middle of one.
        """
        if self._ended or self._profiling or jax.process_index():
            return
        if self._trained is None:
            if why == "request":
                error = "the script does not call prepare()"
                self._channel.send({"type": "checkpoint_failed", "error": error, "why": why})
            return
        epoch, done = (self._epoch, self._done) if after is None else (after + 1, [])
        if epoch is None:
            self.note("the script does not use headgate.jax.epochs: a resume starts its epochs again")
        elif done is None:
            self.note("batches do not come from headgate.jax.batches: a resume starts the epoch again")
        place = {
            "step": self._steps,
            "samples": self._samples,
            "phase": None if epoch is None else self._phase,
            "epoch": epoch,
            "position": None if done is None or epoch is None else sum(done),
            "passes": done or [],
            "rng": self._rng or _captured_rng(),
            "kinds": self._trained.kinds(),
            "prepared": self._trained.prepared,
        }
        trained = self._trained
        self._saver.save(
            why,
            self._steps,
            place,
            lambda folder: checkpoints.write(folder, self._steps, trained.arrays(), place),
        )

    # --- what is told ------------------------------------------------------------------------------------------------

    def _tell(self, wait: bool = False) -> None:
        """Hand on reports whose numbers are there; none is waited for in the middle of training."""
        while self._reports and (wait or len(self._reports) > _MOST_AHEAD or self._reports[0].is_ready()):
            report = self._reports.popleft()
            self._progress.step, self._progress.said = report.step, report.said
            self._progress.epoch = report.epoch
            self._progress.samples = report.samples
            self._progress.report(report.loss, report.metrics)

    def note(self, text: str) -> None:
        """Tell the user something, once."""
        if text not in self._noted:
            self._noted.add(text)
            self._channel.send({"type": "note", "text": text})


def _is_there(value: Any) -> bool:
    """Whether a value needs no wait."""
    try:
        return bool(value.is_ready())
    except (AttributeError, RuntimeError):  # no array, or one whose memory was given away
        return True


def _captured_rng() -> dict[str, Any]:
    """The states of Python's and NumPy's own random streams, which may shuffle data, as plain values."""
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
    """Random states as one array, without the half of a pair of normal numbers that either stream may keep."""
    return np.array([*state["python"][1], *state["numpy"][1], state["numpy"][2]], np.uint32)


def _unpacked(words: Any) -> dict[str, Any]:
    numbers = [int(word) for word in words]
    here = _captured_rng()
    version, state, _ = here["python"]
    count = len(state)
    return {
        "python": [version, numbers[:count], None],
        "numpy": [here["numpy"][0], numbers[count:-1], numbers[-1], 0, 0.0],
    }
