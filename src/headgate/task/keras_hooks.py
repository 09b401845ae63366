"""Hooks of Keras and TensorFlow, for scripts that call none of Headgate's libraries."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from headgate.task import observing
from headgate.task.jax_hooks import Jax
from headgate.task.observed_calls import CallObserver, CompiledProgram, observer

_FUNCTIONS = "tensorflow.python.eager.polymorphic_function.polymorphic_function"
_ITERATORS = "tensorflow.python.data.ops.iterator_ops"


class TensorFlow:
    """TensorFlow as it computes."""

    name = "tensorflow"

    def __init__(self, tensorflow: Any) -> None:
        self._tf = tensorflow

    def is_traced(self) -> bool:
        return not self._tf.executing_eagerly()

    def loops(self) -> bool:
        graph = self._tf.compat.v1.get_default_graph()
        while graph is not None:
            if type(graph).__name__ == "WhileBodyFuncGraph":
                return True
            graph = getattr(graph, "outer_graph", None)
        return False

    def settle(self, outputs: Any) -> None:
        for leaf in self._tf.nest.flatten(outputs)[:1]:
            if hasattr(leaf, "numpy"):
                leaf.numpy()

    def gpus(self) -> Iterable[int]:
        return range(len(self._tf.config.list_logical_devices("GPU")))


def watch_tensorflow(tensorflow: Any) -> None:
    """Hook compiled functions and iterators over pipelines. TensorFlow has just been imported."""
    calls, backend = observer(), TensorFlow(tensorflow)
    kind = sys.modules[_FUNCTIONS].Function
    run = kind.__call__

    @functools.wraps(run)
    def watched(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not calls.watches():
            return run(function, *args, **kwargs)
        try:
            program = function.__dict__.get("_headgate")
            if program is None:
                program = function._headgate = CompiledProgram(backend)
        except Exception as error:  # noqa: BLE001
            calls.fail(error)
            return run(function, *args, **kwargs)
        return calls.run(program, run, function, *args, **kwargs)

    kind.__call__ = watched
    iterators = sys.modules[_ITERATORS].OwnedIterator
    iterators.__next__ = calls.around_next(iterators.__next__, lambda iterator: iterator._dataset)


def watch_keras(keras: Any) -> None:
    """Hook `fit` and optimizers. This Keras has just been imported."""
    legacy = keras.__name__ == "tf_keras" or keras.__version__.startswith("2.")
    name = "tensorflow" if legacy else keras.backend.backend()
    kinds = [keras.optimizers.Optimizer]
    if legacy and hasattr(keras.optimizers, "legacy"):
        kinds.append(keras.optimizers.legacy.Optimizer)
    if name == "torch":
        owner = _owner(kinds[0], "apply")
        if observing.observer is not None:
            owner.apply = observing.observer.around_update(owner.apply)
        return
    if name not in ("tensorflow", "jax"):
        return
    module = sys.modules[name]
    backend: Any = Jax(module) if name == "jax" else TensorFlow(module)
    calls, update = observer(), "apply_gradients" if legacy else "apply"
    for kind in kinds:
        owner = _owner(kind, update)
        setattr(owner, update, calls.around_update(getattr(owner, update), backend))
    library = f"headgate.{keras.__name__.replace('tf_', '')}.observed_fit"
    owner = _owner(keras.Model, "fit")
    owner.fit = _around_fit(owner.fit, calls, backend, library)
    owner = _owner(keras.Model, "evaluate")
    owner.evaluate = calls.around_evaluation(owner.evaluate)


def _owner(kind: Any, name: str) -> Any:
    """The class that defines a method of `kind`."""
    return next(base for base in kind.__mro__ if name in vars(base))


def _around_fit(fit: Any, calls: CallObserver, backend: Any, library: str) -> Any:
    @functools.wraps(fit)
    def watched(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not calls.watches():
            return fit(model, *args, **kwargs)
        try:
            call = inspect.signature(fit).bind(model, *args, **kwargs)
        except TypeError:  # the script's own mistake
            return fit(model, *args, **kwargs)
        try:
            fitting = import_module(library).ObservedFit(model, calls, backend)
            call.arguments["callbacks"] = fitting.among(call.arguments.get("callbacks"))
        except Exception as error:  # noqa: BLE001
            calls.fail(error)
            return fit(model, *args, **kwargs)
        calls.fits = True
        try:
            return fit(*call.args, **call.kwargs)
        finally:
            calls.fits = False
            fitting.restore()

    return watched
