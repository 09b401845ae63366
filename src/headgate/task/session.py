"""One training script under an engine, whatever its framework: what is done at its step boundaries
and between its epochs, and what is told to the engine.

The session of a framework derives from `TaskSession`. It counts `steps`, hands what the script
reports to `_progress`, and at each step boundary passes the `_gate` and, where `boundary` says so,
calls `obey`.
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

_FLUSH_SECONDS = 2.0


class Requests(Protocol):
    """What the engine asks for: a channel, or what the workers of a job have agreed to do at the
    same step.
    """

    @property
    def pending(self) -> bool: ...

    @property
    def stopping(self) -> str: ...

    def take_checkpoint(self) -> bool: ...


class MeasuredStep(Protocol):
    """A measured step, whose number counts those of this process from 1."""

    number: int

    @property
    def seconds(self) -> float: ...

    def told(self) -> Mapping[str, Any]:
        """Its `spans` as the channel tells them, and what else it tells of a step."""


class StepCounter(Protocol):
    """Times the steps, and counts those of this process."""

    steps: int


@dataclass(frozen=True)
class StartPoint:
    """Where a loop over epochs begins.

    Args:
        epoch: The epoch, from 0 on.
        place: What `TaskSession.position` told as the checkpoint to go on from was taken there;
            empty on a fresh start.
    """

    epoch: int = 0
    place: Mapping[str, Any] = field(default_factory=dict)


class TaskSession(ABC):
    """The state of a script that runs under an engine.

    Args:
        environment: This task's identity.
        channel: To the engine.
        fetch: Brings what was reported to this process, as of `ProgressReporter`.

    Attributes:
        plan: The plan of several tasks that this one is part of; empty where it is alone.
        profiling: Whether this is a short run to measure what the job costs.
        profiled: Whether that was told.
        recorder: What records the steps for `headgate verify`; None: nothing does.
        steps: Steps that were done, those before a resume included.
        meter: Times the steps.

    Raises:
        ResumeError: The checkpoint to go on from cannot be read.
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
        self.plan: Mapping[str, Any] = {} if self.profiling else plan_of(channel)
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

    # --- what a framework says --------------------------------------------------------------------

    @abstractmethod
    def read(self, path: str) -> tuple[Any, Mapping[str, Any]]:
        """The state that `write` saved in a checkpoint, and its place.

        Raises:
            ResumeError: There is none there, or of another kind.
        """

    @abstractmethod
    def write(self, folder: Path, place: Mapping[str, Any]) -> tuple[Path, int]:
        """Save the present state and its place as a file or folder `step-N...`; its path, and its
        size in bytes.
        """

    @abstractmethod
    def position(self, why: str, at: Any, after: int | None) -> dict[str, Any] | None:
        """Where a resume goes on: the `epoch`, None where the script does not count them; the
        `position`, batches of it that are done, None where the epoch starts again; and what else
        `begin_epoch` needs. None: this task saves nothing now.

        Args:
            why: As of `Saver.save`.
            at: What `obey` was given.
            after: The epoch that has ended; None in the middle of one.
        """

    @abstractmethod
    def profile(self) -> dict[str, Any] | None:
        """What the job costs, as far as it was measured: the fields of `headgate.Profile`; None:
        another task says.
        """

    def join(self) -> str:
        """Become part of the plan, before anything is loaded; a checkpoint to start from in place
        of the task's own.
        """
        return ""

    def state_bytes(self) -> int | None:
        """How large a checkpoint is to be, about; None where this task saves none unasked."""
        return None

    def due(self) -> bool:
        """Whether a checkpoint is saved unasked at the end of this epoch."""
        size = self.state_bytes()
        return size is not None and self._saver.due(size)

    def defers(self, epoch: int) -> bool:
        """Whether what is asked for at the end of an epoch is done at the next step boundary: what
        is trained is not in the models now.
        """
        return False

    def set_threads(self, threads: int) -> None:  # noqa: B027 - not every framework can
        """Compute with so many threads from now on."""

    def saves_inside(self, at: Any) -> bool:
        """Whether a checkpoint that is asked for inside of an epoch is saved here, and not at its
        end.
        """
        return True

    def settings(self) -> Sequence[Mapping[str, Any]] | None:
        """What workers compare between two epochs, by name; None where their steps do."""
        return None

    def script_position(self) -> dict[str, Any]:
        """Where this worker is, for others that step with it; see
        `headgate.task.script_position`.
        """
        counts = {"rounds": self.steps, "step": self.steps, "dropped": 0}
        return {**counts, "phase": self._phase, "epoch": self._epoch}

    def like(self, value: Any, number: float) -> Any:
        """A number in the type of `value`."""
        return number

    def check_barrier(self, what: str) -> None:  # noqa: B027 - most can meet anywhere
        """Raise where other workers do not come to a meeting that is called here."""

    # --- epochs -----------------------------------------------------------------------------------

    def epochs(self, count: int) -> Iterator[int]:
        """Epoch numbers, from the one to resume on; saves and obeys between them."""
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
        """A loop over epochs begins: where; None where it had ended before the checkpoint was
        taken.
        """
        self._phase += 1
        resume = self._resume
        if resume is None or resume["phase"] is None or self._phase > resume["phase"]:
            return StartPoint()
        return StartPoint(resume["epoch"], resume) if self._phase == resume["phase"] else None

    def begin_epoch(self, epoch: int, epochs: int | None, start: StartPoint) -> None:
        """An epoch begins, of so many where that is known; `start` tells whether one that a
        checkpoint was taken in.
        """
        self._epoch = self._progress.epoch = epoch
        self._progress.epochs = epochs if epochs is None else whole(epochs, 0)

    def rejoin(self) -> None:  # noqa: B027 - a framework may draw nothing at random
        """The script comes to where the checkpoint was taken: random states are those of it
        again.
        """

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
        """The script has left a loop over epochs."""
        self._epoch = None
        if self._sync_points is not None:
            self._sync_points.left()

    # --- requests ---------------------------------------------------------------------------------

    def boundary(self) -> bool:
        """A step boundary: whether there is something to obey."""
        return self._requests.pending or bool(self._deferred)

    def asked(self) -> str:
        """For what a checkpoint is asked for that is to be saved now; empty: for nothing."""
        return "request" if self._requests.take_checkpoint() else ""

    def asked_inside(self) -> str:
        """The same in the middle of an epoch, where what the end of the one before has left is done
        too.
        """
        why, self._deferred = self._deferred, ""
        return "request" if self._requests.take_checkpoint() else why

    def obey(self, at: Any = None) -> None:
        """Do what the engine asked for, in the middle of an epoch.

        Args:
            at: Where in the epoch, for `position`; None: no exact position is known.
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
        """Save a checkpoint, where this task does; whether it was saved. Arguments as of
        `position`.
        """
        self.flush()
        position = None if self._ended or self.profiling else self.position(why, at, after)
        if position is None:
            return False
        place = self.placed(position)
        return self._saver.save(why, self.steps, place, lambda folder: self.write(folder, place))

    def placed(self, position: Mapping[str, Any]) -> dict[str, Any]:
        """Where the script is, for a resume: what `position` tells, and how much was done."""
        phase = None if position["epoch"] is None else self._phase
        return {"step": self.steps, "samples": self._progress.samples, "phase": phase, **position}

    def end(self) -> None:
        """End the script; what had to be saved has been.

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
        """Send what is left; called when the interpreter ends."""
        self.flush(wait=True)
        if self.meter.steps:
            self.send_profile()
        if self._sync_points is not None:
            self.leave(by_itself=not (self._ended or self._channel.stopping))
        self._channel.flush(_FLUSH_SECONDS)
        if self._sync_points is not None:
            self._sync_points.exit_failed()

    def leave(self, by_itself: bool) -> None:
        """The script of a worker ends; `by_itself`: it was not asked to."""
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
        """The mean of a number over the workers, in its type."""
        if self._sync_points is None:
            return value
        self.check_barrier("hg.mean()")
        return self.like(value, self._met(self._sync_points.mean(float(value))))

    def agree(self, flag: Any) -> Any:
        """Whether the flag holds in any worker."""
        if self._sync_points is None:
            return flag
        self.check_barrier("hg.agree()")
        return self._met(self._sync_points.agree(bool(flag)))

    def _met(self, result: Any) -> Any:
        """The result of a meeting. Ends this worker where there is none, because the job ends."""
        if result is None:
            self.save(self._channel.stopping or "stop")
            self.end()
        return result

    # --- what is told -----------------------------------------------------------------------------

    def flush(self, wait: bool = False) -> None:
        """Send what was reported; `wait`: what is still being computed as well."""
        self._progress.flush()

    def note(self, text: str) -> None:
        """Tell the user something, once; an empty text is nothing."""
        if text and text not in self._noted:
            self._noted.add(text)
            self._channel.send({"type": "note", "text": text})

    def measured(self, step: MeasuredStep) -> None:
        """Tell of a step that was measured, and after the first of them what the job costs."""
        if step.number == FIRST_STEPS:
            self.send_profile()
        if is_told(step.number):
            spans = {
                "step": self.steps,
                "epoch": self._epoch,
                "seconds": step.seconds,
                **step.told(),
            }
            self._channel.send({"type": "spans", **spans}, can_be_missed=True)

    def send_profile(self) -> None:
        """Tell, once, what was measured so far."""
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
