"""What a loss is a mean over, read from the graph that its backward goes through.

A loss that is a mean over samples weighs a worker's gradients by its samples. One over tokens that are no padding, or
by class weights, weighs them by those: PyTorch's graph has their number, whichever function made it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

_PASSED = frozenset(
    ("Neg", "View", "UnsafeView", "ReshapeAlias", "Alias", "Clone", "ToCopy", "Squeeze", "Unsqueeze", "Rsub", "Expand")
)
_SUMS = frozenset(("Sum", "Nansum", "Dot"))
_OF_PARAMETERS = frozenset(
    (
        *("AccumulateGrad", "Pow", "Abs", "Sqrt", "LinalgVectorNorm", "Norm", "Sum", "Mean", "Add", "Sub", "Mul"),
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
"""What penalties of the weights are made of."""
_MOST_NODES = 400


@dataclass
class LossReading:
    """What is seen of a loss.

    Attributes:
        over: What it is a mean over: samples, tokens, a sum of weights; None: that is not seen.
        terms: The same of each of its terms.
        elements: How many numbers are summed, of a sum that is divided by a number of Python's; 0: there is none.
        doubt: Why several workers may not come to what one process comes to; empty: nothing speaks for that.
    """

    over: float | None = None
    terms: tuple[float, ...] = ()
    elements: int = 0
    doubt: str = ""


@dataclass(frozen=True)
class _Divisor:
    """What a part of a loss is divided by.

    Args:
        exact: By divisions.
        scaled: By them, and by multiplications with a fraction: of a mean that is how much it matters.
        plain: Whether all of them are numbers of Python's, not tensors.
    """

    exact: float = 1.0
    scaled: float | None = None
    plain: bool = True

    def by(self, value: float, plain: bool = True, exact: bool = True) -> _Divisor:
        return _Divisor(
            self.exact * value if exact else self.exact,
            (1.0 if self.scaled is None else self.scaled) * value,
            self.plain and plain,
        )


@dataclass
class _LossTerms:
    """Terms of a loss: what those that may leave samples out, and others, are means over; sums; and what else. And
    whether one is multiplied by 0, as where a part of a batch has nothing that counts."""

    counted: list[float] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    sums: int = 0
    divided: bool = False
    elements: int = 0
    nothing: bool = False
    others: list[str] = field(default_factory=list)


def read(roots: Sequence[torch.Tensor]) -> LossReading:
    """What the loss whose terms are `roots` is a mean over."""
    seen = _LossTerms()
    for root in roots:
        if root.numel() != 1:
            return LossReading(doubt="its backward begins with gradients that the script gives")
        if root.grad_fn is None:
            return LossReading()
        _walk(root.grad_fn, seen)
    terms = [*seen.counted, *seen.means]
    # By the structure of the loss, never by these numbers: all workers have to take the same.
    over = terms[0] if terms else 0.0 if seen.nothing else None
    if seen.divided and over == 1.0 and len(terms) == 1 and not any(bool(root.detach()) for root in roots):
        over = 0.0  # `mask.sum().clamp(min=1)` of a part that has nothing to count
    if over is not None and not math.isfinite(over):
        over = None
    doubt = ""
    if seen.sums:
        doubt = "a sum over the batch is part of it"
    elif seen.others:
        doubt = f"it is made by {seen.others[0]}, and no mean over samples is seen in it"
    return LossReading(over, tuple(terms), seen.elements, doubt)


def _walk(root: Any, seen: _LossTerms) -> None:
    """Go through what makes a scalar: sums and multiples of means."""
    nodes = [(root, _Divisor())]
    for _ in range(_MOST_NODES):
        if not nodes:
            return
        node, divisor = nodes.pop(0)
        kind = type(node).__name__.rstrip("0123456789").removesuffix("Backward")
        inner = [each for each, _ in node.next_functions]
        live = [each for each in inner if each is not None]
        if kind in _PASSED or kind in ("Add", "Sub", "Stack", "Cat"):
            nodes[:0] = [(each, divisor) for each in live]
        elif kind in ("Mul", "Div") and len(live) == 1 and (kind == "Mul" or inner[0] is not None):
            by, plain = _constant(node, inner)
            if by:
                whole = not (nodes or seen.counted or seen.means or seen.sums or seen.others)
                nodes.insert(0, (live[0], _divided(divisor, kind, by, plain, whole)))
            else:
                seen.nothing = True
        elif kind in (*_SUMS, "Mean") and (scalars := _scalars(node, kind, live)):
            if kind == "Mean":
                divisor = divisor.by(len(scalars))
            nodes[:0] = [(each, divisor) for each in scalars]
        elif not _is_of_parameters(node):
            _leaf(node, kind, divisor, seen)


def _leaf(node: Any, kind: str, divisor: _Divisor, seen: _LossTerms) -> None:
    reduction = getattr(node, "_saved_reduction", None)
    if kind in _SUMS or reduction == 2:
        if divisor.scaled is None:
            seen.sums += 1
        else:
            seen.divided = True
            seen.elements = _summed(node) if divisor.plain else 0
            seen.counted.append(divisor.scaled)
    elif kind.startswith("NllLoss") and reduction == 1:
        seen.counted.append(float(node._saved_total_weight) * divisor.exact)
    elif kind == "Mean":
        seen.means.append(float(node._saved_self_sym_numel) * divisor.exact)
    elif reduction == 1:
        seen.means.append(float(node._saved_self.numel()) * divisor.exact)
    else:
        seen.others.append(kind)


def _scalars(node: Any, kind: str, live: Sequence[Any]) -> list[Any]:
    """The scalars whose sum or mean this is, where the script made a list of losses."""
    if not live or not _is_of(live[0], ("Stack", "Cat")):
        return []
    inner = [each for each, _ in live[0].next_functions]
    numbers = node._saved_self_sym_numel if kind == "Mean" else _summed(node)
    return [each for each in inner if each is not None] if numbers == len(inner) else []


def _summed(node: Any) -> int:
    """How many numbers a sum is of; 0: that is not seen."""
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    if sizes is not None:
        return math.prod(sizes)
    tensor = getattr(node, "_saved_target" if type(node).__name__.startswith("NllLoss") else "_saved_self", None)
    return 0 if tensor is None else int(tensor.numel())


def _constant(node: Any, inner: Sequence[Any]) -> tuple[float, bool]:
    """What a scalar is multiplied with or divided by, and whether that is a number of Python's."""
    value = node._saved_other if inner[0] is not None else node._saved_self
    if not isinstance(value, torch.Tensor):
        return abs(float(value)), True
    return (abs(float(value)), _is_plain(value)) if value.numel() == 1 else (1.0, False)


def _is_plain(value: torch.Tensor) -> bool:
    """Whether this stands for a number of Python's: such a one does not decide of what type a result is."""
    small = {torch.float64: torch.float16, torch.int64: torch.int8}.get(value.dtype)
    return small is not None and torch.result_type(value, torch.ones((), dtype=small)) == small


def _divided(divisor: _Divisor, kind: str, by: float, plain: bool, whole: bool) -> _Divisor:
    """The divisor of what is below a division or multiplication, of the whole loss or of one of its terms."""
    if kind == "Div":
        return divisor.by(by, plain)
    if 0.0 < by < 1.0:  # as by one over a number; what is larger scales a loss, as a gradient scaler does
        return divisor.by(1.0 / by, plain, exact=whole and math.isclose(1.0 / by, round(1.0 / by)))
    return divisor


def _is_of(node: Any, kinds: Sequence[str]) -> bool:
    return type(node).__name__.rstrip("0123456789").removesuffix("Backward") in kinds


def _is_of_parameters(root: Any) -> bool:
    """Whether something is made of parameters alone, as penalties are: it is the same in all workers."""
    nodes = [root]
    for _ in range(_MOST_NODES):
        if not nodes:
            return True
        node = nodes.pop()
        inner = [each for each, _ in node.next_functions]
        if not _is_of(node, tuple(_OF_PARAMETERS)):
            return False
        if _is_of(node, ("Mm",)) and None in inner:
            return False
        if _is_of(node, ("Mul", "Div")) and None in inner:
            constant = node._saved_other if inner[0] is not None else node._saved_self
            if isinstance(constant, torch.Tensor) and constant.numel() != 1:
                return False
        nodes += [each for each in inner if each is not None]
    return False


_listener: list[Callable[[Sequence[torch.Tensor]], None]] = []


def watch(listener: Callable[[Sequence[torch.Tensor]], None]) -> None:
    """Have each backward that begins with losses tell them to `listener` from now on, and to none before."""
    if not _listener:
        _watch()
    _listener[:] = [listener]


def _watch() -> None:
    inner: Callable[..., Any] = torch.autograd.backward

    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        # A backward within a backward (reentrant checkpointing) begins with no loss.
        if torch._C._current_graph_task_id() == -1:
            roots = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
            with _disable_current_modes(), torch.no_grad():
                _listener[0](roots)
        return inner(tensors, grad_tensors, *args, **kwargs)

    torch.autograd.backward = backward
