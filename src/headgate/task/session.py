"""One training script under an engine, whatever its framework: its step boundaries and epochs, and
what the engine is told.

The session of a framework derives from `TaskSession`. It counts `steps` and passes the script's
reports to `_progress`. At each step boundary it passes the `_gate`, and calls `obey` if `boundary`
says so.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from headgate.task.channel import Channel
from headgate.task.environment import TaskEnvironment
from headgate.task.gate import Gate
from headgate.task.membership import plan_of
from headgate.task.overheads import overheads
from headgate.task.progress import ProgressReporter, whole
from headgate.task.recording import recorder
from headgate.task.saving import Saver, restored
from headgate.task.step_timing import FIRST_STEPS, is_told
from headgate.task.stop import Stop
from headgate.task.sync_points import SyncPoints
from headgate.task.thread_pools import ThreadPools

_FLUSH_SECONDS = 2.0


class Requests(Protocol):
    """Requests of the engine: those of a channel, or those that the job's workers have agreed to
    handle at the same step.
    """

    @property
    def pending(self) -> bool: ...

    @property
    def stopping(self) -> str: ...

    def take_checkpoint(self) -> bool: ...


class MeasuredStep(Protocol):
    """A measured step. Its number counts the steps of this process, from 1."""

    number: int

    @property
    def seconds(self) -> float: ...

    def as_message(self) -> Mapping[str, Any]:
        """Its `spans` and other fields, as the channel sends them."""


class StepCounter(Protocol):
    """Times the steps of this process, and counts them."""

    steps: int


@dataclass(frozen=True)
class StartPoint:
    """Where a loop over epochs begins.

    Args:
        epoch: The epoch, from 0.
        place: The result of `TaskSession.position` in the checkpoint to resume from; empty on a
            fresh start.
    """

    epoch: int = 0
    place: Mapping[str, Any] = field(default_factory=dict)


class TaskSession(ABC):
    """The session of a script that runs under an engine.

    Args:
        environment: This task's identity.
        channel: The channel to the engine.
        fetch: Reads reported values, as of `ProgressReporter`.

    Attributes:
        plan: The plan of several tasks that this one is part of; empty if it is alone.
        profiling: Whether this is a short run to measure the job's costs.
        profiled: Whether the profile was sent.
        recorder: Records the steps for `headgate verify`; None: they are not recorded.
        steps: Steps done, including those before a resume.
        meter: Times the steps.

    Raises:
        ResumeError: The checkpoint to resume from cannot be read.
    """

    meter: StepCounter

    def __init__(
        self,
        environment: TaskEnvironment,
        channel: Channel,
        fetch: Callable[[Sequence[Any]], Sequence[Any]] = list,
    ) -> None:
        self._channel = channel
        self.profiling = environment.mode == "profile"
        self.profiled = False
        self.plan: Mapping[str, Any] = {} if self.profiling else self.planned()
        resume = self.join() or environment.resume
        self._saved: Any = None
        self._resume: Mapping[str, Any] | None = None
        if resume is not None and not self.profiling:
            self._saved, self._resume = restored(resume, self.read, channel.send)
        self.steps: int = self._resume["step"] if self._resume else 0
        self._progress = ProgressReporter(channel.send, fetch)
        self._progress.step = self.steps
        self._progress.samples = self._resume["samples"] if self._resume else None
        self._saver = Saver(environment.checkpoints, channel.send)
        self._gate = Gate(channel)
        self._requests: Requests = channel
        self._pools = ThreadPools()
        self._sync_points: SyncPoints | None = None
        self._phase = -1
        self._epoch: int | None = None
        self._ended = False
        self._deferred = ""  # for what a checkpoint is saved at the next step boundary
        self._noted: set[str] = set()
        self.recorder = recorder()
        if self.recorder is not None:
            self.recorder.begins_at(self.steps, channel.stop)
            self.profiled = True  # what is recorded is slower
        overheads.watch_garbage()

    # --- implemented by each framework ------------------------------------------------------------

    @abstractmethod
    def read(self, path: str) -> tuple[Any, Mapping[str, Any]]:
        """Read the state and the place that `write` saved.

        Raises:
            ResumeError: There is no checkpoint, or one of another kind.
        """

    @abstractmethod
    def write(self, folder: Path, place: Mapping[str, Any]) -> tuple[Path, int]:
        """Save the present state and its place as a file or folder `step-N...`. Returns its path
        and its size in bytes.
        """

    @abstractmethod
    def position(self, why: str, at: Any, after: int | None) -> dict[str, Any] | None:
        """Where a resume continues.

        Args:
            why: As of `Saver.save`.
            at: The argument of `obey`.
            after: The epoch that has ended; None in the middle of one.

        Returns:
            `epoch`, None if the script does not count epochs; `position`, the finished batches of
            the epoch, None if the epoch starts again; and what else `begin_epoch` needs. None: this
            task saves nothing now.
        """

    @abstractmethod
    def profile(self) -> dict[str, Any] | None:
        """The measured costs of the job, as the fields of `headgate.Profile`. None: another task
        reports them.
        """

    def planned(self) -> Mapping[str, Any]:
        """The plan of several tasks that this one is part of; empty if it is alone."""
        return plan_of(self._channel)

    def join(self) -> str:
        """Join the plan, before anything is loaded. Returns a checkpoint to start from in place of
        the task's own.
        """
        return ""

    def state_bytes(self) -> int | None:
        """Approximate size of a checkpoint. None if this task saves no automatic ones."""
        return None

    def due(self) -> bool:
        """Whether to save an automatic checkpoint at the end of this epoch."""
        size = self.state_bytes()
        return size is not None and self._saver.due(size)

    def defers(self, epoch: int) -> bool:
        """Whether requests at the end of an epoch wait for the next step boundary, because the
        models do not hold the trained weights now.
        """
        return False

    def set_threads(self, threads: int) -> None:
        """Compute with `threads` threads from now on, as far as the framework can."""
        self._pools.follow(threads)

    def saves_inside(self, at: Any) -> bool:
        """Whether a checkpoint requested within an epoch is saved now, and not at the end of the
        epoch.
        """
        return True

    def settings(self) -> Sequence[Mapping[str, Any]] | None:
        """Settings that workers compare between two epochs, by name. None if they compare them in
        their steps.
        """
        return None

    def script_position(self) -> dict[str, Any]:
        """Where this worker is, for others that step with it; see
        `headgate.task.script_position`.
        """
        counts = {"rounds": self.steps, "step": self.steps, "dropped": 0}
        return {**counts, "phase": self._phase, "epoch": self._epoch}

    def like(self, value: Any, number: float) -> Any:
        """Convert a number to the type of `value`."""
        return number

    def check_barrier(self, what: str) -> None:  # noqa: B027 - most can meet anywhere
        """Raise if other workers cannot come to a barrier at this place."""

    # --- epochs -----------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """Yield epoch numbers, from the one to resume at. Saves and obeys between them."""
        start = self.begin()
        if start is None:
            return
        if start.place and start.epoch >= count:
            self.note(
                f"the checkpoint is at the end of epoch {start.epoch} of {count}: nothing is "
                "left to train"
            )
            self.rejoin()
        try:
            for epoch in range(start.epoch, count):
                self.begin_epoch(epoch, count, start if epoch == start.epoch else StartPoint(epoch))
                yield epoch
                self.end_epoch(epoch)
        finally:
            self.left()

    def begin(self) -> StartPoint | None:
        """Begin a loop over epochs. None if it had ended before the checkpoint was saved."""
        self._phase += 1
        resume = self._resume
        if resume is None or resume["phase"] is None or self._phase > resume["phase"]:
            return StartPoint()
        return StartPoint(resume["epoch"], resume) if self._phase == resume["phase"] else None

    def begin_epoch(self, epoch: int, epochs: int | None, start: StartPoint) -> None:
        """Begin an epoch. `epochs` is their number, None if unknown. `start` tells whether a
        checkpoint was saved within this epoch.
        """
        self._epoch = self._progress.epoch = epoch
        self._progress.epochs = epochs if epochs is None else whole(epochs, 0)

    def rejoin(self) -> None:  # noqa: B027 - a framework may draw nothing at random
        """Restore the random states of the checkpoint, at the place where it was saved."""

    def end_epoch(self, epoch: int) -> str:
        """Handle the end of an epoch.

        Returns:
            Why a checkpoint was saved, or an empty string.
        """
        self._gate.pause()
        self.flush()
        self._follow_threads()
        if self._sync_points is not None and (settings := self.settings()) is not None:
            self._sync_points.compare(settings)
        self.boundary()
        stopping = self._requests.stopping
        why = stopping or self.asked()
        if not why and self.due():
            why = "epoch"
        if why and self.defers(epoch):
            self._deferred = why
            return ""
        saved = bool(why) and self.save(why, after=epoch)
        if stopping:
            self.end()
        return why if saved else ""

    def left(self) -> None:
        """Note that the script has left a loop over epochs."""
        self._epoch = None
        if self._sync_points is not None:
            self._sync_points.left()

    # --- requests ---------------------------------------------------------------------------------

    def boundary(self) -> bool:
        """Pass a step boundary. Returns whether there is a request to obey."""
        return self._requests.pending or bool(self._deferred)

    def asked(self) -> str:
        """Why a checkpoint is requested that is to be saved now; empty if none is."""
        return "request" if self._requests.take_checkpoint() else ""

    def asked_inside(self) -> str:
        """Like `asked`, within an epoch, where requests deferred from the end of the last one are
        handled too.
        """
        why, self._deferred = self._deferred, ""
        return "request" if self._requests.take_checkpoint() else why

    def obey(self, at: Any = None) -> None:
        """Handle the engine's requests within an epoch.

        Args:
            at: The place in the epoch, for `position`; None: not known exactly.
        """
        self._follow_threads()
        if self._requests.stopping:
            self.save(self._requests.stopping, at)
            self.end()
        if self.saves_inside(at) and (why := self.asked_inside()):
            self.save(why, at)

    def _follow_threads(self) -> None:
        threads = self._channel.take_threads()
        if threads is not None and not self.profiling:
            self.set_threads(threads)

    def save(self, why: str, at: Any = None, after: int | None = None) -> bool:
        """Save a checkpoint, if this task saves any. Returns whether it was saved. Arguments as of
        `position`.
        """
        self.flush()
        position = None if self._ended or self.profiling else self.position(why, at, after)
        if position is None:
            return False
        place = self.placed(position)
        return self._saver.save(why, self.steps, place, lambda folder: self.write(folder, place))

    def placed(self, position: Mapping[str, Any]) -> dict[str, Any]:
        """The script's place, for a resume: the result of `position`, and the work done so far."""
        phase = None if position["epoch"] is None else self._phase
        return {"step": self.steps, "samples": self._progress.samples, "phase": phase, **position}

    def end(self) -> None:
        """End the script. Everything to be saved has been saved.

        Raises:
            Stop: Always.
        """
        self._ended = True
        self.flush(wait=True)
        if self.profiling:
            self.send_profile()
        self._channel.flush(_FLUSH_SECONDS)
        raise Stop

    def close(self) -> None:
        """Send all pending messages. Called at the end of the interpreter."""
        self.flush(wait=True)
        if self.meter.steps:
            self.send_profile()
        if self._sync_points is not None:
            self.leave(by_itself=not (self._ended or self._channel.stopping))
        self._channel.flush(_FLUSH_SECONDS)
        if self._sync_points is not None:
            self._sync_points.exit_failed()

    def leave(self, by_itself: bool) -> None:
        """Note the end of a worker's script. `by_itself`: it was not asked to end."""
        if self._sync_points is not None:
            self._sync_points.close(self.script_position() if by_itself else None)

    # --- other workers ----------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This worker's index."""
        return 0 if self._sync_points is None else int(self._channel.welcome["index"])

    @property
    def is_main(self) -> bool:
        """Whether this worker writes files for all."""
        return self.rank == 0

    def mean(self, value: Any) -> Any:
        """The mean of a number over the workers, in the type of `value`."""
        if self._sync_points is None:
            return value
        self.check_barrier("hg.mean()")
        return self.like(value, self._met(self._sync_points.mean(float(value))))

    def agree(self, flag: Any) -> Any:
        """Whether the flag is true in any worker."""
        if self._sync_points is None:
            return flag
        self.check_barrier("hg.agree()")
        return self._met(self._sync_points.agree(bool(flag)))

    def _met(self, result: Any) -> Any:
        """The result of a barrier. If there is none because the job ends, end this worker."""
        if result is None:
            self.save(self._channel.stopping or "stop")
            self.end()
        return result

    # --- messages to the engine -------------------------------------------------------------------

    def flush(self, wait: bool = False) -> None:
        """Send the reports. `wait`: also those whose values are still being computed."""
        self._progress.flush()

    def note(self, text: str) -> None:
        """Send the user a note, once. An empty text is ignored."""
        if text and text not in self._noted:
            self._noted.add(text)
            self._channel.send({"type": "note", "text": text})

    def measured(self, step: MeasuredStep, steps: int = 1) -> None:
        """Report a measured step, and after the first steps the profile.

        Args:
            steps: The number of steps that it is the mean of.
        """
        if step.number == FIRST_STEPS:
            self.send_profile()
        if is_told(step.number):
            spans = {
                "step": self.steps,
                "epoch": self._epoch,
                "seconds": step.seconds,
                **step.as_message(),
            }
            if steps > 1:
                spans["steps"] = steps
            self._channel.send({"type": "spans", **spans}, can_be_missed=True)

    def send_profile(self) -> None:
        """Send the profile, once, with the measurements so far."""
        if self.profiled:
            return
        self.profiled = True
        try:
            profile = self.profile()
        except Exception as error:  # noqa: BLE001 - a model or data that cannot be described is no reason to end
            self.note(f"the profile could not be taken: {error!r}")
            return
        if profile is not None:
            self._channel.send({"type": "profile", "profile": profile})
