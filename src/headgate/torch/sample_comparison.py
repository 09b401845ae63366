"""Detects losses that compare samples of a batch with each other, in the graph of their backward.

A worker has only its part of a batch, so it compares fewer samples than one process would. The
dimension of the samples is followed from the inputs of the graph through each node. If it is
uncertain, nothing is reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import torch

from headgate.task import Channel
from headgate.torch.loss_graph import kind_of

_ENTRIES = {
    "Mm": (0, 1, "self"),
    "Addmm": (1, 2, "mat1"),
    "Convolution": (0, 1, "input"),
    "Embedding": (1, 0, "indices"),
}
"""Nodes where data enter: index of the data input, index of the weights, and the saved name of the
data.
"""
_PAIRING = frozenset(("Add", "Sub", "Rsub", "Mul", "Div", "Maximum", "Minimum", "Where", "Pow"))
_PRODUCTS = {"Mm": (0, 1), "Bmm": (0, 1), "Addmm": (1, 2), "Baddbmm": (1, 2)}
_DISTANCES = frozenset(("Cdist", "EuclideanDist"))
_ALONG = frozenset(
    (
        *(
            "Sort",
            "Topk",
            "Kthvalue",
            "Median",
            "Nanmedian",
            "Mode",
            "Max",
            "Min",
            "Amax",
            "Amin",
            "Cummax",
            "Cummin",
        ),
        *(
            "Cumsum",
            "Cumprod",
            "Logcumsumexp",
            "Logsumexp",
            "Softmax",
            "LogSoftmax",
            "Prod",
            "Std",
            "Var",
            "StdMean",
        ),
        *("VarMean", "LinalgVectorNorm", "Norm", "Roll", "Flip"),
    )
)
"""Operations that couple numbers along the dimensions in their arguments."""
_REDUCING = frozenset(("Mean", "Sum", "Nansum", "Select", "Unbind"))
_VIEWS = frozenset(("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze"))
_LOST = frozenset(
    ("Index", "IndexSelect", "MaskedSelect", "Take", "AsStrided", "Unfold", "Repeat", "Scatter")
)
_MOST_NODES = 50_000
_MOST_LOOKS = 4
_WHOLE = 2**63

Shape = Sequence[int]


class SampleComparison:
    """Reports once that a loss compares samples.

    Data that are the same in two steps are no samples. So the first step with a form of loss is
    remembered, and the next is judged.

    Args:
        tell: Called with the comparing operation, for example `Topk`.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told = False
        self._samples: set[int] = set()
        self._used = False
        self._entries: dict[int, list[float | None]] = {}
        self._looks: dict[int, int] = {}

    def fed(self, samples: int) -> None:
        """Note a batch, with the number of samples in this worker's part."""
        if self._used:
            self._samples, self._used = set(), False
        self._samples.add(samples)

    def sees(self, roots: Sequence[torch.Tensor], form: int) -> None:
        """Note the losses of a backward that begins. Losses of the same form are alike."""
        self._used = True
        looks = self._looks.get(form, 0)
        if self._told or looks == _MOST_LOOKS or len(self._samples) != 1 or min(self._samples) < 2:
            return
        self._looks[form] = looks + 1
        nodes = sorted_nodes([root.grad_fn for root in roots])
        entries = [node for node in nodes if _is_entry(node)]
        sums, before = [_sum_of(node) for node in entries], self._entries.get(form, [])
        self._entries[form] = sums
        if len(before) != len(sums):
            return
        self._looks[form] = _MOST_LOOKS
        new = [
            n
            for n, earlier, other in zip(entries, before, sums)
            if earlier is not None and other not in (None, earlier)
        ]
        kind = _Axes(min(self._samples), new).coupled(nodes)
        if kind:
            self._told = True
            self._tell(kind)


class PeerWarner(Protocol):
    """A worker of several, which can warn the user."""

    workers: int

    @property
    def is_main(self) -> bool: ...


def warner(member: PeerWarner, channel: Channel) -> Callable[[str], None]:
    """Makes the function that warns of a loss which compares samples. Only one of all workers
    warns.
    """

    def warn(kind: str) -> None:
        if member.is_main:
            text = (
                f"the loss compares samples of a batch with each other (by {kind}). Each of "
                f"{member.workers} workers compares those of its own part alone: gradients differ "
                "from those of one process. Where that matters, run with --strategy single"
            )
            channel.send({"type": "note", "warns": True, "text": text})

    return warn


class _Axes:
    """The dimension of the samples in each node's results.

    Args:
        samples: Number of samples.
        entries: Nodes at which they enter.
    """

    def __init__(self, samples: int, entries: Sequence[Any]) -> None:
        self._samples = samples
        weights = [_weight(node) for node in entries]
        # Samples that go through a layer one after another enter as something else.
        self._entries = {node for node, w in zip(entries, weights) if weights.count(w) < samples}
        self._of: dict[tuple[Any, int], int] = {}

    def coupled(self, nodes: Sequence[Any]) -> str:
        """The operation that couples samples; empty: none. Each node comes after its inputs."""
        for node in nodes:
            shapes = _shapes(node)
            if not shapes or isinstance(node, torch.autograd.function.BackwardCFunction):
                continue
            kind = kind_of(node)
            inputs = self._inputs(node)
            if inputs and self._couples(node, kind, inputs):
                return kind
            for number, shape in enumerate(shapes):
                axis = self._entry_axis(shape, kind) if node in self._entries else None
                axis = self._result(node, kind, inputs, shape) if axis is None and inputs else axis
                if axis is not None and axis < len(shape) and self._holds(shape[axis]):
                    self._of[node, number] = axis
        return ""

    def _holds(self, size: int) -> bool:
        return size > 0 and size % self._samples == 0

    def _is_batch(self, shape: Shape, axis: int) -> bool:
        """Whether a dimension has one entry per sample, or two, if each sample has two views."""
        return shape[axis] in (self._samples, 2 * self._samples)

    def _inputs(self, node: Any) -> dict[int, tuple[int, Shape]]:
        """For each input, its dimension of the samples and its shape."""
        inputs: dict[int, tuple[int, Shape]] = {}
        for place, (inner, number) in enumerate(node.next_functions):
            axis = self._of.get((inner, number))
            if axis is not None:
                inputs[place] = axis, _shapes(inner)[number]
        return inputs

    def _entry_axis(self, shape: Shape, kind: str) -> int | None:
        if kind != "Embedding" or len(shape) == 2:
            return 0
        places = [n for n, size in enumerate(shape[:-1]) if size == self._samples]
        return places[0] if len(places) == 1 else None

    # --- coupling operations ----------------------------------------------------------------------

    def _couples(self, node: Any, kind: str, inputs: Mapping[int, tuple[int, Shape]]) -> bool:
        if not all(self._is_batch(shape, axis) for axis, shape in inputs.values()):
            return False
        if kind in _PRODUCTS:
            first, second = (inputs.get(place) for place in _PRODUCTS[kind])
            from_end = [0 if side is None else len(side[1]) - side[0] for side in (first, second)]
            return from_end in ([2, 1], [1, 2])  # pairs of samples, or a sum over them
        if kind in _DISTANCES or kind.startswith("ScaledDotProduct"):
            return len(inputs) >= 2 and all(
                len(shape) - axis == 2 for axis, shape in inputs.values()
            )
        if kind == "Pdist":
            return True
        if kind in _ALONG:
            axis, shape = next(iter(inputs.values()))
            dims = _dims(node, len(shape))
            return axis in dims if dims else len(shape) > 0
        if kind in _PAIRING and len(inputs) == 2:
            (axis, shape), (other, against) = inputs.values()
            ends, sizes = len(shape) - axis, len(against) - other
            return ends != sizes and _size(shape, sizes) == 1 and _size(against, ends) == 1
        return False

    # --- the dimension of the samples -------------------------------------------------------------

    def _result(
        self, node: Any, kind: str, inputs: Mapping[int, tuple[int, Shape]], out: Shape
    ) -> int | None:
        axes = {self._moved(node, kind, place, *moved, out) for place, moved in inputs.items()}
        return axes.pop() if len(axes) == 1 else None

    def _moved(
        self, node: Any, kind: str, place: int, axis: int, shape: Shape, out: Shape
    ) -> int | None:
        rank = len(shape)
        if kind in _VIEWS:
            return self._axis_after_view(axis, shape, out)
        if kind in _PRODUCTS:
            summed = rank - 2 if place == _PRODUCTS[kind][1] else rank - 1
            return None if axis == summed else axis
        if kind in _DISTANCES:
            return None
        if kind == "T":
            return rank - 1 - axis
        if kind == "Transpose":
            first, second = _dim(node._saved_dim0, rank), _dim(node._saved_dim1, rank)
            return {first: second, second: first}.get(axis, axis)
        if kind == "Permute":
            return [_dim(saved_dim, rank) for saved_dim in node._saved_dims].index(axis)
        if kind == "Stack":
            return axis + (_dim(node._saved_dim, rank + 1) <= axis)
        if kind == "Cat" or kind in ("Slice", "Split", "SplitWithSizes"):
            return axis
        return _axis_after(node, kind, axis, shape, out)

    def _axis_after_view(self, axis: int, shape: Shape, out: Shape) -> int | None:
        """The position of a dimension in a view of another shape."""
        before, size = math.prod(shape[:axis]), shape[axis]
        parts, through = [], 1
        for place, out_size in enumerate(out):
            end = through * out_size
            if out_size > 1 and through <= before and end >= before * size:
                return place
            if out_size > 1 and through >= before and end <= before * size:
                parts.append(place)
            through = end
        sample_axes = [place for place in parts if out[place] == self._samples]
        return sample_axes[0] if len(sample_axes) == 1 else None


def _axis_after(node: Any, kind: str, axis: int, shape: Shape, out: Shape) -> int | None:
    """The position of a dimension after an operation that keeps it, or removes others."""
    rank, dims = len(shape), _dims(node, len(shape))
    if kind in _LOST or (kind == "Gather" and axis in dims):
        return None
    if kind in _PAIRING or kind == "Expand":
        moved = len(out) - rank + axis
        return moved if moved >= 0 and out[moved] == shape[axis] else None
    if len(out) == rank:
        is_sure = out == shape or kind in _ALONG or kind in _REDUCING
        is_sure |= shape.count(shape[axis]) == out.count(shape[axis]) == 1
        return axis if is_sure and out[axis] == shape[axis] else None
    if (kind in _ALONG or kind in _REDUCING) and dims and axis not in dims:
        return axis - sum(dim < axis for dim in dims)
    return None


def _size(shape: Shape, end: int) -> int:
    return shape[len(shape) - end] if end <= len(shape) else 1


def _dim(value: int, rank: int) -> int:
    value = value - 2 * _WHOLE if value >= _WHOLE else value
    return value + rank if value < 0 else value


def _dims(node: Any, rank: int) -> list[int]:
    """The dimensions that a node works along; empty: not given."""
    for name in ("_saved_dim", "_saved_dims"):
        value = getattr(node, name, None)
        if value is not None:
            return [_dim(dim, rank) for dim in (value if isinstance(value, tuple) else (value,))]
    return []


def _shapes(node: Any) -> list[list[int]]:
    return [
        [int(size) for size in metadata.shape] for metadata in getattr(node, "_input_metadata", ())
    ]


def _is_entry(node: Any) -> bool:
    kind = kind_of(node)
    if kind not in _ENTRIES:
        return False
    data, weights, _ = _ENTRIES[kind]
    inner = [below for below, _ in node.next_functions]
    return inner[weights] is not None and (data >= len(inner) or inner[data] is None)


def _weight(node: Any) -> Any:
    """The leaf with the weights of an entry."""
    inner = node.next_functions[_ENTRIES[kind_of(node)][1]][0]
    while inner is not None and inner.next_functions:
        inner = inner.next_functions[0][0]
    return inner


def _sum_of(node: Any) -> float | None:
    """A number that distinguishes entering data from others; None: they cannot be read.

    Values saved under hooks of the script are not read, because the hooks may recompute them, and
    only once.
    """
    saved: list[torch.Tensor] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with suppress(RuntimeError, AttributeError, TypeError):
        getattr(node, f"_raw_saved_{_ENTRIES[kind_of(node)][2]}").register_hooks(
            keep, lambda tensor: tensor
        )
        numbers = saved[0].detach().flatten().to(torch.float32)
        return float(
            numbers @ torch.linspace(1, 2, len(numbers), dtype=numbers.dtype, device=numbers.device)
        )
    return None


def sorted_nodes(roots: Sequence[Any]) -> list[Any]:
    """All nodes below `roots`, each after its inputs. Empty if there are too many."""
    done: dict[Any, None] = {}
    stack: list[tuple[Any, Iterator[Any]]] = []
    reached = set()
    for root in roots:
        stack = (
            [(root, iter(root.next_functions))] if root is not None and root not in reached else []
        )
        reached.add(root)
        while stack:
            node, children = stack[-1]
            inner = next(
                (child for child, _ in children if child is not None and child not in reached), None
            )
            if inner is None:
                done[node] = None
                stack.pop()
            else:
                reached.add(inner)
                stack.append((inner, iter(inner.next_functions)))
            if len(reached) > _MOST_NODES:
                return []
    return list(done)
