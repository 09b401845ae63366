"""Reads the numbers that a script reports, of any framework, without importing one."""

from __future__ import annotations

from math import prod
from typing import Any

_ELSEWHERE = {
    "RemoteValue": (
        "its value is with a worker of the coordinator; report value.fetch(), after "
        "coordinator.join()"
    ),
    "PerReplica": (
        "it has a value for each replica; report strategy.reduce('MEAN', value, axis=None)"
    ),
}
"""What types of TensorFlow say about where their value is."""


def traced(value: Any) -> bool:
    """Whether a value is a tracer of a compiled function, as of `jax.jit` or `tf.function`."""
    kinds = [kind.__name__ for kind in type(value).__mro__]
    return "Tracer" in kinds or "SymbolicTensor" in kinds


def read(value: Any) -> tuple[float | None, str]:
    """Read a value as a float; of several elements, their mean. Waits for the value.

    Returns:
        The number, None if it is none; and a remark that says what was given and what to report
        instead, or empty.
    """
    if value is None or type(value) is float:  # the usual cases, fast
        return value, ""
    if traced(value):
        return (
            None,
            (
                f"{_found(value)} inside of a function that is compiled; report what that "
                "function returns"
            ),
        )
    try:
        number, elements = _number(value)
    except Exception as error:  # noqa: BLE001 - each framework says in its own way that there is no value
        return None, _why_none(value, error)
    if elements == 1:
        return number, ""
    return number, f"found {elements} elements, whose mean is taken; report one number"


def _number(value: Any) -> tuple[float, int]:
    """A value as a float, and the number of elements that it is the mean of."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    elif callable(getattr(value, "numpy", None)):
        value = value.numpy()
    elif hasattr(value, "__array__"):
        value = value.__array__()
    if "complex" in str(getattr(value, "dtype", "")):
        raise TypeError("complex")
    elements = prod(getattr(value, "shape", ()))
    if not elements:
        raise ValueError("without elements")
    if elements == 1:
        return float(value.item() if hasattr(value, "item") else value), 1
    value = value.double() if hasattr(value, "double") else value.astype("float64")
    return float(value.mean()), elements


def _why_none(value: Any, error: Exception) -> str:
    for known, cure in _ELSEWHERE.items():
        if any(known in kind.__name__ for kind in type(value).__mro__):
            return f"{_found(value)}: {cure}"
    if hasattr(value, "__await__") or callable(getattr(value, "done", None)):
        return (
            f"{_found(value)}, which may not be done; report what it comes to, such as "
            "value.result()"
        )
    if callable(value) and not hasattr(value, "shape"):
        return f"{_found(value)}; call it, and report what it returns"
    message = " ".join(str(error).split()).partition(". ")[0][:200]
    return f"{_found(value)} ({message}); report a number"


def _found(value: Any) -> str:
    kind = type(value).__name__
    return f"found {'an' if kind[0] in 'AEIOUaeiou' else 'a'} {kind}"
