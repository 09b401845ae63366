"""How a JAX script is recorded for `headgate verify`: its state, as it reports it after each
step.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from headgate.jax.training_state import TrainingState
from headgate.task.recording import WEIGHT, TaskRecorder

_ROUNDINGS = 4.0
_DRAWS = (
    "bernoulli",
    "bits",
    "categorical",
    "gumbel",
    "laplace",
    "normal",
    "rademacher",
    "truncated_normal",
    "uniform",
)
"""Functions of `jax.random` that draw for samples; those that draw an order are alike in all
workers.
"""
_is_prepared = False


def begin(recorder: TaskRecorder) -> None:
    """JAX has been imported in a process that is to be recorded."""
    for name in _DRAWS:
        _watch(name, recorder)
    if recorder.recipe.double:
        jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]


def _watch(name: str, recorder: TaskRecorder) -> None:
    """Have the draws of a function of `jax.random` seen, once the state is prepared."""
    draw = getattr(jax.random, name)

    def drawing(*args: Any, **kwargs: Any) -> Any:
        if _is_prepared:
            recorder.drew()
        return draw(*args, **kwargs)

    setattr(jax.random, name, drawing)


def prepared(recorder: TaskRecorder, trained: TrainingState) -> None:
    """The state is about to be handed to the script: in float64, and some roundings away, as the
    recipe says.
    """
    global _is_prepared
    _is_prepared = True
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


def stepped(recorder: TaskRecorder, steps: int, epoch: int | None, trained: TrainingState) -> None:
    """A step was reported, with its state."""
    if trained.known:
        arrays = trained.arrays()
        recorder.state(
            steps, epoch, ((WEIGHT, name, np.asarray(array)) for name, array in arrays.items())
        )
