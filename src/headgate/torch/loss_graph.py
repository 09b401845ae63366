"""Which nodes of a loss's graph compute what."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

_MOST_NODES = 400
_OF_PARAMETERS = frozenset(
    (
        *(
            "AccumulateGrad",
            "Pow",
            "Abs",
            "Sqrt",
            "LinalgVectorNorm",
            "Norm",
            "Sum",
            "Mean",
            "Add",
            "Sub",
            "Mul",
        ),
        *(
            "Div",
            "Neg",
            "View",
            "UnsafeView",
            "Clone",
            "T",
            "Permute",
            "Transpose",
            "Mm",
            "Stack",
            "Cat",
            "Square",
            "Rsub",
        ),
    )
)
"""Nodes of weight penalties."""


def kind_of(node: Any) -> str:
    """The name of the operation of a node, for example `Topk`."""
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward")


def is_of(node: Any, kinds: Sequence[str]) -> bool:
    return kind_of(node) in kinds


def is_of_parameters(root: Any) -> bool:
    """Whether a node depends only on parameters, as penalties do. Then it is the same in all
    workers.
    """
    nodes = [root]
    for _ in range(_MOST_NODES):
        if not nodes:
            return True
        node = nodes.pop()
        inner = [child for child, _ in node.next_functions]
        if not is_of(node, tuple(_OF_PARAMETERS)):
            return False
        if is_of(node, ("Mm",)) and None in inner:
            return False
        if is_of(node, ("Mul", "Div")) and None in inner:
            constant = node._saved_other if inner[0] is not None else node._saved_self
            if isinstance(constant, torch.Tensor) and constant.numel() != 1:
                return False
        nodes += [child for child in inner if child is not None]
    return False


_SELECTS = frozenset(("Index", "MaskedSelect", "IndexSelect", "Gather", "Take", "Embedding"))
_MOST_BELOW = 24
"""Most nodes searched below a term."""


def is_selected(node: Any) -> bool:
    """Whether the numbers of a term are selected from others, for example by a mask."""
    return any(kind_of(child) in _SELECTS for child in nodes_below(node))


def parameter_of(node: Any) -> torch.Tensor | None:
    """A parameter of the layer closest to a term."""
    for child in nodes_below(node):
        for inner, _ in child.next_functions:
            if hasattr(inner, "variable"):
                variable: torch.Tensor = inner.variable
                return variable
    return None


def nodes_below(node: Any) -> Iterator[Any]:
    for _ in range(_MOST_BELOW):
        yield node
        live = [inner for inner, _ in node.next_functions if inner is not None]
        if not live:
            return
        node = live[0]
