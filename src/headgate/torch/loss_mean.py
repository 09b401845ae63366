"""Reads from the graph of a loss the number that it is a mean over.

A mean over samples weights a worker's gradients by its samples. A mean over unpadded tokens, or
with class weights, weights them by these. PyTorch's graph has their number, whichever function made
the loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from headgate.torch import normalisers
from headgate.torch.loss_graph import is_of, is_of_parameters, kind_of, nodes_below
from headgate.torch.normalisers import Normaliser

_PASSED = frozenset(
    (
        "Neg",
        "View",
        "UnsafeView",
        "ReshapeAlias",
        "Alias",
        "Clone",
        "ToCopy",
        "Squeeze",
        "Unsqueeze",
        "Rsub",
        "Expand",
    )
)
_SUMS = frozenset(("Sum", "Nansum", "Dot"))
_MOST_PARTS = 10_000
_CLOSE = 1e-6
"""Part by which two sums of the same numbers may differ in float32."""


@dataclass(frozen=True)
class LossTerm:
    """A mean in a loss.

    Args:
        node: Its node in PyTorch's graph, or the sum that is divided.
        kind: Kind of the node, for example `NllLoss`.
        by: The number that the mean is over: tokens, numbers, a sum of weights.
        times: Its other factor, which has to be the same in all workers.
        counted: Whether it may leave samples out. Otherwise its count is in proportion to the
            samples.
        elements: How many numbers are summed, if it is a sum that is divided; 0: it is not.
        listed: The divisor of a list of such terms; 1: no list is known.
        whole: Whether it includes all numbers of each sample, though it need not.
        weights: A digest of the weights of its classes, which have to be the same in all workers.
    """

    node: Any
    kind: str
    by: Normaliser
    times: float = 1.0
    counted: bool = False
    elements: int = 0
    listed: float = 1.0
    whole: bool = False
    weights: float = 0.0

    @property
    def count(self) -> float:
        return self.by.base


@dataclass
class LossReading:
    """What the graph of a loss shows.

    Attributes:
        terms: The means in it.
        nothing: Whether a term is multiplied by 0, as when nothing counts in a part of a batch.
        doubt: Why several workers may not compute the same as one process; empty: no reason is
            known.
    """

    terms: tuple[LossTerm, ...] = ()
    nothing: bool = False
    doubt: str = ""

    @property
    def over(self) -> float | None:
        """The number that the loss is a mean over: samples, tokens, a sum of weights. None:
        unknown.
        """
        if not self.terms:
            return 0.0 if self.nothing else None
        over = self.terms[0].count
        return over if math.isfinite(over) else None


@dataclass(frozen=True)
class _Divisor:
    """The divisors and factors of a part of a loss.

    Args:
        exact: Product of the divisors.
        scaled: The same, with factors below 1, which for a mean are its importance.
        times: Product of the other factors.
        fractions: Product of factors below 1 that are no divisions.
        plain: Whether all divisors are Python numbers.
        made: A tensor that it is divided by.
        read: A number that it is divided by, as it was read from a tensor.
        doubt: Why no mean may be divided by this; empty: no reason is known.
    """

    exact: float = 1.0
    scaled: float | None = None
    times: float = 1.0
    fractions: float = 1.0
    plain: bool = True
    made: Normaliser | None = None
    read: Normaliser | None = None
    doubt: str = ""

    def by(self, value: float, exact: bool = True) -> _Divisor:
        return replace(
            self,
            exact=self.exact * value if exact else self.exact,
            scaled=(1.0 if self.scaled is None else self.scaled) * value,
            fractions=self.fractions if exact else self.fractions / value,
        )

    def by_number(self, value: float) -> _Divisor:
        return replace(self.by(value), read=self.read or normalisers.of_number(value))

    def by_tensor(self, value: torch.Tensor) -> _Divisor:
        made = normalisers.of_tensor(value)
        doubt = self.doubt
        if made.other:
            doubt = f"it is divided by what {made.other}() makes of the numbers of a batch"
        elif self.made is not None:
            doubt = "it is divided by several counts"
        return replace(self.by(made.local), plain=False, made=made, doubt=doubt)

    def counts(self, number: float) -> tuple[Normaliser, str]:
        """The number that a mean over `number` entries is over after this division, and a reason to
        doubt it.
        """
        made = self.made
        doubt = self.doubt
        if made is not None and (made.steps or made.exceeds):
            doubt = doubt or "a mean is divided by a count that is kept from being 0"
        return Normaliser(
            number * self.exact, number * self.exact, known=made is not None and made.known
        ), doubt

    def sums(self) -> tuple[Normaliser, str]:
        """The number that a sum becomes a mean over by this division, and a reason to doubt it."""
        made, divisor = self.made or self.read, self.scaled or 0.0
        if made is None or not made.local:
            return Normaliser(divisor, divisor, known=made is not None and made.known), self.doubt
        factor_left = divisor / made.local
        if made.steps and factor_left != 1.0:
            return replace(
                made, local=divisor, steps=(*made.steps, ("times", factor_left))
            ), self.doubt
        factor = 1.0 if made.steps else factor_left
        return replace(made, base=made.base * factor, local=made.local * factor_left), self.doubt


@dataclass
class _LossTerms:
    """The terms of a loss: those that may leave samples out, and others; sums; other nodes. And
    whether a term is multiplied by 0.

    Args:
        divided: Sums that a tensor divides: the place in `counted`, and the divisor.
        class_weights: What the class weights of a worker's samples come to.
    """

    counted: list[LossTerm] = field(default_factory=list)
    means: list[LossTerm] = field(default_factory=list)
    divided: list[tuple[int, float]] = field(default_factory=list)
    class_weights: list[float] = field(default_factory=list)
    sums: int = 0
    nothing: bool = False
    others: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)


def read(roots: Sequence[torch.Tensor]) -> LossReading:
    """Read what the loss with the terms `roots` is a mean over."""
    seen = _LossTerms()
    with normalisers.aside():
        for root in roots:
            if root.numel() != 1:
                return LossReading(doubt="its backward begins with gradients that the script gives")
            if root.grad_fn is None:
                return LossReading()
            _walk(root.grad_fn, seen)
    for place, number in seen.divided:
        # so PyTorch divides what label smoothing adds to a loss with class weights; 1 may be any
        # number that is kept from being 0
        if number != 1.0 and any(
            math.isclose(number, weight, rel_tol=_CLOSE) for weight in seen.class_weights
        ):
            term = seen.counted[place]
            seen.counted[place] = replace(term, by=replace(term.by, known=True))
    doubt = ""
    if seen.sums:
        doubt = "a sum over the batch is part of it"
    elif seen.others:
        doubt = f"it is made by {seen.others[0]}, and no mean over samples is seen in it"
    elif seen.doubts:
        doubt = seen.doubts[0]
    return LossReading((*seen.counted, *seen.means), seen.nothing, doubt)


def _walk(root: Any, seen: _LossTerms) -> None:
    """Walk through the sums and multiples that a scalar is made of."""
    nodes = [(root, _Divisor())]
    for _ in range(_MOST_PARTS):
        if not nodes:
            return
        node, divisor = nodes.pop(0)
        kind = kind_of(node)
        inner = [child for child, _ in node.next_functions]
        live = [child for child in inner if child is not None]
        if kind in _PASSED or kind in ("Add", "Sub", "Stack", "Cat"):
            nodes[:0] = [(child, divisor) for child in live]
        elif kind in ("Mul", "Div") and len(live) == 1 and (kind == "Mul" or inner[0] is not None):
            is_root = not (nodes or seen.counted or seen.means or seen.sums or seen.others)
            divided = _divided(divisor, kind, node, inner, is_root)
            if divided is None:
                seen.nothing = True
            else:
                nodes.insert(0, (live[0], divided))
        elif kind in (*_SUMS, "Mean") and (scalars := _scalars(node, kind, live)):
            if kind == "Mean":
                divisor = divisor.by(float(len(scalars)))
            nodes[:0] = [(scalar, divisor) for scalar in scalars]
        elif not is_of_parameters(node):
            _leaf(node, kind, divisor, seen)
    seen.others.append("more parts than are followed")


def _leaf(node: Any, kind: str, divisor: _Divisor, seen: _LossTerms) -> None:
    reduction = getattr(node, "_saved_reduction", None)
    if kind in _SUMS or reduction == 2:
        if divisor.scaled is None:
            seen.sums += 1
            return
        by, doubt = divisor.sums()
        counted = not divisor.plain or divisor.read is not None
        if divisor.made is not None:
            seen.divided.append((len(seen.counted), divisor.made.local))
        seen.counted.append(
            LossTerm(
                node,
                kind,
                by,
                divisor.times,
                counted,
                _sum_count(node),
                weights=_class_weights(node),
            )
        )
    else:
        is_weighed = kind.startswith("NllLoss") and reduction == 1
        if not is_weighed and kind != "Mean" and reduction != 1:
            seen.others.append(kind)
            return
        number = _mean_count(node, kind)
        by, doubt = divisor.counts(number)
        times, listed = divisor.times * divisor.fractions, divisor.exact if divisor.plain else 1.0
        counts_all = is_weighed and float(node._saved_target.numel()) == number
        counted = is_weighed or not divisor.plain
        term = LossTerm(
            node,
            kind,
            by,
            times,
            counted,
            listed=listed,
            whole=counts_all,
            weights=_class_weights(node),
        )
        (seen.counted if is_weighed else seen.means).append(term)
        if is_weighed:
            seen.class_weights.append(number)
    if doubt:
        seen.doubts.append(doubt)


_WEIGH_CLASSES = ("NllLoss", "BinaryCrossEntropy", "MultiMarginLoss")
_NEAR = 4
"""Number of nodes below a term that are searched for class weights."""
_read_weights: dict[tuple[int, int], float] = {}
"""Values of weights on a GPU, by address and version, because each read waits for the GPU."""


def _class_weights(node: Any) -> float:
    """A digest of the class weights in a loss; 0: it has none."""
    for child, _ in zip(nodes_below(node), range(_NEAR)):
        if not kind_of(child).startswith(_WEIGH_CLASSES):
            continue
        weights = [getattr(child, "_saved_pos_weight", None), child._saved_weight]
        if kind_of(child).startswith("Binary") and _is_of_samples(
            child._saved_weight, child._saved_self
        ):
            weights.pop()
        return sum(_sum_of(weight) for weight in weights if isinstance(weight, torch.Tensor))
    return 0.0


def _is_of_samples(weight: torch.Tensor | None, given: torch.Tensor) -> bool:
    """Whether each sample has a weight of its own."""
    return (
        weight is not None and weight.dim() == given.dim() and weight.shape[:1] == given.shape[:1]
    )


def _sum_of(weight: torch.Tensor) -> float:
    ramp = torch.linspace(1.0, 2.0, weight.numel(), dtype=torch.float64, device=weight.device)
    if not weight.is_cuda:
        return float((weight.reshape(-1).double() * ramp).sum())
    key = weight.data_ptr(), weight._version
    if key not in _read_weights:
        if len(_read_weights) > _MOST_PARTS:
            _read_weights.clear()
        _read_weights[key] = float((weight.reshape(-1).double() * ramp).sum())
    return _read_weights[key]


def _mean_count(node: Any, kind: str) -> float:
    """The number of entries that a node takes the mean over."""
    if kind.startswith("NllLoss"):
        return float(node._saved_total_weight)
    return float(node._saved_self_sym_numel if kind == "Mean" else node._saved_self.numel())


def _scalars(node: Any, kind: str, live: Sequence[Any]) -> list[Any]:
    """The scalars whose sum or mean this node is, if the script made a list of losses."""
    if not live or not is_of(live[0], ("Stack", "Cat")):
        return []
    inner = [child for child, _ in live[0].next_functions]
    numbers = node._saved_self_sym_numel if kind == "Mean" else _sum_count(node)
    return [child for child in inner if child is not None] if numbers == len(inner) else []


def _sum_count(node: Any) -> int:
    """How many numbers a sum is over; 0: unknown."""
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    if sizes is not None:
        return math.prod(sizes)
    tensor = getattr(
        node, "_saved_target" if type(node).__name__.startswith("NllLoss") else "_saved_self", None
    )
    return 0 if tensor is None else int(tensor.numel())


def _divided(
    divisor: _Divisor, kind: str, node: Any, inner: Sequence[Any], whole: bool
) -> _Divisor | None:
    """The divisor below a division or multiplication, of the whole loss or of a term. None: it is
    multiplied by 0.
    """
    value = node._saved_other if inner[0] is not None else node._saved_self
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            return divisor
        inverse = normalisers.inverse_of(value) if kind == "Mul" else None
        if inverse is not None and inverse.numel() == 1:
            value, kind = inverse, "Div"
    is_number = not isinstance(value, torch.Tensor) or _is_plain(value)
    if kind == "Div":
        return divisor.by_number(abs(float(value))) if is_number else divisor.by_tensor(value)
    by = abs(float(value))
    if not by:
        return None
    if by < 1.0:  # as by one over a number; what is larger scales a loss, as a gradient scaler does
        number = round(1.0 / by)
        if is_number and math.isclose(1.0 / by, number):
            return divisor.by_number(1.0 / by) if whole else divisor.by(1.0 / by, exact=False)
        return divisor.by(1.0 / by, exact=whole and math.isclose(1.0 / by, number))
    return replace(divisor, times=divisor.times * by)


def _is_plain(value: torch.Tensor) -> bool:
    """Whether a tensor stands for a Python number. Such a tensor does not affect the type of a
    result.
    """
    small = {torch.float64: torch.float16, torch.int64: torch.int8}.get(value.dtype)
    return small is not None and torch.result_type(value, torch.ones((), dtype=small)) == small


_listeners: list[
    tuple[Callable[[Sequence[torch.Tensor]], None], Callable[[BaseException], None]]
] = []


def watch(
    begins: Callable[[Sequence[torch.Tensor]], None], fails: Callable[[BaseException], None]
) -> None:
    """Report each backward that begins with losses from now on, in place of earlier functions.

    Args:
        begins: Called with the losses.
        fails: Called with the exception of a failed backward.
    """
    if not _listeners:
        _watch()
    _listeners[:] = [(begins, fails)]


def _watch() -> None:
    inner: Callable[..., Any] = torch.autograd.backward

    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        # A backward within a backward (reentrant checkpointing) does not begin with a loss.
        if torch._C._current_graph_task_id() != -1:
            return inner(tensors, grad_tensors, *args, **kwargs)
        begins, fails = _listeners[0]
        roots = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
        with _disable_current_modes(), torch.no_grad():
            begins(roots)
        try:
            return inner(tensors, grad_tensors, *args, **kwargs)
        except BaseException as error:
            fails(error)
            raise

    torch.autograd.backward = backward
