"""Follows the divisor of a loss back to the numbers that were counted.

The sum of a mask may be clamped to at least 1, or have a small number added. It may become a Python
number. With several workers, the counts have to be summed first, and then treated the same. While
counts are followed, the tensor methods that make such numbers are wrapped. That costs a fraction of
a microsecond per call.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

_COUNT = "_headgate_count"
_INVERSE = "_headgate_inverse"
_MOST_READINGS = 64
_LITTLE = 1e-2
"""Most that is added to a count only to avoid a division by zero."""

Steps = tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Count:
    """The origin of a tensor with one element.

    Args:
        source: Its initial value.
        steps: Operations on the value: `least`, `most`, `plus`, `times`, each with a number.
        added: How many numbers were summed for it; 0: unknown.
        unclear: Whether it underwent another operation that may leave it unchanged.
        other: An operation after which counts cannot be summed; empty: none.
    """

    source: torch.Tensor
    steps: Steps = ()
    added: int = 0
    unclear: bool = False
    other: str = ""


@dataclass(frozen=True)
class Normaliser:
    """The divisor of a loss.

    Args:
        base: The count that is summed over the workers.
        local: The divisor in this worker.
        steps: Operations on the sum.
        known: Whether the base is known to be a count of this worker's part.
        other: As of `Count`.
    """

    base: float
    local: float
    steps: Steps = ()
    known: bool = False
    other: str = ""

    @property
    def exceeds(self) -> float:
        """By how much the number exceeds the result of its steps on the base; 0 if everything is
        known.
        """
        return self.local - applied(self.base, self.steps)


def applied(base: float, steps: Steps) -> float:
    """Apply the steps to a sum of counts."""
    for name, number in steps:
        if name == "least":
            base = max(base, number)
        elif name == "most":
            base = min(base, number)
        elif name == "plus":
            base += number
        else:
            base *= number
    return base


def of_tensor(value: torch.Tensor) -> Normaliser:
    """The origin of a tensor with one element."""
    number = abs(float(value))
    count = _held(value)
    if count is None:
        return Normaliser(number, number)
    base, steps = float(count.source), _simple(count.steps)
    if count.unclear:
        return Normaliser(base, number, (), True, count.other)
    if not steps or count.other:
        return Normaliser(number, number, (), bool(count.added), count.other)
    return Normaliser(base, number, steps, bool(count.added))


def of_number(value: float) -> Normaliser | None:
    """The origin of a Python number; None if it was not read from a tensor."""
    guarded: Normaliser | None = Normaliser(value, value, (), True) if value in _counts else None
    for number, tensor in reversed(_readings):
        read = abs(float(tensor)) if number is None and tensor is not None else abs(number or 0.0)
        count = _held(tensor)
        if read == value:
            made = Normaliser(read, read, (), True) if tensor is None else of_tensor(tensor)
            # It may be the greater of a count and 1, even if it equals the count this time.
            made = replace(made, known=made.known or count is not None)
            if made.known and not made.steps and value > 1:
                _counts.add(value)
            return made
        exceeds = value - read
        if (
            count is not None
            and not count.steps
            and (0 < exceeds <= _LITTLE or (not read and value == 1))
        ):
            guarded = Normaliser(read, value, (), True)
    return guarded


def inverse_of(value: Any) -> torch.Tensor | None:
    """The tensor that `value` is the reciprocal of; None if unknown."""
    return getattr(value, _INVERSE, None)


def _simple(steps: Steps) -> Steps:
    """None if the steps only multiply: sums may be formed before or after that."""
    return () if all(name == "times" for name, _ in steps) else steps


_readings: deque[tuple[float | None, torch.Tensor | None]] = deque(maxlen=_MOST_READINGS)
"""Numbers that the script has read from tensors, or tensors that it has compared with something."""
_counts: set[float] = set()
"""Counts that divided losses since the latest step."""


def forget(stepped: bool = False) -> None:
    """Forget the readings at the beginning of a backward.

    The next loss is divided by later readings, or by the same as this loss, if batches are
    accumulated for a step. `stepped`: a step is taken.
    """
    _readings.clear()
    if stepped:
        _counts.clear()


# --- wrapped methods ------------------------------------------------------------------------------


def _held(value: Any) -> Count | None:
    count: Count | None = getattr(value, _COUNT, None)
    return count


def _count_of(value: Any) -> Count | None:
    if not isinstance(value, torch.Tensor) or value.requires_grad or value.numel() != 1:
        return None
    return _held(value) or Count(value.detach().clone())


def _constant(value: Any) -> float | None:
    """The number of a value that is no count."""
    if isinstance(value, (int, float)):
        return float(value)
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not hasattr(value, _COUNT):
        return float(value)
    return None


def _summed(result: torch.Tensor, args: Sequence[Any], kwargs: Any) -> Count | None:
    source = args[0] if args else kwargs.get("input")
    inner = _held(source)
    if inner is not None:
        return inner
    numbers = source.numel() if isinstance(source, torch.Tensor) else 0
    return Count(result.detach().clone(), added=numbers)


def _stepped(name: str) -> Any:
    def make(result: torch.Tensor, args: Sequence[Any], kwargs: Any) -> Count | None:
        count = _count_of(args[0])
        number = _constant(args[1]) if len(args) > 1 else None
        if count is None or number is None:
            return _unclear(result, args, kwargs)
        return replace(count, steps=(*count.steps, (name, number)))

    return make


def _clamped(result: torch.Tensor, args: Sequence[Any], kwargs: Any) -> Count | None:
    count = _count_of(args[0])
    bounds = dict(zip(("min", "max"), args[1:])) | kwargs
    steps = [
        (n, _constant(bounds[k]))
        for k, n in (("min", "least"), ("max", "most"))
        if bounds.get(k) is not None
    ]
    if count is None or any(number is None for _, number in steps):
        return _unclear(result, args, kwargs)
    return replace(
        count, steps=(*count.steps, *((name, float(number or 0)) for name, number in steps))
    )


def _combined(
    result: torch.Tensor, args: Sequence[Any], kwargs: Any, sign: float = 1.0
) -> Count | None:
    """The sum or difference of a count and a number, or of two counts, which is a count."""
    left, right = args[0], args[1] if len(args) > 1 else kwargs.get("other")
    first, second = _held(left), _held(right)
    if first is not None and second is not None:
        clear = not any(count.steps or count.unclear for count in (first, second))
        both = Count(result.detach().clone(), added=first.added + second.added)
        return both if clear else _unclear(result, args, kwargs)
    count, number = (second, left) if first is None else (first, right)
    if count is not None and isinstance(number, (int, float)):
        # Python's `sum` begins with 0.
        return replace(count, steps=(*count.steps, ("plus", sign * number))) if number else count
    return _unclear(result, args, kwargs)


def _scaled(
    result: torch.Tensor, args: Sequence[Any], kwargs: Any, inverse: bool = False
) -> Count | None:
    left, right = args[0], args[1] if len(args) > 1 else kwargs.get("other")
    if not inverse and _held(left) is None:
        left, right = right, left
    count = _held(left)
    if count is not None and isinstance(right, (int, float)) and right > 0:
        return replace(
            count, steps=(*count.steps, ("times", 1.0 / right if inverse else float(right)))
        )
    return _unclear(result, args, kwargs)


def _same(result: torch.Tensor, args: Sequence[Any], kwargs: Any) -> Count | None:
    return _held(args[0])


def _unclear(result: torch.Tensor, args: Sequence[Any], kwargs: Any) -> Count | None:
    """The result of an operation that may leave a count unchanged, as `where` does."""
    for argument in args:
        count = _held(argument)
        if count is not None and count.added:
            return replace(count, unclear=True)
    return None


def _inverted(result: torch.Tensor, args: Sequence[Any], kwargs: Any) -> Count | None:
    if len(args) < 2 or args[1] == 1:
        setattr(result, _INVERSE, args[0])
    return None


def _other(name: str) -> Any:
    def make(result: torch.Tensor, args: Sequence[Any], kwargs: Any) -> Count | None:
        source = args[0] if args else None
        if not isinstance(source, torch.Tensor) or (
            source.numel() == 1 and not hasattr(source, _COUNT)
        ):
            return None
        return Count(result.detach().clone(), other=name)

    return make


Made = Callable[[torch.Tensor, Sequence[Any], Any], "Count | None"]
_METHODS: dict[str, Made] = {
    **dict.fromkeys(("sum", "nansum", "count_nonzero"), _summed),
    **dict.fromkeys(("clamp", "clip", "clamp_", "clip_"), _clamped),
    **{name: _stepped("least") for name in ("clamp_min", "clamp_min_", "maximum", "fmax")},
    **{name: _stepped("most") for name in ("clamp_max", "clamp_max_", "minimum", "fmin")},
    **dict.fromkeys(("add", "add_", "__add__", "__radd__", "__iadd__"), _combined),
    **{name: lambda r, a, k: _combined(r, a, k, -1.0) for name in ("sub", "__sub__")},
    **dict.fromkeys(("mul", "mul_", "__mul__", "__rmul__", "__imul__"), _scaled),
    **{
        name: lambda r, a, k: _scaled(r, a, k, True)
        for name in ("div", "div_", "__truediv__", "__itruediv__")
    },
    **dict.fromkeys(
        ("float", "double", "half", "bfloat16", "to", "type", "int", "long", "detach", "squeeze"),
        _same,
    ),
    **dict.fromkeys(("where", "max", "min", "masked_fill", "nan_to_num"), _unclear),
    **dict.fromkeys(("reciprocal", "__rtruediv__"), _inverted),
    **{
        name: _other(name)
        for name in (
            *(
                "sqrt",
                "rsqrt",
                "pow",
                "log",
                "log1p",
                "log2",
                "exp",
                "square",
                "var",
                "std",
                "norm",
                "amax",
                "amin",
            ),
        )
    },
    "__pow__": _other("pow"),
}
_FUNCTIONS = (
    *("sum", "nansum", "count_nonzero", "clamp", "clip", "clamp_min", "clamp_max"),
    *("maximum", "fmax", "minimum", "fmin"),
    *(
        "add",
        "sub",
        "mul",
        "div",
        "where",
        "max",
        "min",
        "reciprocal",
        "sqrt",
        "rsqrt",
        "pow",
        "log",
        "log1p",
        "exp",
    ),
    *("var", "std", "norm"),
)
_READ = ("item", "__int__", "__float__", "__index__", "tolist")
_COMPARED = ("__gt__", "__lt__", "__ge__", "__le__", "__eq__", "__ne__", "__bool__")

_originals: dict[tuple[Any, str], Any] = {}


def follow() -> None:
    """From now on, follow the divisors of losses."""
    if _originals:
        return
    tensor: Any = torch.Tensor
    for name, make in _METHODS.items():
        _wrap(tensor, name, make)
    for name in _FUNCTIONS:
        _wrap(torch, name, _METHODS[name])
    for name in _READ:
        _put(tensor, name, _reading(getattr(tensor, name)))
    for name in _COMPARED:
        _put(tensor, name, _comparing(getattr(tensor, name)))


def leave() -> None:
    """Stop following, because the divisors of losses are known."""
    for (owner, name), (inner, inherited) in _originals.items():
        if inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, inner)
    _originals.clear()
    _readings.clear()


def _put(owner: Any, name: str, wrapper: Any) -> None:
    inner = getattr(owner, name)
    wrapper.__name__, wrapper.__doc__ = name, getattr(inner, "__doc__", None)
    _originals[owner, name] = inner, name not in vars(owner)
    setattr(owner, name, wrapper)
    if owner is torch:
        table: Any = torch.jit._builtins._get_builtin_table()  # type: ignore[no-untyped-call]
        if id(inner) in table:
            table[id(wrapper)] = table[id(inner)]


def _wrap(owner: Any, name: str, make: Made) -> None:
    inner: Any = getattr(owner, name, None)
    if inner is None:
        return

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        result = inner(*args, **kwargs)
        if (
            torch.compiler.is_compiling()
            or type(result) is not torch.Tensor
            or result.requires_grad
        ):
            return result
        if result.numel() == 1 and not result.is_meta:
            count = _making(make, result, args, kwargs)
            if count is not None:
                setattr(result, _COUNT, count)
        return result

    _put(owner, name, wrapper)


_busy = False


@contextmanager
def aside() -> Iterator[None]:
    """A context for computations that are not the script's."""
    global _busy
    before, _busy = _busy, True
    try:
        yield
    finally:
        _busy = before


def _making(make: Made, result: torch.Tensor, args: Sequence[Any], kwargs: Any) -> Count | None:
    if _busy or not args:
        return None
    with aside(), torch.no_grad():
        return make(result, args, kwargs)


def _reading(inner: Any) -> Any:
    def wrapper(self: torch.Tensor) -> Any:
        value = inner(self)
        if _busy or torch.compiler.is_compiling() or self.requires_grad or self.numel() != 1:
            return value
        if isinstance(value, (int, float)) and math.isfinite(value):
            _readings.append((float(value), self if hasattr(self, _COUNT) else None))
        return value

    return wrapper


def _comparing(inner: Any) -> Any:
    def wrapper(self: torch.Tensor, *other: Any) -> Any:
        if not _busy and hasattr(self, _COUNT) and not torch.compiler.is_compiling():
            _readings.append((None, self))
        return inner(self, *other)

    return wrapper
