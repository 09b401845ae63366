"""Records a JAX script for `headgate verify`: the state that it reports after each step."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from headgate.jax.training_state import TrainingState
from headgate.task.recording import ROUNDINGS, WEIGHT, TaskRecorder

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
"""Functions of `jax.random` that draw for samples. Draws of an order are the same in all
workers.
"""
_is_prepared = False


def begin(recorder: TaskRecorder) -> None:
    """Start to record this process. JAX has just been imported."""
    for name in _DRAWS:
        _watch(name, recorder)
    if recorder.recipe.double:
        jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]


def _watch(name: str, recorder: TaskRecorder) -> None:
    """Record the draws of a function of `jax.random` once the state is prepared."""
    draw = getattr(jax.random, name)

    def drawing(*args: Any, **kwargs: Any) -> Any:
        if _is_prepared:
            recorder.drew()
        return draw(*args, **kwargs)

    setattr(jax.random, name, drawing)


def prepared(recorder: TaskRecorder, trained: TrainingState) -> None:
    """Adapt the state before the script gets it: float64, and perturbed if the recipe says so."""
    global _is_prepared
    _is_prepared = True
    draw = np.random.default_rng(1)

    def value(name: str, leaf: Any) -> Any:
        if not hasattr(leaf, "dtype") or not jax.numpy.issubdtype(leaf.dtype, np.floating):
            return leaf
        array = np.asarray(leaf, np.float64 if recorder.recipe.double else leaf.dtype)
        if recorder.recipe.perturbed:
            away = draw.uniform(-1.0, 1.0, array.shape)
            array = (array * (1 + ROUNDINGS * _eps(array.dtype) * away)).astype(array.dtype)
        return jax.numpy.asarray(array)

    trained.with_values(value)


def _eps(kind: Any) -> float:
    finfo: Any = jax.numpy.finfo
    return float(finfo(kind).eps)


def stepped(recorder: TaskRecorder, steps: int, epoch: int | None, trained: TrainingState) -> None:
    """Record the state after a reported step."""
    if trained.known:
        arrays = trained.arrays()
        recorder.state(
            steps, epoch, ((WEIGHT, name, np.asarray(array)) for name, array in arrays.items())
        )
