"""One training script under an engine: what is done at its step boundaries, and what is told to the engine.

A training is a `fit` of a prepared model, or a loop over `epochs`; a script may have several, one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from headgate.keras import backends, checkpoints
from headgate.keras.agreement import Agreement
from headgate.keras.costs import Costs
from headgate.keras.exchanges import exchanging
from headgate.keras.meter import Meter
from headgate.keras.trained import Trained, array_of, random_states, restore_random
from headgate.task import Channel, Gate, ProgressReporter, Stop, TaskEnvironment, at_end
from headgate.task.measured import FIRST_STEPS, Step, is_told
from headgate.task.meetings import Meetings
from headgate.task.progress import whole
from headgate.task.saving import Saver, restored
from headgate.task.values import read, traced

_FLUSH_SECONDS = 2.0


@dataclass(frozen=True)
class StartPoint:
    """Where a training begins.

    Args:
        epoch: The epoch, from 0 on.
        done: Batches of it that are done.
        resumes: Whether that is where a checkpoint was taken.
        batches: Batches of an epoch, where Keras had counted them.
        logs: What Keras' last step before that returned.
    """

    epoch: int = 0
    done: int = 0
    resumes: bool = False
    batches: int | None = None
    logs: Mapping[str, float] | None = None


class Session:
    """The state of a script that runs under an engine.

    Args:
        environment: This task's identity.
        channel: To the engine.
        plan: The plan of several tasks that this one is part of; empty or None where it is alone.
        agreement: Between the workers of a job, on when to obey; None where this one steps alone.

    Attributes:
        meter: Times the steps.
        costs: Collects what the profile needs.
        trained: What was prepared.
        steps: Steps that were done, those before a resume included.
        profiling: Whether this is a short run to measure what the job costs.
        logs: What Keras' last step returned.
        batches: Batches of an epoch, where Keras has counted them.
        history: What Keras' epochs of the running `fit` came to, by name; of one that had ended before the checkpoint
            was taken, all of them.
        epochs_done: Which epochs these are.
        fitting: Whether a `fit` runs, whose steps are counted without a report.
    """

    def __init__(
        self,
        environment: TaskEnvironment,
        channel: Channel,
        plan: Mapping[str, Any] | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        self._channel = channel
        self.plan = plan or {}
        self._agreement = agreement
        self._orders: Channel | Agreement = channel if agreement is None else agreement
        self._leads = agreement is None or agreement.leads
        self._meetings = Meetings(channel, self._standing) if agreement is not None else None
        self.profiling = environment.mode == "profile"
        resume = None
        if environment.resume is not None and not self.profiling:
            resume = restored(environment.resume, checkpoints.read, channel.send)
        self._resume = resume
        self.trained = Trained(resume)
        self._saver = Saver(environment.checkpoints, channel.send)
        self._progress = ProgressReporter(channel.send)
        self.steps: int = resume.place["step"] if resume else 0
        self._progress.step = self.steps
        self._progress.samples = resume.place["samples"] if resume else None
        self.costs = Costs(self.trained, environment.mode)
        self.meter = Meter(self._measured, every_step=self.profiling)
        self._latest: Any = None
        self._gate = Gate(channel, lambda: read(self._latest), lambda: self.trained.gpus(self._latest))
        self._profiled = False
        self._phase = -1
        self.fitting = False
        self._epoch: int | None = None
        self._epoch_random = random_states()
        self.logs: Mapping[str, Any] = {}
        self.batches: int | None = None
        self.history: dict[str, list[Any]] = {}
        self.epochs_done: list[int] = []
        self._ended: list[dict[str, Any]] = list(resume.place.get("ended", ())) if resume else []
        self._noted: set[str] = set()
        self._stopping: Mapping[str, Any] | None = None  # as it was told
        self._begun = False  # a step that `fit` has begun
        if self._meetings is not None:
            self._meetings.watch(self._waiting)
        at_end(self.close)

    # --- trainings ---------------------------------------------------------------------------------------------------

    def prepare(self, model: Any, optimizer: Any) -> int:
        """Take what the script trains; its number. What is built already is loaded from the checkpoint."""
        self.trained.add(model, optimizer)
        index = len(self.trained.models) - 1
        if optimizer is not None and self.trained.pending(index):
            if not getattr(optimizer, "built", True):
                optimizer.build(model.trainable_variables)
            self.trained.load(index)
        return index

    def begin(self) -> StartPoint | None:
        """A training begins: where; None where it had ended before the checkpoint was taken."""
        if self._phase >= 0:
            self._ended[self._phase : self._phase + 1] = [{"history": self.history, "epochs": self.epochs_done}]
        self._phase += 1
        self.history, self.epochs_done, self.batches = {}, [], None
        resume = self._resume.place if self._resume else None
        if resume is None or resume["phase"] is None or self._phase > resume["phase"]:
            return StartPoint()
        if self._phase < resume["phase"]:
            if self._phase < len(self._ended):
                self.history, self.epochs_done = (self._ended[self._phase][name] for name in ("history", "epochs"))
            return None
        self.history = {name: list(values) for name, values in resume["history"].items()}
        self.epochs_done = list(resume.get("epochs") or range(max(map(len, self.history.values()), default=0)))
        self.batches = resume.get("batches")
        return StartPoint(resume["epoch"], resume["position"] or 0, True, self.batches, resume["logs"])

    def begin_epoch(self, epoch: int, epochs: int | None, start: StartPoint) -> None:
        """An epoch begins; `start` tells how much of it is done."""
        self._epoch = self._progress.epoch = epoch
        self._progress.epochs = epochs if epochs is None else whole(epochs, 0)
        if start.resumes and self._resume is not None:
            restore_random(_section(self._resume, "epoch_random" if start.done else "random"))
        self._epoch_random = random_states()
        self._begin_step()

    def rejoin(self) -> None:
        """The position of the checkpoint is reached, in the middle of an epoch."""
        if self._resume is not None:
            restore_random(_section(self._resume, "random"))

    def stepped(self, samples: int | None, logs: Mapping[str, Any], count: int) -> None:
        """`count` steps of a `fit` were done, after which Keras' logs, means of the epoch so far, are these."""
        if samples:
            self._progress.samples = (self._progress.samples or 0) + samples
        self.meter.end(samples)
        self.steps += count
        self._begun = False
        self._progress.step, self._progress.said = self.steps, None
        self._progress.epoch_so_far(*_parted(logs))
        self._turn(next(iter(logs.values()), None))

    def begins(self) -> None:
        """A `fit` begins a step, or is about to."""
        self._begun = True

    def due(self) -> bool:
        """A step boundary: whether there is something to obey."""
        if self.profiling and self._profiled:
            self.end()
        return self._channel.pending if self._agreement is None else self._agreement.boundary()

    def obey(self, done: int | None) -> None:
        """Do what the engine asked for, in the middle of an epoch.

        Args:
            done: Batches of the epoch that are done; None: not known.
        """
        self._follow_threads()
        if self._orders.stopping:
            self._save(self._orders.stopping, self._epoch, done, inside=True)
            self.end()
        if self._orders.take_checkpoint():
            self._save("request", self._epoch, done, inside=True)

    def end_epoch(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """An epoch is over: tell what Keras' logs are after it, if there are any, save and obey."""
        self._begun = False
        self.meter.drop()
        self._gate.pause()
        if logs:
            self.epochs_done.append(epoch)
            for name, value in logs.items():
                self.history.setdefault(name, []).append(array_of(value).tolist())
            self._progress.epoch_over(*_parted(logs))
        self._progress.flush()
        self._follow_threads()
        if self._agreement is not None:
            self._agreement.boundary()
        if self._meetings is not None:
            self._meetings.compare(self.trained.settings())
        why = self._orders.stopping or ("request" if self._orders.take_checkpoint() else "")
        if why or (self._leads and self._saver.due(self.trained.bytes())):
            self._save(why or "epoch", epoch + 1, 0)
        if self._orders.stopping:
            self.end()
        self._epoch = None

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs of a loop that the script writes itself, whatever a `fit` before it would have ended by."""
        self.stops_after(None)
        start = self.begin()
        if start is None:
            return
        if start.resumes and start.epoch >= count:
            self.note(f"the checkpoint is at the end of epoch {start.epoch} of {count}: nothing is left to train")
        try:
            for epoch in range(start.epoch, count):
                self.begin_epoch(epoch, count, start if epoch == start.epoch else StartPoint())
                yield epoch
                self.end_epoch(epoch, {})
        finally:
            if self._meetings is not None:
                self._meetings.left()

    def report(self, loss: Any, step: int | None, metrics: Mapping[str, Any]) -> None:
        """The script reports a step of its own loop, or more of one that `fit` did."""
        if loss is None or self.fitting or any(map(traced, (loss, *metrics.values()))):
            self._progress.report(loss, metrics)  # which says what is wrong with one that is traced
            return
        if self.meter.sampled:
            read(loss)  # waits for what the step computes
        self.meter.end(None)
        self.steps += 1
        self._progress.step, self._progress.said = self.steps, step
        self._progress.report(loss, metrics)
        self._turn(loss)
        if self.profiling and self.meter.steps == FIRST_STEPS:
            self.costs.notes.append("no `fit` of a prepared model: the time of a step was not measured by batch size")
            self.end()
        if self.due():
            if self._epoch is None or self._orders.stopping:
                self.obey(None)
            else:
                self._follow_threads()  # a checkpoint that is asked for is saved at the end of the epoch

    def mean(self, value: Any) -> Any:
        """The mean of a number over the workers; of a tensor, as one."""
        if self._meetings is None:
            return value
        return backends.like(value, self._met(self._meetings.mean(float(value))))

    def agree(self, flag: Any) -> Any:
        """Whether the flag holds in any worker."""
        return flag if self._meetings is None else self._met(self._meetings.agree(bool(flag)))

    @property
    def rank(self) -> int:
        """This worker's index."""
        return 0 if self._meetings is None else int(self._channel.welcome["index"])

    def end(self) -> None:
        """End the script; what had to be saved has been.

        Raises:
            Stop: Always.
        """
        self._progress.flush()
        if self.profiling and not self._profiled:
            self.send_profile()
        self._channel.flush(_FLUSH_SECONDS)
        raise Stop

    def close(self) -> None:
        """Send what is left; called when the interpreter ends."""
        if self._meetings is not None:
            self._meetings.close(None if self._orders.stopping or self._channel.stopping else self._standing())
        self._progress.flush()
        if self.meter.steps and not self._profiled:
            self.send_profile()
        self._channel.flush(_FLUSH_SECONDS)
        if self._meetings is not None:
            self._meetings.exit_failed()

    # --- what is told ------------------------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Tell the user something, once."""
        if text not in self._noted:
            self._noted.add(text)
            self._channel.send({"type": "note", "text": text})

    def stops_after(self, patience: int | None, min_delta: float = 0.0, monitor: str = "") -> None:
        """The script ends by itself after so many epochs in which `monitor` has not got better by `min_delta`; None: it
        does not."""
        told: dict[str, Any] = {"patience": None if patience is None else int(patience)}
        if patience is not None:
            told |= {"min_delta": float(min_delta), "monitor": monitor}
        if self._leads and not self.profiling and told != self._stopping:
            self._stopping = told
            self._channel.send({"type": "stopping", **told})

    def send_profile(self) -> None:
        """Send what was measured so far."""
        self._profiled = True
        keras = backends.keras_of(self.trained.models[0]) if self.trained.models else None
        backend = backends.backend_of(keras)
        try:
            profile = self.costs.profile(backend, framework_version(keras, backend), _threads())
        except Exception as error:  # noqa: BLE001 - a model that cannot be described is no reason to end
            self.note(f"the profile could not be taken: {error!r}")
            return
        self._channel.send({"type": "profile", "profile": profile})

    def _measured(self, step: Step) -> None:
        self.costs.stepped(step)
        if self.profiling:
            if self.costs.timings and self.costs.timed_enough() and not self._profiled:
                self.send_profile()
            return
        if step.number == FIRST_STEPS:
            self.send_profile()
        if is_told(step.number):
            spans = {"step": self.steps + 1, "epoch": self._epoch, "seconds": step.seconds, "spans": step.told()}
            self._channel.send({"type": "spans", **spans}, can_be_missed=True)

    # --- several workers ---------------------------------------------------------------------------------------------

    def _standing(self, begun: bool = False) -> dict[str, Any]:
        counts = {"rounds": self.steps + begun, "step": self.steps, "dropped": 0}
        return {**counts, "phase": self._phase, "epoch": self._epoch}

    def _waiting(self) -> dict[str, Any]:
        """Its standing, and whether it waits for the others."""
        standing, line = self._standing(self._begun), exchanging()
        if line is None:
            return standing
        where = f"in {line}, where workers exchange what they have" if line else "where workers exchange what they have"
        return {**standing, "exchanges": True, "what": where}

    def _met(self, result: Any) -> Any:
        """The result of a meeting. Ends this worker where there is none, because the job ends."""
        if result is None:
            self._save(self._channel.stopping or "stop", self._epoch, None, inside=True)
            self.end()
        return result

    # --- inside ------------------------------------------------------------------------------------------------------

    def _turn(self, latest: Any) -> None:
        """One step is done, which computed `latest`, and the next one begins."""
        self._latest = latest
        self._gate.boundary()
        self._begin_step()

    def _begin_step(self) -> None:
        self.meter.begin("other" if self.fitting else "step")  # of a loop nobody tells the parts of a step

    def _follow_threads(self) -> None:
        threads = self._channel.take_threads()
        if threads is None or self.profiling or not self.trained.models:
            return
        if backends.backend_of(backends.keras_of(self.trained.models[0])) == "torch":
            import torch

            torch.set_num_threads(threads)  # TensorFlow's and JAX's are as many as at the start

    def _save(self, why: str, epoch: int | None, done: int | None, inside: bool = False) -> None:
        self._progress.flush()
        if self.profiling or not self.trained.models:
            return
        if not self._leads:
            if done:
                self.trained.metrics()  # TensorFlow adds up those of all workers as they are read
            return
        if epoch is None:
            self.note(
                "the script uses neither headgate.keras.epochs nor fit: a resume begins with the first epoch again"
            )
        elif done is None:
            self.note("the script's own loop does not tell its position in the epoch: a resume begins the epoch again")
        logs = {name: number for name, value in self.logs.items() if (number := read(value)[0]) is not None}
        place = {
            "step": self.steps,
            "samples": self._progress.samples,
            "phase": self._phase if epoch is not None else None,
            "epoch": epoch,
            "position": done,
            "batches": self.batches,
            "logs": logs,
            "history": self.history,
            "epochs": self.epochs_done,
            "ended": self._ended[: max(self._phase, 0)],
        }

        def write(folder: Path) -> tuple[Path, int]:
            arrays = self.trained.arrays(metrics=bool(done))
            # Before its first batch an epoch may have drawn already how it is shuffled.
            present = self._epoch_random if inside and not done else random_states()
            for name, states in (("random", present), ("epoch_random", self._epoch_random)):
                arrays.update((f"{name}/{key}", state) for key, state in states.items())
            return checkpoints.write(folder, self.steps, checkpoints.CheckpointContents(arrays, place))

        self._saver.save(why, self.steps, place, write)


def framework_version(keras: Any, backend: str) -> str:
    """`3.15.1 on tensorflow 2.21.0`: of Keras, and of what computes."""
    try:
        below = f"{backend} {version(backend)}"
    except PackageNotFoundError:  # TensorFlow for CPUs alone comes under another name
        import tensorflow as tf

        below = f"{backend} {tf.__version__}"
    return below if keras is None else f"{keras.__version__} on {below}"


def _parted(logs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The loss of Keras' logs, None where they have none, and the others."""
    return logs.get("loss"), {name: value for name, value in logs.items() if name != "loss"}


def _section(saved: checkpoints.CheckpointContents, section: str) -> dict[str, Any]:
    prefix = f"{section}/"
    return {name[len(prefix) :]: array for name, array in saved.arrays.items() if name.startswith(prefix)}


def _threads() -> int:
    found = os.environ.get("OMP_NUM_THREADS", "")
    return int(found) if found.isdigit() and int(found) else len(os.sched_getaffinity(0))
