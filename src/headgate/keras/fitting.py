"""Follows `fit` of a prepared model. It stays Keras' own, with a callback and a wrapper around its
compiled step.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np

from headgate.keras import backends, flops
from headgate.keras.backends import ApartReads, Feeder
from headgate.keras.reading import Reading
from headgate.keras.replicas import as_one_process
from headgate.keras.session import Session
from headgate.keras.strategies import check_fit
from headgate.task.overheads import overheads
from headgate.task.saving import ResumeError
from headgate.task.session import StartPoint
from headgate.task.step_timing import is_warm

_FLOPS_STEP = 2


def watch(model: Any, session: Session, index: int, optimizer: Any = None) -> None:
    """Follow `fit` of this one model; other models of its class stay as they are.

    Args:
        model: A model with `fit`.
        session: The script's session.
        index: The model's number.
        optimizer: The optimizer that was prepared with it. With one, the script may step both
            itself and never call `fit`, so the model's steps stay as they are.
    """
    fitting = Fitting(model, session, index, optimizer)
    if optimizer is None:
        fitting.mend()
    model.fit = fitting.fit


_LAST = (
    "on_train_begin",
    "on_epoch_begin",
    "on_train_batch_begin",
    "on_epoch_end",
    "on_test_begin",
    "on_test_end",
)
"""Hooks that run after the script's own callbacks, and their methods."""
_FIRST = {"on_epoch_end": "epoch_ends", "on_test_begin": "epoch_ends"}
"""Hooks that run before them, and their methods."""


def callback_of(keras: Any, target: Any = None, hooks: Mapping[str, str] | None = None) -> Any:
    """A callback of that Keras. Its hooks call methods of `target`, if there is one: by default
    those of `_LAST`.
    """
    members: dict[str, Any] = {"headgate": True}
    if target is not None:
        names = {name: name for name in _LAST} if hooks is None else hooks
        members.update((hook, _telling(getattr(target, name))) for hook, name in names.items())
    return type("Headgate", (keras.callbacks.Callback,), members)()


def _telling(method: Any) -> Any:
    def hook(callback: Any, *args: Any, **kwargs: Any) -> None:
        method(*args, **kwargs)

    return hook


class Fitting:
    """One prepared model, and the state of its `fit`.

    Args:
        model: The model.
        session: The script's session.
        index: The model's number.
        optimizer: The optimizer that was prepared with it, if any.
    """

    def __init__(self, model: Any, session: Session, index: int, optimizer: Any = None) -> None:
        self._model = model
        self._fit = model.fit
        self._session = session
        self._index = index
        self._optimizer = optimizer
        self._mended = False
        self._keras = backends.keras_of(model)
        self._backend = backends.backend_of(self._keras)
        self._inner: Any = None
        self._start = StartPoint()
        self._reading: Reading | None = None
        self._epochs: int | None = None
        self._samples_left: int | None = None
        self._batches: int | None = None
        self._skip = 0
        self._skipped = False
        self._metrics_wait = False
        self._apart = ApartReads()
        self._test_began = 0.0
        self._as_trained: list[np.ndarray[Any, Any]] | None = None

    def mend(self) -> None:
        """Make steps of legacy Keras over several workers compute what those of one process
        would.
        """
        if not self._mended and backends.is_legacy(self._keras):
            as_one_process(self._model, self._session.note)
        self._mended = True

    def fit(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model's own `fit`, from the checkpoint on if there is one.

        Raises:
            ValueError: The optimizer that was prepared is not the one that `fit` steps.
        """
        self._check_optimizer()
        self.mend()
        if self._session.plan:
            check_fit(self._session.plan, self._backend, backends.is_legacy(self._keras))
        call = inspect.signature(self._fit).bind(*args, **kwargs)
        start = self._session.begin()
        if start is None:
            return self._ended_before(call.arguments.get("x"), call.arguments.get("y"))
        given = call.arguments
        self._start = start
        first = int(given.get("initial_epoch") or 0)
        epoch = max(start.epoch, first) if start.place else first
        self._reading = Reading(
            self._keras, self._backend, first, epoch, start.place.get("batches")
        )
        self._epochs = int(given.get("epochs") or 1)
        if start.place:
            if not self._reading.is_known:
                version = self._keras.__version__
                self._session.note(
                    f"Headgate does not know how Keras {version} reads data: a resume reads "
                    "it again"
                )
            if not self._reading.begins_anew:
                given["initial_epoch"] = epoch
        if start.place and start.epoch >= self._epochs:
            self._session.note(
                f"the checkpoint is at the end of epoch {start.epoch} of {self._epochs}"
            )
        self._session.costs.samples = _samples_of(given.get("x"))
        self._batches = backends.batches_of(given.get("x"))
        given["callbacks"] = self._callbacks(given.get("callbacks"))
        self._session.fitting = True
        try:
            with self._reading.caught():
                history = self._fit(*call.args, **call.kwargs)
        finally:
            self._session.fitting = False
            if self._inner is not None:
                self._model.train_function, self._inner = self._inner, None
        if start.place and start.epoch >= self._epochs:
            self._session.rejoin()
        self._session.ended()
        return (
            self._with_history(history) if start.place and hasattr(history, "history") else history
        )

    def _check_optimizer(self) -> None:
        compiled = getattr(self._model, "optimizer", None)
        if self._optimizer is not None and compiled is not None and self._optimizer is not compiled:
            raise ValueError(
                f"prepare(model, optimizer) was given a {type(self._optimizer).__name__}, but fit "
                f"steps the optimizer of the compiled model, another {type(compiled).__name__}; "
                "call prepare(model) instead"
            )

    # --- events of the callback -------------------------------------------------------------------

    def on_train_begin(self, logs: Any = None) -> None:
        if self._model.built:
            self._load()
        self._inner = self._model.train_function
        self._model.train_function = self._step

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        resumes = bool(self._start.place) and epoch == self._start.epoch
        if resumes and self._reading is not None:
            self._reading.catch_up()  # with the random states that epochs began with before it
        self._skip = self._start.place["position"] or 0 if resumes else 0
        self._skipped = self._skip > 0
        self._session.begin_epoch(epoch, self._epochs, self._start if resumes else StartPoint())
        self._samples_left = self._session.costs.samples
        self._metrics_wait = self._skipped and self._backend == "tensorflow"
        if self._skipped and not self._metrics_wait:
            self._session.trained.load_metrics(self._index)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._session.meter.mark("other")
        if self._skip:
            return
        if self._skipped:
            self._skipped = False
            self._session.rejoin()
        if self._session.boundary():
            if self._backend == "jax":
                # the compiled step holds the variables of a running epoch
                self._model.jax_state_sync()
            self._session.obey(int(batch))
        self._session.begins()

    def epoch_ends(self, *args: Any, **kwargs: Any) -> None:
        """Note that the steps of an epoch are done, before any callback of the script runs."""
        if self._as_trained is None:
            self._as_trained = self._session.trained.sample(self._index)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        goes_on = (
            self._epochs is not None and epoch + 1 < self._epochs and not self._model.stop_training
        )
        before, self._as_trained = self._as_trained or [], None
        now = self._session.trained.sample(self._index) if goes_on and before else before
        self._session.changed = not all(
            np.array_equal(earlier, later, equal_nan=True) for earlier, later in zip(before, now)
        )
        self._session.batches = self._reading.batches if self._reading is not None else None
        self._session.end_epoch(epoch, logs or {})
        if goes_on:
            self._session.begins()

    def on_test_begin(self, logs: Any = None) -> None:
        self._test_began = time.perf_counter()

    def on_test_end(self, logs: Any = None) -> None:
        overheads.add("evaluation", time.perf_counter() - self._test_began)

    # --- the compiled step ------------------------------------------------------------------------

    def _step(self, *args: Any) -> Any:
        """Keras' compiled step: `step(iterator)` over TensorFlow, `step(state, iterator)` over JAX,
        `step(batches)` over torch.
        """
        *state, source = args
        if self._backend != "tensorflow":
            self._session.meter.mark("input")
            batches = list(islice(iter(source), self._at_once()))
            self._session.meter.mark("other")
            if not batches:
                return self._inner(*args)
            held = iter(batches) if self._backend == "jax" else batches
            single_batch = batches[0] if len(batches) == 1 else None
            return self._run(tuple(state), held, single_batch, _size(batches), count=len(batches))
        if not Feeder.fits(source):
            if Feeder.reads(source):
                self._session.costs.reads_inside()
                if self._skip:
                    self._pass_over(source)
            return self._run((), source, None, None)
        if self._skip:
            feeder = Feeder(source)
            for _ in range(self._at_once()):
                feeder.take()
            return self._skipping(())
        meter = self._session.meter
        waits = self._metrics_wait or self._session.trained.pending(self._index)
        # a profile times each
        always = waits or self._session.profiling or not is_warm(meter.steps + 1)
        if not self._apart.takes(meter.sampled, always):
            meter.pass_over()
        if self._at_once() > 1 or not (meter.sampled or waits):
            return self._run((), source, None, self._guessed())
        feeder = Feeder(source, meter.leave_out)
        meter.mark("input")
        batch = feeder.take()
        meter.mark("other")
        if batch is None:
            return self._inner(source)
        return self._run((), feeder.holding(batch), batch, backends.size_of(batch), feeder)

    def _run(
        self,
        state: tuple[Any, ...],
        source: Any,
        batch: Any,
        samples: int | None,
        feeder: Any = None,
        count: int | None = None,
    ) -> Any:
        """Have Keras do `count` steps; None: as many as it does at once."""
        session = self._session
        if self._skip:
            return self._skipping(state)
        if batch is not None:
            self._see(state, batch)
            if session.profiling and samples == session.costs.batch:
                sizes = session.costs.sizes()
                samples = sizes[session.meter.steps % len(sizes)]
                batch = backends.part(batch, samples)
                source = iter([batch]) if feeder is None else feeder.holding(batch)
                if self._backend == "torch":
                    source = [batch]
        counting = (
            self._backend == "torch"
            and session.meter.steps + 1 == _FLOPS_STEP
            and batch is not None
        )
        sampled = session.meter.sampled
        session.meter.mark("compute")
        if counting:
            outputs = self._counted(state, source, batch)
        else:
            outputs = self._inner(*state, source)
        if sampled:
            backends.wait(outputs)
            session.meter.mark("other")
        logs = outputs[0] if self._backend == "jax" else outputs
        session.logs = logs = dict(logs) if isinstance(logs, Mapping) else {}
        if samples and self._samples_left is not None:
            self._samples_left -= samples
        session.stepped(samples, logs, count or self._at_once())
        return outputs

    def _skipping(self, state: tuple[Any, ...]) -> Any:
        """Replace a step that was done before the checkpoint was saved."""
        self._skip -= min(self._skip, self._at_once())
        logs = {
            name: np.float32(value) for name, value in self._start.place.get("logs", {}).items()
        }
        return (logs, state[0]) if self._backend == "jax" else logs

    def _pass_over(self, source: Any) -> None:
        """Read the divided batches of a step that was done before."""
        for _ in range(self._at_once()):
            batch = next(source)
            if self._metrics_wait:
                self._build(backends.local_part(batch))

    # --- observing batches ------------------------------------------------------------------------

    def _see(self, state: tuple[Any, ...], batch: Any) -> None:
        """Note a batch that is about to be trained on: load and measure what needs a batch."""
        session = self._session
        if session.trained.pending(self._index) or self._metrics_wait:
            self._build(batch)
        if session.costs.batch is None:
            session.costs.saw_batch(batch)
            if session.costs.samples is None and self._batches and session.costs.batch:
                # the last may have fewer
                session.costs.samples = self._batches * session.costs.batch
        if session.meter.steps + 1 == _FLOPS_STEP and session.costs.batch:
            try:
                self._count(state, batch, session.costs.batch)
            except Exception as error:  # noqa: BLE001 - no counter is a reason to end the training
                session.costs.notes.append(
                    f"FLOPs were not counted: {' '.join(str(error).split())[:200]}"
                )

    def _count(self, state: tuple[Any, ...], batch: Any, samples: int) -> None:
        features = self._features(batch)
        if self._backend == "tensorflow":
            forward, total = flops.of_tensorflow(self._model, features)
        elif self._backend == "jax":
            forward, total = flops.of_jax(self._model, state[0], features)
        else:
            self._session.costs.flops = (
                flops.of_torch_forward(self._model, features) / samples,
                None,
            )
            return
        self._session.costs.flops = (forward / samples, total / samples)

    def _counted(self, state: tuple[Any, ...], source: Any, batch: Any) -> Any:
        with flops.counter() as count:
            outputs = self._inner(*state, source)
        self._session.costs.flops = (
            self._session.costs.flops[0],
            count.get_total_flops() / (backends.size_of(batch) or 1),
        )
        return outputs

    def _features(self, batch: Any) -> Any:
        unpack = getattr(self._keras.utils, "unpack_x_y_sample_weight", None)
        return unpack(batch)[0] if unpack is not None else batch[0]

    def _at_once(self) -> int:
        """Number of steps that Keras does in one call."""
        setting: Any = getattr(self._model, "steps_per_execution", None)
        if setting is None:  # of legacy Keras: a variable, once it is compiled
            setting = getattr(self._model, "_steps_per_execution", None)
        return int(setting.numpy()) if hasattr(setting, "numpy") else int(setting or 1)

    def _guessed(self) -> int | None:
        """Samples of a batch that was not looked at."""
        batch = self._session.costs.batch
        if batch is None:
            return None
        return batch if self._samples_left is None else max(0, min(batch, self._samples_left))

    # --- resuming ---------------------------------------------------------------------------------

    def _build(self, batch: Any) -> None:
        """Build, and load, the parts that are made from the first batch."""
        symbolic = getattr(self._model, "_symbolic_build", None)
        if symbolic is not None:
            symbolic(data_batch=batch)  # of Keras 3: the metrics too
        else:
            self._build_legacy(batch)
        self._load()
        if self._metrics_wait:
            self._metrics_wait = False
            self._session.trained.load_metrics(self._index)

    def _build_legacy(self, batch: Any) -> None:
        """Build with legacy Keras, which makes its metrics from its first computation, of tensors.

        A model whose own step computes with something else than the data makes them then.
        """
        import tensorflow as tf

        model = self._model
        features, labels, _ = self._keras.utils.unpack_x_y_sample_weight(batch)
        if labels is not None:
            labels = tf.nest.map_structure(tf.convert_to_tensor, labels)
        containers: list[Any] = [
            getattr(model, name, None) for name in ("compiled_loss", "compiled_metrics")
        ]
        to_build = [container is not None and not container.built for container in containers]
        if model.built and not any(to_build):
            return
        try:
            computed = model(features, training=False)
        except Exception:
            if not model.built:
                raise
            return
        if to_build[0]:
            containers[0].build(computed)
        if to_build[1]:
            containers[1].build(computed, labels)

    def _load(self) -> None:
        """Load the checkpoint into the model and its optimizer."""
        trained, model = self._session.trained, self._model
        if not trained.pending(self._index):
            return
        optimizer = trained.optimizers[self._index]
        if not model.built or optimizer is None:
            raise ResumeError(
                "the model is not built, so it has no variables to load the checkpoint into; call "
                "model.build() before fit"
            )
        trained.load(self._index)

    def _callbacks(self, given: Any) -> Any:
        """The callbacks of the script, and ours after them, so that their changes are part of a
        checkpoint.
        """
        first, ours = callback_of(self._keras, self, _FIRST), callback_of(self._keras, self)
        if hasattr(given, "append") and not isinstance(given, list):
            self._tell_stopping(given.callbacks)
            given.append(ours)
            given.callbacks.insert(0, first)
            return given
        if given is None:
            callbacks = []
        else:
            callbacks = list(given) if isinstance(given, (list, tuple)) else [given]
        self._tell_stopping(callbacks)
        others = [callback for callback in callbacks if not getattr(callback, "headgate", False)]
        return [first, *others, ours]

    def _tell_stopping(self, callbacks: Iterable[Any]) -> None:
        """Report whether a callback ends training early when it sees no gain."""
        stopping = [
            callback
            for callback in callbacks
            if isinstance(callback, self._keras.callbacks.EarlyStopping)
        ]
        if not stopping:
            self._session.stops_after(None)
            return
        first = min(stopping, key=lambda callback: callback.patience)
        self._session.stops_after(first.patience, abs(first.min_delta), first.monitor)

    def _ended_before(self, x: Any, y: Any) -> Any:
        if not self._model.built and _samples_of(x) is not None:
            self._build(backends.part((x,) if y is None else (x, y), 1))
        self._load()
        history = self._keras.callbacks.History()
        history.set_model(self._model)
        history.on_train_begin()
        self._model.history = history
        return self._with_history(history)

    def _with_history(self, history: Any) -> Any:
        """A history with the epochs before the checkpoint."""
        history.history.update(
            {name: list(values) for name, values in self._session.history.items()}
        )
        history.epoch = list(self._session.epochs_done)
        return history


def _samples_of(x: Any) -> int | None:
    """Number of samples in training data given as arrays."""
    return next((int(leaf.shape[0]) for leaf in backends.leaves(x) if len(leaf.shape)), None)


def _size(batches: Any) -> int | None:
    sizes = [backends.size_of(batch) for batch in batches]
    return None if None in sizes else sum(size for size in sizes if size is not None)
