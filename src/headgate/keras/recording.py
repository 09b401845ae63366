"""Records a Keras script for `headgate verify`: variables of its models and optimizers, after each
step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from headgate.keras import backends
from headgate.keras.training_state import TrainingState, array_of, variables
from headgate.task.recording import BUFFER, DROPOUT, NOISE, ROUNDINGS, WEIGHT, TaskRecorder

_KERAS = ("keras", "tf_keras")
_DRAWS = {
    "rate": DROPOUT,
    "dropout": DROPOUT,
    "recurrent_dropout": DROPOUT,
    "_dropout": DROPOUT,
    "stddev": NOISE,
}
"""Attributes of layers with the amount of their random draws."""
_NAMED_ALIKE = frozenset({"dropout", "recurrent_dropout", "_dropout", "stddev"})
"""Attributes that mean the same in every layer."""
_states: list[Any] = []


def begin(recorder: TaskRecorder) -> None:
    """Start to record this process. Keras has just been imported."""
    for keras in (sys.modules[name] for name in _KERAS if name in sys.modules):
        keras.utils.set_random_seed(recorder.recipe.seed + recorder.worker)
        if recorder.recipe.double and hasattr(keras, "backend"):
            keras.backend.set_floatx("float64")


def begins(recorder: TaskRecorder, trained: TrainingState) -> None:
    """Prepare the first step. Each worker's own dropout is turned off, and the weights are
    perturbed if the recipe says so.
    """
    global _states
    for model in trained.models if recorder.recipe.as_workers else ():
        # which draws for the batch of all workers
        if backends.backend_of(backends.keras_of(model)) != "jax":
            for layer in _layers(model):
                _without_draws(layer, recorder)
    _states = _drawn(trained)
    if not recorder.recipe.perturbed:
        return
    draw = np.random.default_rng(1)
    for model in trained.models:
        for variable in getattr(model, "trainable_variables", ()):
            array = array_of(variable)
            if array.dtype in (np.float32, np.float64):
                away = draw.uniform(-1.0, 1.0, array.shape)
                variable.assign(
                    (array * (1 + ROUNDINGS * np.finfo(array.dtype).eps * away)).astype(array.dtype)
                )


def _layers(model: Any) -> Iterator[Any]:
    flat = getattr(model, "_flatten_layers", None)
    yield from flat() if callable(flat) else ()


def _without_draws(layer: Any, recorder: TaskRecorder) -> None:
    """Turn off the random draws per sample of one of Keras' layers."""
    own = any(kind.__module__.partition(".")[0] in _KERAS for kind in type(layer).__mro__[:2])
    for name, kind in _DRAWS.items() if own else ():
        value = getattr(layer, name, None)
        if (
            isinstance(value, float)
            and value > 0
            and (name in _NAMED_ALIKE or "Dropout" in type(layer).__name__)
        ):
            setattr(layer, name, 0.0)
            recorder.left_out(kind)


def _drawn(trained: TrainingState) -> list[Any]:
    """The states of the random generators of layers."""
    layers = (layer for model in trained.models for layer in _layers(model))
    generators = [
        generator for layer in layers for generator in getattr(layer, "_seed_generators", ())
    ]
    return [array_of(generator.state).tolist() for generator in generators]


def stepped(recorder: TaskRecorder, steps: int, epoch: int | None, trained: TrainingState) -> None:
    """Record a finished step."""
    global _states
    arrays = list(_arrays(trained))
    before, _states = _states, _drawn(trained)
    if before != _states:
        recorder.drew()
    recorder.state(steps, epoch, arrays)


def _arrays(trained: TrainingState) -> Iterator[tuple[str, str, Any]]:
    for number, (model, optimizer) in enumerate(zip(trained.models, trained.optimizers), 1):
        if backends.backend_of(backends.keras_of(model)) == "jax" and getattr(
            model, "_jax_state", None
        ):
            # the compiled step holds the variables of a running epoch
            model.jax_state_sync()
        prefix = f"model {number}: " if number > 1 else ""
        trains = {id(variable) for variable in model.trainable_variables}
        for variable in variables(model):
            kind = WEIGHT if id(variable) in trains else BUFFER
            yield kind, prefix + str(getattr(variable, "path", variable.name)), array_of(variable)
        for variable in variables(optimizer):
            yield (
                BUFFER,
                f"{prefix}optimizer {getattr(variable, 'path', variable.name)}",
                array_of(variable),
            )
