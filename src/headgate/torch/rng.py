"""Saves and restores the state of every random number generator that a training script draws
from.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

RngState = dict[str, Any]
"""Tensors, tuples and numbers only, so that a checkpoint can be read without running code."""


def cuda_in_use() -> bool:
    """Whether this process has used a GPU so far. The check itself does not use one."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


def capture(generators: Iterable[torch.Generator], devices: bool = True) -> RngState:
    """States of Python's, NumPy's (if imported) and torch's generators, and of `generators`.

    Args:
        generators: Generators given to loaders.
        devices: Whether to include those of the GPUs, at the cost of a wait for each.
    """
    state: RngState = {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "generators": [generator.get_state() for generator in generators],
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = (name, torch.from_numpy(keys.astype("int64")), *rest)
    if devices and cuda_in_use():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def restore(state: RngState, generators: Sequence[torch.Generator]) -> None:
    """Restore the states of `capture`. Generators and GPUs that are missing in it keep their
    state.
    """
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    for generator, saved in zip(generators, state["generators"]):
        generator.set_state(saved)
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy" in state:
        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))
    for index, saved in enumerate(state.get("cuda", [])):
        if index < torch.cuda.device_count():
            torch.cuda.set_rng_state(saved, index)


def same(one: Any, other: Any) -> bool:
    """Whether two states, or parts of them, are equal."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(
            same(part, other[name]) for name, part in one.items()
        )
    if isinstance(one, (list, tuple)) and any(isinstance(part, torch.Tensor) for part in one):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


class Stream:
    """A random stream for drawing data, separate from the script's.

    Args:
        state: Initial state.
    """

    def __init__(self, state: RngState) -> None:
        self.move(state)
        self._drawing = False

    def move(self, state: RngState) -> None:
        """Continue from `state`."""
        self._state = {name: part for name, part in state.items() if name != "cuda"}

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """A context in which all draws come from this stream, and the script's own stream stands
        still. May be nested.
        """
        if self._drawing:
            yield
            return
        own = capture((), devices=False)
        restore(self._state, ())
        self._drawing = True
        try:
            yield
        finally:
            self._drawing = False
            self._state = capture((), devices=False)
            restore(own, ())
