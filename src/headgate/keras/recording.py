"""How a Keras script is recorded for `headgate verify`: variables of its models and optimizers, after each step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from headgate.keras import backends
from headgate.keras.trained import Trained, array_of, variables
from headgate.task.recording import BUFFER, WEIGHT, TaskRecorder

_ROUNDINGS = 4.0


def begin(recorder: TaskRecorder) -> None:
    """Keras has been imported in a process that is to be recorded."""
    keras = sys.modules["keras"]
    keras.utils.set_random_seed(recorder.recipe.seed + recorder.worker)
    if recorder.recipe.double and hasattr(keras, "config"):
        keras.config.set_floatx("float64")


def begins(recorder: TaskRecorder, trained: Trained) -> None:
    """The first step is about to begin: the weights are some roundings away, as the recipe says."""
    if not recorder.recipe.perturbed:
        return
    draw = np.random.default_rng(1)
    for model in trained.models:
        for variable in getattr(model, "trainable_variables", ()):
            array = array_of(variable)
            if array.dtype in (np.float32, np.float64):
                away = draw.uniform(-1.0, 1.0, array.shape)
                variable.assign((array * (1 + _ROUNDINGS * np.finfo(array.dtype).eps * away)).astype(array.dtype))


def stepped(recorder: TaskRecorder, steps: int, epoch: int | None, trained: Trained) -> None:
    """A step is done."""
    recorder.state(steps, epoch, _arrays(trained))


def _arrays(trained: Trained) -> Iterator[tuple[str, str, Any]]:
    for number, (model, optimizer) in enumerate(zip(trained.models, trained.optimizers), 1):
        if backends.backend_of(backends.keras_of(model)) == "jax" and getattr(model, "_jax_state", None):
            model.jax_state_sync()  # the variables of a running epoch are in its compiled step's hands
        prefix = f"model {number}: " if number > 1 else ""
        trains = {id(variable) for variable in model.trainable_variables}
        for variable in variables(model):
            kind = WEIGHT if id(variable) in trains else BUFFER
            yield kind, prefix + str(getattr(variable, "path", variable.name)), array_of(variable)
        for variable in variables(optimizer):
            yield BUFFER, f"{prefix}optimizer {getattr(variable, 'path', variable.name)}", array_of(variable)
