"""The leaves of a state: how a checkpoint stores them, and how they are restored in their original
types.

JAX computes with other types than a script may begin with. A float64 of NumPy becomes float32. A
Python number becomes an array of a weak type, which yields to the type of any array that it is
combined with.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from headgate.jax.placing import is_key, weakened
from headgate.task.saving import ResumeError

KINDS = (jax.Array, np.ndarray, np.generic, bool, int, float, complex)
"""Types of the leaves that are saved."""


class StateError(Exception):
    """The training state cannot be saved now. Training goes on."""


def kind(leaf: Any) -> str:
    """The kind of a leaf: a Python `number`, `numpy`, or a JAX `array`, `weak` if its type is
    weak.
    """
    if isinstance(leaf, jax.Array):
        return "weak" if not is_key(leaf) and leaf.weak_type else "array"
    return "numpy" if isinstance(leaf, (np.ndarray, np.generic)) else "number"


def form(leaf: Any) -> list[Any]:
    """Type and shape of a leaf as JAX computes with it. A Python number has the type of its
    kind.
    """
    if kind(leaf) == "number":
        return [type(leaf).__name__, []]
    array = jax.random.key_data(leaf) if is_key(leaf) else leaf
    return [str(_computed(array.dtype)), list(array.shape)]


def on_host(name: str, leaf: Any) -> Any:
    """The value of a leaf as a NumPy array; for a random key, its data.

    Raises:
        StateError: No single worker holds the whole array.
    """
    if isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated):
        raise StateError(
            f"{name} is sharded over the workers, so that no worker can save it; replicate it, for "
            "example with jax.jit(step, out_shardings=...)"
        )
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def restored(name: str, leaf: Any, saved: Any, was: str | None, prepared: Any) -> Any:
    """The saved value, in the type of the script's leaf.

    Args:
        was: The leaf's kind when it was saved. None if the checkpoint does not say: the kind of the
            script's leaf.
        prepared: The form in which the script had prepared the leaf when it was saved; None if
            unknown.

    Raises:
        ResumeError: The value has neither the form of the script's leaf now nor the form it was
            prepared in.
    """
    own = kind(leaf)
    if prepared != form(leaf) and not _fits(leaf, saved):
        forms = f"{saved.dtype}{list(saved.shape)}", "{}{}".format(*form(leaf))
        raise ResumeError(
            unfit(f"{name} is {forms[0]} in the checkpoint and {forms[1]} in the script")
        )
    if is_key(leaf):
        return jax.random.wrap_key_data(jax.numpy.asarray(saved), impl=jax.random.key_impl(leaf))
    if was is None:
        was = own
    if was == "number":
        return type(leaf)(saved) if own == "number" else saved.item()
    if was == "numpy":
        return (
            saved[()] if not isinstance(leaf, np.ndarray) and not saved.shape else np.array(saved)
        )
    array = (
        jax.device_put(saved, leaf.sharding)
        if isinstance(leaf, jax.Array)
        else jax.numpy.asarray(saved)
    )
    return weakened(array) if was == "weak" else array


def unfit(form: str) -> str:
    """The message that a checkpoint does not fit."""
    return (
        f"the checkpoint does not fit what the script prepares: {form}; undo the change to the "
        "script, or start over with: headgate resume --from-scratch"
    )


def _fits(leaf: Any, saved: Any) -> bool:
    if kind(leaf) == "number":
        # a Python number often becomes an array after a step
        return bool(saved.ndim == 0)
    array = jax.random.key_data(leaf) if is_key(leaf) else leaf
    return array.shape == saved.shape and saved.dtype in (array.dtype, _computed(array.dtype))


def _computed(dtype: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(dtype)
