"""Hooks of JAX and Optax, for scripts that call none of Headgate's libraries."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import Any

from headgate.task.observed_calls import CallObserver, CompiledProgram, observer

_LOOPS = "jax._src.lax.control_flow.loops"
_OWN = ("jax", "jaxlib", "optax", "chex")
"""Packages whose compiled functions are parts of a step."""


class Jax:
    """JAX as it computes."""

    name = "jax"

    def __init__(self, jax: Any) -> None:
        self._jax = jax
        self._is_clean = jax._src.core.trace_state_clean

    def is_traced(self) -> bool:
        return not self._is_clean()

    def loops(self) -> bool:
        frame = sys._getframe()
        while frame is not None:
            if frame.f_globals.get("__name__") == _LOOPS:
                return True
            frame = frame.f_back  # type: ignore[assignment]
        return False

    def settle(self, outputs: Any) -> None:
        self._jax.block_until_ready(outputs)

    def gpus(self) -> Iterable[int]:
        devices = self._jax.local_devices()
        return [device.local_hardware_id for device in devices if device.platform == "gpu"]


def watch_jax(jax: Any) -> None:
    """Hook `jax.jit`. JAX has just been imported."""
    calls, backend, jit = observer(), Jax(jax), jax.jit

    @functools.wraps(jit)
    def watched(*args: Any, **kwargs: Any) -> Any:
        made = jit(*args, **kwargs)
        if hasattr(made, "lower"):
            return _watched(made, calls, backend)
        return lambda function: _watched(made(function), calls, backend)  # made with options alone

    jax.jit = watched


def _watched(made: Any, calls: CallObserver, backend: Jax) -> Any:
    """A function like the compiled one, which tells its calls."""
    if str(getattr(made, "__module__", "")).partition(".")[0] in _OWN:
        return made
    program = CompiledProgram(backend)

    @functools.wraps(made)
    def call(*args: Any, **kwargs: Any) -> Any:
        return calls.run(program, made, *args, **kwargs)

    for name in dir(made):
        if not hasattr(call, name):
            setattr(call, name, getattr(made, name))
    call.__wrapped__ = getattr(made, "__wrapped__", made)
    return call


def watch_optax(optax: Any) -> None:
    """Hook `optax.apply_updates`. Optax has just been imported."""
    jax: Any = sys.modules["jax"]
    calls, backend, apply = observer(), Jax(jax), optax.apply_updates
    trained: dict[Any, CompiledProgram] = {}

    @functools.wraps(apply)
    def watched(params: Any, updates: Any, *args: Any, **kwargs: Any) -> Any:
        if not calls.watches():
            return apply(params, updates, *args, **kwargs)
        ends = False
        try:
            ends = calls.updates(backend)
        except Exception as error:  # noqa: BLE001
            calls.fail(error)
        result = apply(params, updates, *args, **kwargs)
        if ends:
            calls.attempt(ended, result)
        return result

    def ended(result: Any) -> None:
        program = trained.setdefault(jax.tree.structure(result), CompiledProgram(backend))
        calls.ended(backend, program, result)

    optax.apply_updates = watched
