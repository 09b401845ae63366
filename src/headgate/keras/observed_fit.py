"""Sees the steps of Keras' `fit` in a script that calls none of Headgate's libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from headgate.keras import backends
from headgate.keras.backends import ApartReads, Feeder
from headgate.keras.fitting import callback_of
from headgate.task.step_timing import StepSampling

if TYPE_CHECKING:
    from headgate.task.call_session import CallBackend
    from headgate.task.observed_calls import CallObserver

_HOOKS = ("on_train_begin", "on_epoch_begin", "on_epoch_end")


class ObservedFit:
    """One `fit` of a model.

    Args:
        model: The model.
        calls: The observer of this process.
        backend: Computes it.
    """

    def __init__(self, model: Any, calls: CallObserver, backend: CallBackend) -> None:
        self._model = model
        self._calls = calls
        self._steps = calls.steps
        self._backend = backend
        self._keras = backends.keras_of(model)
        self._callback: Any = None
        self._inner: Any = None
        self._sampling = StepSampling()
        self._ran = 0  # calls of the step
        self._left: int | None = None  # batches of the epoch
        self._batch: int | None = None  # the most samples of a batch
        self._epoch: tuple[int, int | None] = (0, None)
        self._apart = ApartReads()
        self._begins = False  # the next step is the first of an epoch
        self._reads = False  # the iterator has begun a batch of the running call
        self._is_over = False  # a list of callbacks may be used again

    def among(self, given: Any) -> Any:
        """The script's callbacks and its own."""
        hooks = {name: name for name in _HOOKS}
        self._callback = callback_of(self._keras, self, hooks)
        if hasattr(given, "append") and not isinstance(given, list):
            given.append(self._callback)
            return given
        listed = given if isinstance(given, (list, tuple)) else [given]
        return [callback for callback in listed if callback is not None] + [self._callback]

    def restore(self) -> None:
        """Give the model back its own step."""
        self._is_over = True
        if self._inner is not None:
            self._model.train_function, self._inner = self._inner, None

    # --- events of the callback -------------------------------------------------------------------

    def on_train_begin(self, logs: Any = None) -> None:
        if self._is_over:
            return
        self._inner = self._model.train_function
        self._model.train_function = self._step

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self._is_over:
            self._calls.attempt(self._epoch_begins, epoch)

    def _epoch_begins(self, epoch: int) -> None:
        self._begins = True
        params = self._callback.params or {}
        self._left = params.get("steps")
        self._epoch = epoch, params.get("epochs")
        if self._calls.session is not None:
            self._calls.session.begin_epoch_of(*self._epoch)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        if not self._is_over:
            self._calls.attempt(self._epoch_ends, logs or {})

    def _epoch_ends(self, logs: Mapping[str, Any]) -> None:
        if self._calls.session is not None:
            self._calls.session.epoch_over(logs.get("loss"))

    # --- the compiled step ------------------------------------------------------------------------

    def _step(self, *args: Any) -> Any:
        """Keras' compiled step: `step(iterator)` over TensorFlow, `step(state, iterator)` over
        JAX.
        """
        if not self._calls.is_on:
            return self._inner(*args)
        *state, source = args
        self._ran += 1
        try:
            count = self._at_once()
            is_pipeline = Feeder.fits(source) or Feeder.reads(source)
        except Exception as error:  # noqa: BLE001
            self._calls.fail(error)
            return self._inner(*args)
        if is_pipeline:
            return self._run_pipeline(source, count)
        self._reads, fetched = False, [0]
        outputs = self._inner(*state, self._watched(source, fetched))
        self._calls.attempt(self._ended, outputs, fetched[0], True)
        return outputs

    def _watched(self, source: Iterable[Any], fetched: list[int]) -> Iterator[Any]:
        """The batches of a source in Python, as the step asks for them."""
        attempt, iterator = self._calls.attempt, iter(source)
        while True:
            attempt(self._fetches)
            try:
                batch = next(iterator)
            except StopIteration:
                attempt(self._steps.exhausted)
                return
            fetched[0] += 1
            attempt(self._fetched, [batch])
            yield batch

    def _fetches(self) -> None:
        if self._reads:
            self._steps.computed()
        self._reads = True
        self._steps.fetching()

    def _fetched(self, batches: list[Any]) -> None:
        sizes = [size for batch in batches if (size := backends.size_of(batch)) is not None]
        self._batch = max([self._batch or 0, *sizes]) or None
        self._steps.fetched(self, sum(sizes) or None, True)
        self._steps.computes()

    def _run_pipeline(self, source: Any, count: int) -> Any:
        """A step that reads a tf.data pipeline itself. In some of them the batches are read before
        it, so that the time that they take is known. None of these is the first of an epoch, which
        also has what comes between two epochs.
        """
        begins, self._begins = self._begins, False
        is_measured = self._sampling.takes(self._ran) and Feeder.fits(source) and not begins
        is_apart = self._apart.takes(is_measured)
        batches: list[Any] = []
        if is_apart:
            feeder = Feeder(source, partial(self._calls.attempt, self._steps.leaves_out))
            self._calls.attempt(self._steps.fetching)
            while len(batches) < count and (batch := feeder.take()) is not None:
                batches.append(batch)
            if not batches:
                self._calls.attempt(self._steps.exhausted)
                return self._inner(source)
            self._calls.attempt(self._fetched, batches)
            source, count = self._held(feeder, batches), len(batches)
        else:
            self._calls.attempt(self._steps.computes)
            count = count if self._left is None else max(min(count, self._left), 1)
        outputs = self._inner(source)
        are_whole = is_apart or Feeder.reads(source)
        self._calls.attempt(self._ended, outputs, count, are_whole)
        return outputs

    def _held(self, feeder: Feeder, batches: list[Any]) -> Any:
        try:
            return feeder.holding(*batches)
        except Exception as error:  # noqa: BLE001
            self._calls.fail(error)
            return iter(batches)

    def _ended(self, outputs: Any, count: int, are_whole: bool) -> None:
        if not count:
            return
        if self._left is not None:
            self._left -= count
        if self._batch is not None:
            self._steps.trains_on(self._batch * count)
        is_first = self._calls.session is None
        self._calls.ended(self._backend, None, outputs, count, are_whole)
        session = self._calls.session
        if session is None:
            return
        if is_first:
            session.begin_epoch_of(*self._epoch)
        logs = outputs[0] if self._backend.name == "jax" else outputs
        if isinstance(logs, Mapping):
            session.saw_loss(logs.get("loss"))

    def _at_once(self) -> int:
        """Number of steps that Keras does in one call."""
        setting: Any = getattr(self._model, "steps_per_execution", None)
        if setting is None:  # of legacy Keras: a variable, once it is compiled
            setting = getattr(self._model, "_steps_per_execution", None)
        return int(setting.numpy()) if hasattr(setting, "numpy") else int(setting or 1)
