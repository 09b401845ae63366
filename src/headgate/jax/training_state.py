"""The state that a script trains: pytrees that it reports with each step, or Flax NNX objects that
change in place.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from headgate.jax.leaves import KINDS, StateError, form, kind, on_host, restored, unfit
from headgate.jax.placing import Placing, is_key, nbytes
from headgate.task.saving import ResumeError

_COMPARED = 32
"""Number of arrays of a state that workers compare."""
_LOOKED_AT = 64
"""Approximate number of variables of an NNX object that are checked for changes."""


class TrainingState:
    """The parts of the state, in the order in which they were prepared.

    Args:
        parts: The arguments of `prepare`, the parameters first.
        first: The number of the first part among all parts prepared so far.

    Attributes:
        prepared: The form in which each leaf was given, by name.
        end: The number of the next part.
    """

    def __init__(self, parts: Sequence[Any], first: int = 0) -> None:
        self.first = first
        self.end = first + len(parts)
        self._first = tuple(parts)
        self._in_place = all(_changes_in_place(part) for part in parts)
        self._now: tuple[Any, ...] | None = self._first if self._in_place else None
        # NNX variables, and their values after the last step
        self._stepped: list[tuple[Any, Any]] = []
        self.prepared = {name: form(leaf) for name, leaf in self._named(parts).items()}
        self.bytes = sum(nbytes(values(part)) for part in parts)

    def came_to(self, state: Any) -> None:
        """Take the state after a step, with the same tree structure as `prepare` returned.

        Raises:
            TypeError: The structure differs.
        """
        parts: tuple[Any, ...] = ()
        if len(self._first) == 1:
            parts = (state,)
        elif isinstance(state, (tuple, list)):
            parts = tuple(state)
        if len(parts) != len(self._first):
            raise TypeError(
                f"report(state=...): found a {type(state).__name__}; expected what prepare() "
                "returned: "
                f"{'one object' if len(self._first) == 1 else f'a tuple of {len(self._first)}'}"
            )
        self._now = parts

    def stepped(self) -> None:
        """Note that a step was taken: objects that change in place hold the trained values."""
        if self._in_place:
            if not self._stepped:
                self._stepped = [
                    (variable, None) for part in self._first for variable in _variables(part)
                ]
            self._stepped = [(variable, variable.get_raw_value()) for variable, _ in self._stepped]

    @property
    def changed(self) -> bool:
        """Whether the script has changed objects in place since the last step."""
        return any(variable.get_raw_value() is not value for variable, value in self._stepped)

    @property
    def known(self) -> bool:
        """Whether the current state is available."""
        return self._now is not None and not any(
            isinstance(leaf, jax.Array) and leaf.is_deleted()
            for part in self._now
            for leaf in jax.tree.leaves(values(part))
        )

    def arrays(self) -> dict[str, Any]:
        """The current state by name, as NumPy arrays; random keys as their data.

        Raises:
            StateError: The state is not available, or no single worker holds all of it.
        """
        if self._now is None:
            raise StateError(
                "the script reports no state to save: call report(loss=..., state=...) in each step"
            )
        if not self.known:
            raise StateError(
                "the state that was reported last is gone: a later step was given the memory of "
                "the state (donation); call report(state=...) after each step"
            )
        return {name: on_host(name, leaf) for name, leaf in self._named(self._now).items()}

    def sizes(self) -> dict[str, float]:
        """Mean absolute values of this worker's smallest arrays, by name. Empty if the state is not
        available.
        """
        if not self.known:
            return {}
        leaves = {
            name: leaf
            for name, leaf in self._named(self._now or ()).items()
            if isinstance(leaf, jax.Array) and leaf.is_fully_replicated and not is_key(leaf)
        }
        smallest = sorted(leaves, key=lambda name: (leaves[name].size, name))[:_COMPARED]
        return {
            f"mean |{name}|": float(
                np.abs(np.asarray(leaves[name].addressable_data(0), np.float64)).mean()
            )
            for name in smallest
            if leaves[name].size
        }

    def kinds(self) -> dict[str, str]:
        """The kind of each leaf of the current state, by name."""
        return {name: kind(leaf) for name, leaf in self._named(self._now or ()).items()}

    def is_in(self, saved: Mapping[str, Any]) -> bool:
        """Whether a checkpoint has any of these parts."""
        return any(self.first <= _number(name) < self.end for name in saved)

    def without(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The entries of a checkpoint that are not of these parts."""
        return {
            name: array
            for name, array in saved.items()
            if not self.first <= _number(name) < self.end
        }

    def loaded(
        self, saved: Mapping[str, Any], kinds: Mapping[str, str], prepared: Mapping[str, Any]
    ) -> None:
        """Load the values of the parts from a checkpoint.

        Args:
            saved: NumPy arrays by name.
            kinds: The kind of each leaf when it was saved.
            prepared: The form in which each leaf was given to `prepare` when it was saved.

        Raises:
            ResumeError: The values do not fit.
        """
        expected = self._named(self._first)
        saved = {
            name: array for name, array in saved.items() if self.first <= _number(name) < self.end
        }
        missing, left = (
            sorted(expected.keys() - saved.keys()),
            sorted(saved.keys() - expected.keys()),
        )
        if missing or left:
            lacks = f"the checkpoint lacks {', '.join(missing[:3])}" if missing else ""
            more = f"the script has no {', '.join(left[:3])}" if left else ""
            raise ResumeError(unfit("; ".join(filter(None, (lacks, more)))))
        fresh = {
            name: restored(name, leaf, saved[name], kinds.get(name), prepared.get(name))
            for name, leaf in expected.items()
        }
        self.with_values(fresh.get)

    def take_first(self, placing: Placing) -> None:
        """Replace the values of the parts by those of worker 0."""
        mine = {name: on_host(name, leaf) for name, leaf in self._named(self._first).items()}
        self.loaded(dict(zip(mine, placing.from_first(list(mine.values())))), {}, {})

    def with_values(self, value: Callable[[str, Any], Any]) -> tuple[Any, ...]:
        """The parts as they were prepared, with each leaf replaced by `value(name, leaf)`."""
        parts = []
        for number, part in enumerate(self._first, self.first):
            tree = jax.tree_util.tree_map_with_path(
                lambda path, leaf, number=number: value(_name(number, path), leaf), values(part)
            )
            parts.append(_set(part, tree))
        self._first = tuple(parts)
        self._now = self._first if self._in_place else None
        return self._first

    def _named(self, parts: Sequence[Any]) -> dict[str, Any]:
        return named(parts, self.first)

    # --- for the profile --------------------------------------------------------------------------

    def parameters(self) -> dict[str, Any]:
        """Count and bytes of the parameters: the first part, or the entry `params` in it."""
        leaves = [leaf for leaf in jax.tree.leaves(_parameters(self._first[0])) if _is_float(leaf)]
        return {
            "parameters_dense": sum(int(np.size(leaf)) for leaf in leaves),
            "parameters_sparse": 0,
            "dense_bytes": sum(int(leaf.nbytes) for leaf in leaves),
            "sparse_bytes": 0,
        }

    def layers(self) -> dict[str, int]:
        """Number of leaf layers of each kind. Known only for Flax NNX modules."""
        nnx = sys.modules.get("flax.nnx")
        if nnx is None or not isinstance(self._first[0], nnx.Module):
            return {}
        modules = [module for _, module in nnx.iter_modules(self._first[0])]
        inner = {
            id(m): any(isinstance(member, nnx.Module) for member in vars(m).values())
            for m in modules
        }
        return dict(Counter(type(module).__name__ for module in modules if not inner[id(module)]))

    def optimizer(self) -> dict[str, Any]:
        """Name of the optimizer's first state, and the bytes of all its states."""
        kept = [getattr(self._first[0], "opt_state", None), *self._first[1:]]
        trees = [values(part) for part in kept if part is not None]
        names = [
            type(node).__name__
            for part in kept
            for node in _named_tuples(getattr(part, "opt_state", part))
            if type(node).__name__.startswith("ScaleBy") and type(node).__name__.endswith("State")
        ]
        return {
            "optimizer": names[0][len("ScaleBy") : -len("State")] if names else None,
            "optimizer_state_bytes": sum(nbytes(tree) for tree in trees) if trees else None,
        }


def values(part: Any) -> Any:
    """A part as a pytree of its leaves."""
    return sys.modules["flax.nnx"].state(part) if _changes_in_place(part) else part


def named(parts: Sequence[Any], first: int = 0) -> dict[str, Any]:
    """All leaves with values. A name is the number of the part, from `first` on, and the path in
    it.
    """
    return {
        _name(number, path): leaf
        for number, part in enumerate(parts, first)
        for path, leaf in jax.tree_util.tree_flatten_with_path(values(part))[0]
        if isinstance(leaf, KINDS)
    }


def _name(number: int, path: Any) -> str:
    return f"{number}{jax.tree_util.keystr(path)}"


def _number(name: str) -> int:
    return int(name[: len(name) - len(name.lstrip("0123456789"))] or -1)


def _variables(part: Any) -> list[Any]:
    """The variables of a Flax NNX object; a sample of them if there are many."""
    nnx = sys.modules["flax.nnx"]
    variables = [
        variable for _, variable in nnx.iter_graph(part) if isinstance(variable, nnx.Variable)
    ]
    variables = [variable for variable in variables if hasattr(variable, "get_raw_value")]
    return variables[:: max(1, len(variables) // _LOOKED_AT)]


def _changes_in_place(part: Any) -> bool:
    """Whether a part is a Flax NNX object: a module, an optimizer, metrics, random streams."""
    nnx = sys.modules.get("flax.nnx")
    # the name since Flax 0.11
    return nnx is not None and isinstance(part, getattr(nnx, "Pytree", nnx.Object))


def _set(part: Any, tree: Any) -> Any:
    if not _changes_in_place(part):
        return tree
    sys.modules["flax.nnx"].update(part, tree)
    return part


def _parameters(part: Any) -> Any:
    if _changes_in_place(part):
        nnx = sys.modules["flax.nnx"]
        return nnx.state(part, nnx.Param)
    return getattr(part, "params", part)


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray)) and bool(
        jax.numpy.issubdtype(leaf.dtype, np.inexact)
    )


def _named_tuples(tree: Any) -> list[Any]:
    """The named tuples in a tree, outermost first."""
    named_tuples = []
    pending = [tree]
    while pending:
        node = pending.pop(0)
        if isinstance(node, tuple) and hasattr(node, "_fields"):
            named_tuples.append(node)
        if isinstance(node, (tuple, list)):
            pending += node
        elif isinstance(node, Mapping):
            pending += node.values()
    return named_tuples
