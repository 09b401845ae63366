"""How a JAX script is recorded for `headgate verify`: its state, as it reports it after each step."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from headgate.jax.trained import Trained
from headgate.task.recording import WEIGHT, TaskRecorder

_ROUNDINGS = 4.0


def begin(recorder: TaskRecorder) -> None:
    """JAX has been imported in a process that is to be recorded."""
    if recorder.recipe.double:
        jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]


def prepared(recorder: TaskRecorder, trained: Trained) -> None:
    """The state is about to be handed to the script: in float64, and some roundings away, as the recipe says."""
    draw = np.random.default_rng(1)

    def value(name: str, leaf: Any) -> Any:
        if not hasattr(leaf, "dtype") or not jax.numpy.issubdtype(leaf.dtype, np.floating):
            return leaf
        array = np.asarray(leaf, np.float64 if recorder.recipe.double else leaf.dtype)
        if recorder.recipe.perturbed:
            away = draw.uniform(-1.0, 1.0, array.shape)
            array = (array * (1 + _ROUNDINGS * _eps(array.dtype) * away)).astype(array.dtype)
        return jax.numpy.asarray(array)

    trained.with_values(value)


def _eps(kind: Any) -> float:
    finfo: Any = jax.numpy.finfo
    return float(finfo(kind).eps)


def stepped(recorder: TaskRecorder, steps: int, epoch: int | None, trained: Trained) -> None:
    """A step was reported, with its state."""
    if trained.known:
        arrays = trained.arrays()
        recorder.state(steps, epoch, ((WEIGHT, name, np.asarray(array)) for name, array in arrays.items()))
