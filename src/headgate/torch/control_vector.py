"""The control vector: numbers summed with the gradients, at the end of a round's last buffer. By it
all workers learn the same at the same step.

It holds:

- the weight of the round;
- the requests to the workers (`stop`, `checkpoint`);
- a mark, a digest of their positions and of the optimizers' settings;
- a flag for each parameter: whether it was used, whether the gradient of a sparse parameter is
  dense, and whether the gradient of a table on servers is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_DIGITS = 6
"""Hexadecimal digits of a mark. Sums of their squares are exact in float32 for up to 70,000
workers.
"""
_HEAD = 4 + 2 * _DIGITS
HEAD = slice(0, _HEAD)
"""The part of the vector that does not depend on parameters."""
MARKS = 1 << 4 * _DIGITS
"""Upper bound of marks."""


class ReduceError(RuntimeError):
    """Gradients arrived in a way that cannot be averaged."""


class Interruption:
    """A backward that failed in the middle of a step that the other workers wait for.

    Attributes:
        text: What is wrong; empty without a failure.
    """

    def __init__(self) -> None:
        self.text = ""

    def begins(self, error: BaseException) -> None:
        """Note a failure. Exceptions that end a script, such as the loss of another worker, do not
        count.
        """
        if not isinstance(error, Exception):
            return
        self.text = (
            f"a backward failed before ({type(error).__name__}), and the script went on: the other "
            "workers wait for the rest of that step. Let the error end the script, or leave a "
            "batch out before its backward, in all workers alike (hg.agree)"
        )

    def check(self) -> None:
        """
        Raises:
            ReduceError: The script has continued after the failure.
        """
        if self.text:
            raise ReduceError(self.text)


@dataclass(frozen=True)
class Shape:
    """The layout of a control vector.

    Args:
        dense: Number of parameters whose gradients are in buffers.
        sparse: Number of parameters with sparse gradients, which are summed separately.
        tables: Number of tables on servers.
    """

    dense: int
    sparse: int
    tables: int

    @property
    def numbers(self) -> int:
        return _HEAD + self.dense + 2 * self.sparse + self.tables


@dataclass(frozen=True)
class ControlInput:
    """One worker's control values in a round.

    Args:
        weight: Weight of its gradients.
        stop: Whether it was asked to stop.
        checkpoint: Whether it was asked to save.
        mark: A digest of its position and its optimizers' settings.
        used: For each dense parameter, whether it has a gradient.
        sparse: For each parameter with sparse gradients, whether it has a gradient.
        densified: For each of these, whether the gradient is dense.
        overflows: For each table on servers, whether this worker's gradient is not finite.
    """

    weight: float
    stop: bool
    checkpoint: bool
    mark: int
    used: Sequence[bool]
    sparse: Sequence[bool]
    densified: Sequence[bool]
    overflows: Sequence[bool]

    def numbers(self) -> list[float]:
        """The control vector to sum."""
        digits = [self.mark >> 4 * place & 15 for place in range(_DIGITS)]
        squares = [digit * digit for digit in digits]
        bits = (*self.used, *self.sparse, *self.densified, *self.overflows)
        return list(
            map(float, (self.weight, self.stop, self.checkpoint, 1, *digits, *squares, *bits))
        )


@dataclass(frozen=True)
class ControlSum:
    """The control values of all workers in a round.

    A flag is true if it is true for any worker. The weights are summed. The mark is the common one
    of all workers; None if they differ.
    """

    weight: float
    stop: bool
    checkpoint: bool
    mark: int | None
    used: Sequence[bool]
    sparse: Sequence[bool]
    densified: Sequence[bool]
    overflows: Sequence[bool]

    @classmethod
    def read(cls, numbers: Sequence[float], shape: Shape) -> ControlSum:
        """Read the summed control vector; only its head if `shape` has no parameters."""
        parts, end = [], _HEAD
        for size in (shape.dense, shape.sparse, shape.sparse, shape.tables):
            parts.append([number > 0 for number in numbers[end : end + size]])
            end += size
        weight, stop, checkpoint, count = numbers[:4]
        digits, squares = numbers[4 : 4 + _DIGITS], numbers[4 + _DIGITS : _HEAD]
        # All numbers are equal exactly if the sum of their squares is the least possible.
        alike = all(count * square == digit * digit for digit, square in zip(digits, squares))
        mark = (
            sum(round(digit / count) << 4 * place for place, digit in enumerate(digits))
            if alike and count
            else None
        )
        return cls(weight, stop > 0, checkpoint > 0, mark, *parts)
