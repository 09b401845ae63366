"""One Keras script under an engine: its step boundaries, what happens there, and what the engine is
told.

A training is a `fit` of a prepared model, or a loop over `epochs`. A script may have several, one
after the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from headgate.keras import backends, checkpoints, cluster, recording, strategies
from headgate.keras.agreement import Agreement
from headgate.keras.costs import Costs
from headgate.keras.exchanges import exchanging
from headgate.keras.training_state import TrainingState, array_of, random_states, restore_random
from headgate.task import Channel, Gate, TaskEnvironment, at_end
from headgate.task.scalars import read, traced
from headgate.task.session import StartPoint, TaskSession
from headgate.task.step_timing import FIRST_STEPS, Step, StepMeter
from headgate.task.sync_points import SyncPoints


class Session(TaskSession):
    """The state of a Keras script that runs under an engine.

    Args:
        environment: This task's identity.
        channel: To the engine.
        together: Whether the script is ready to join the other tasks of its job.

    Attributes:
        costs: Collects what the profile needs.
        trained: What was prepared.
        strategy: How the tasks of the job train together; None in a job of one task.
        logs: What Keras' last step returned.
        batches: Batches of an epoch, where Keras has counted them.
        history: Keras' logs of the epochs of the running `fit`, by name. Of a `fit` that had ended
            before the checkpoint was taken, the logs of all its epochs.
        epochs_done: The numbers of these epochs.
        fitting: Whether a `fit` runs. Its steps are counted without a report.
        changed: Whether callbacks changed weights as an epoch of a `fit` ended, after which another
            one comes.
    """

    meter: StepMeter

    def __init__(
        self, environment: TaskEnvironment, channel: Channel, together: bool = False
    ) -> None:
        self._together = together
        self._agreement: Agreement | None = None
        self.strategy: Any = None
        super().__init__(environment, channel)
        self._leads = self._agreement is None or self._agreement.leads
        self.trained = TrainingState(self._saved, self.note)
        self.costs = Costs(self.trained, environment.mode, together)
        self.meter = StepMeter(self._measured, read, every_step=self.profiling)
        self._latest: Any = None
        self._gate = Gate(
            channel, lambda: read(self._latest), lambda: self.trained.gpus(self._latest)
        )
        self.fitting = False
        self._epoch_random = random_states()
        self._ends: list[Mapping[str, Any]] = []  # random states at the end of each training
        self.changed = False
        self.logs: Mapping[str, Any] = {}
        self.batches: int | None = None
        self.history: dict[str, list[Any]] = {}
        self.epochs_done: list[int] = []
        # that have ended
        self._trainings: list[dict[str, Any]] = list((self._resume or {}).get("ended", ()))
        self._stopping: Mapping[str, Any] | None = None  # as it was told
        self._begun = False  # a step that `fit` has begun
        self._recorded = self.steps
        if self._agreement is not None:
            self._requests, self._sync_points = (
                self._agreement,
                SyncPoints(channel, self.script_position),
            )
            self._sync_points.watch(self._waiting)
        at_end(self.close)

    def join(self) -> str:
        if self.plan and not self._together:
            raise cluster.PlanError(
                f"this job has {self.plan['workers']} workers: call headgate.keras.strategy() "
                "first of all, and make the model under its scope()"
            )
        if self.plan:
            self.strategy, self._agreement = strategies.join(self._channel, self.plan)
        return ""

    # --- trainings --------------------------------------------------------------------------------

    def prepare(self, model: Any, optimizer: Any) -> tuple[int, bool]:
        """Take what the script trains; its number, and whether it is new. Load the checkpoint into
        what is built.
        """
        index, is_new = self.trained.add(model, optimizer)
        if optimizer is not None:
            self.trained.load(index)
        return index, is_new

    def begin(self) -> StartPoint | None:
        if self._phase >= 0:
            self._trainings[self._phase : self._phase + 1] = [
                {"history": self.history, "epochs": self.epochs_done}
            ]
        start = super().begin()
        self.history, self.epochs_done, self.batches = {}, [], None
        if start is None:
            ended = self._saved.section(f"ended/{self._phase}")
            if ended:
                restore_random(ended)
            self.ended()
            if self._phase < len(self._trainings):
                self.history, self.epochs_done = (
                    self._trainings[self._phase][name] for name in ("history", "epochs")
                )
        elif start.place:
            self.history = {name: list(values) for name, values in start.place["history"].items()}
            self.epochs_done = list(
                start.place.get("epochs") or range(max(map(len, self.history.values()), default=0))
            )
            self.batches = start.place.get("batches")
        return start

    def begin_epoch(self, epoch: int, epochs: int | None, start: StartPoint) -> None:
        super().begin_epoch(epoch, epochs, start)
        if start.place:
            restore_random(
                self._saved.section("epoch_random" if start.place["position"] else "random")
            )
        self._epoch_random = random_states()
        self.meter.begin(None)

    def rejoin(self) -> None:
        """Restore the random states: training has reached the checkpoint's position in the middle
        of an epoch.
        """
        if self._saved is not None:
            restore_random(self._saved.section("random"))

    def stepped(self, samples: int | None, logs: Mapping[str, Any], count: int) -> None:
        """Take in `count` steps of a `fit` and the logs after them: means of the epoch so far."""
        if samples:
            self._progress.samples = (self._progress.samples or 0) + samples
        self.steps += count
        self.meter.samples = samples
        self.meter.end(None, count)
        self._begun = False
        self._progress.step, self._progress.said = self.steps, None
        self._progress.epoch_so_far(*_parted(logs))
        self._turn(next(iter(logs.values()), None))

    def begins(self) -> None:
        """A `fit` begins a step, or is about to."""
        self._begun = True
        self._record()
        if self.recorder is not None and not self.meter.steps:
            recording.begins(self.recorder, self.trained)

    def _record(self) -> None:
        """Record the values trained by the steps since the last time, if the script is recorded."""
        if self.recorder is not None and self.steps > self._recorded:
            self._recorded = self.steps
            recording.stepped(self.recorder, self.steps, self._epoch, self.trained)

    def boundary(self) -> bool:
        if self.profiling and self.profiled:
            self.end()
        if self._agreement is None:
            return super().boundary()
        return self._agreement.boundary() or bool(self._deferred)

    def end_epoch(self, epoch: int, logs: Mapping[str, Any] = MappingProxyType({})) -> str:
        """End an epoch: report its logs, if there are any, save and obey."""
        self._begun = False
        self._record()
        self.meter.drop()
        if logs:
            self.epochs_done.append(epoch)
            for name, value in logs.items():
                self.history.setdefault(name, []).append(array_of(value).tolist())
            self._progress.epoch_over(*_parted(logs))
        why = super().end_epoch(epoch)
        self._epoch = None
        return why

    def epochs(self, count: int) -> Iterator[int]:
        self.stops_after(None)  # whatever a `fit` before it would have ended by
        return super().epochs(count)

    def ended(self) -> None:
        """End a training. The next one begins with these random states."""
        self._ends[self._phase :] = [random_states()]

    def left(self) -> None:
        self.ended()
        if self._sync_points is not None:
            self._sync_points.left()  # in which epoch, where the script broke off one

    def report(self, loss: Any, step: int | None, metrics: Mapping[str, Any]) -> None:
        """Take a step of the script's own loop, or metrics of a step of `fit`."""
        if loss is None or self.fitting or any(map(traced, (loss, *metrics.values()))):
            self._progress.report(loss, metrics)  # which says what is wrong with one that is traced
            return
        self.steps += 1
        self.meter.end(loss, more=step)
        self._progress.step, self._progress.said = self.steps, step
        self._progress.report(loss, metrics)
        self._record()
        self._turn(loss)
        if self.profiling and self.meter.steps == FIRST_STEPS:
            self.costs.notes.append(
                "no `fit` of a prepared model: the time of a step was not measured by batch size"
            )
            self.end()
        if self.boundary():
            self.obey()

    def defers(self, epoch: int) -> bool:
        return self.changed

    def saves_inside(self, at: int | None) -> bool:
        return self.fitting or self._epoch is None

    def like(self, value: Any, number: float) -> Any:
        return backends.like(value, number)

    # --- messages to the engine -------------------------------------------------------------------

    def stops_after(self, patience: int | None, min_delta: float = 0.0, monitor: str = "") -> None:
        """Tell that the script ends by itself after `patience` epochs in which `monitor` did not
        improve by `min_delta`; None: that it does not.
        """
        stops: dict[str, Any] = {"patience": None if patience is None else int(patience)}
        if patience is not None:
            stops |= {"min_delta": float(min_delta), "monitor": monitor}
        if self._leads and not self.profiling and stops != self._stopping:
            self._stopping = stops
            self._channel.send({"type": "stopping", **stops})

    def profile(self) -> dict[str, Any]:
        keras = backends.keras_of(self.trained.models[0]) if self.trained.models else None
        backend = backends.backend_of(keras)
        return self.costs.profile(backend, framework_version(keras, backend), _threads())

    def _measured(self, step: Step) -> None:
        self.costs.stepped(step)
        if not self.profiling:
            self.measured(step)
        elif self.costs.timings and self.costs.timed_enough():
            self.send_profile()

    def _waiting(self) -> dict[str, Any]:
        """Its position in the script, and whether it waits for the others."""
        script_position, line = (
            {**self.script_position(), "rounds": self.steps + self._begun},
            exchanging(),
        )
        if line is None:
            return script_position
        where = (
            f"in {line}, where workers exchange what they have"
            if line
            else "where workers exchange what they have"
        )
        return {**script_position, "exchanges": True, "what": where}

    # --- inside -----------------------------------------------------------------------------------

    def _turn(self, latest: Any) -> None:
        """Note that a step is done, which computed `latest`, and the next one begins."""
        self._latest = latest
        self._gate.boundary()
        self.meter.begin(None)

    def set_threads(self, threads: int) -> None:
        if (
            self.trained.models
            and backends.backend_of(backends.keras_of(self.trained.models[0])) == "torch"
        ):
            import torch

            torch.set_num_threads(threads)  # TensorFlow's and JAX's are as many as at the start
        super().set_threads(threads)

    def settings(self) -> list[dict[str, Any]]:
        return self.trained.settings()

    # --- checkpoints ------------------------------------------------------------------------------

    def state_bytes(self) -> int | None:
        return self.trained.bytes() if self._leads else None

    def read(self, path: str) -> tuple[checkpoints.CheckpointContents, Mapping[str, Any]]:
        saved = checkpoints.read(path)
        return saved, saved.place

    def position(self, why: str, at: int | None, after: int | None) -> dict[str, Any] | None:
        if not self.trained.models:
            return None
        if not self._leads:
            if at:
                self.trained.metrics()  # TensorFlow adds up those of all workers as they are read
            return None
        epoch, done = (self._epoch, at) if after is None else (after + 1, 0)
        if epoch is None:
            self.note(
                "the script uses neither headgate.keras.epochs nor fit: a resume begins with "
                "the first epoch again"
            )
        elif done is None:
            self.note(
                "the script's own loop does not tell its position in the epoch: a resume "
                "begins the epoch again"
            )
        return {
            "epoch": epoch,
            "position": done,
            "batches": self.batches,
            "logs": {
                name: number
                for name, value in self.logs.items()
                if (number := read(value)[0]) is not None
            },
            "history": self.history,
            "epochs": self.epochs_done,
            "ended": self._trainings[: max(self._phase, 0)],
            "trains": self.trained.trains(),
        }

    def write(self, folder: Path, place: Mapping[str, Any]) -> tuple[Path, int]:
        done, inside = place["position"], place["epoch"] == self._epoch
        arrays = self.trained.arrays(metrics=bool(done))
        # Before its first batch, an epoch may already have drawn its shuffle.
        states: Mapping[str, Any]
        present = self._epoch_random if inside and not done else random_states()
        for name, states in (("random", present), ("epoch_random", self._epoch_random)):
            arrays.update((f"{name}/{key}", state) for key, state in states.items())
        for phase, states in enumerate(self._ends[: max(self._phase, 0)]):
            arrays.update((f"ended/{phase}/{key}", state) for key, state in states.items())
        return checkpoints.write(folder, self.steps, checkpoints.CheckpointContents(arrays, place))


def framework_version(keras: Any, backend: str) -> str:
    """Versions of Keras and of its back end: `3.15.1 on tensorflow 2.21.0`."""
    try:
        backend_text = f"{backend} {version(backend)}"
    except PackageNotFoundError:  # TensorFlow for CPUs alone comes under another name
        import tensorflow as tf

        backend_text = f"{backend} {tf.__version__}"
    return backend_text if keras is None else f"{keras.__version__} on {backend_text}"


def _parted(logs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The loss in Keras' logs, None without one, and the other values."""
    return logs.get("loss"), {name: value for name, value in logs.items() if name != "loss"}


def _threads() -> int:
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdigit() and int(setting) else len(os.sched_getaffinity(0))
