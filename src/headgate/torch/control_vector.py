"""The control vector: numbers that are summed with the gradients, at the end of a round's last
buffer, so that all workers learn the same at the same step.

It holds:

- the weight of the round;
- what workers were asked to do (`stop`, `checkpoint`);
- a mark of where they stand and what their optimizers used;
- 0 or 1 for every worker: whether a parameter was used, whether the gradient of a sparse parameter
  is dense, and whether the gradient of a table on servers is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_DIGITS = 6
"""Hexadecimal digits of a mark: sums of their squares are exact in float32 for up to 70,000
workers.
"""
_HEAD = 4 + 2 * _DIGITS
HEAD = slice(0, _HEAD)
"""Where it says all but what it says of parameters."""
MARKS = 1 << 4 * _DIGITS
"""Marks are below this."""


class ReduceError(RuntimeError):
    """Gradients came in a way that cannot be averaged."""


class Interruption:
    """A backward that failed in the middle of a step, which the other workers wait for.

    Attributes:
        text: What is wrong, once it has; empty before.
    """

    def __init__(self) -> None:
        self.text = ""

    def begins(self, error: BaseException) -> None:
        """It has failed. What ends a script, as the loss of another worker, is none of it."""
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
            ReduceError: The script has gone on.
        """
        if self.text:
            raise ReduceError(self.text)


@dataclass(frozen=True)
class Shape:
    """What a control vector is about.

    Args:
        dense: Parameters whose gradients travel in buffers.
        sparse: Parameters with sparse gradients, which are added up apart.
        tables: Tables on servers.
    """

    dense: int
    sparse: int
    tables: int

    @property
    def numbers(self) -> int:
        return _HEAD + self.dense + 2 * self.sparse + self.tables


@dataclass(frozen=True)
class ControlInput:
    """What one worker says in a round.

    Args:
        weight: What its gradients count.
        stop: Whether it was asked to stop.
        checkpoint: Whether it was asked to save.
        mark: Tells where it stands, and what its optimizers used, from all else.
        used: For each dense parameter whether it has a gradient.
        sparse: The same of those with sparse gradients.
        densified: Of these, whether the gradient is a dense one.
        overflows: For each table on servers, whether this worker's gradient of it is not finite.
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
        """As it is summed."""
        digits = [self.mark >> 4 * place & 15 for place in range(_DIGITS)]
        squares = [digit * digit for digit in digits]
        bits = (*self.used, *self.sparse, *self.densified, *self.overflows)
        return list(
            map(float, (self.weight, self.stop, self.checkpoint, 1, *digits, *squares, *bits))
        )


@dataclass(frozen=True)
class ControlSum:
    """What all workers of a round say.

    A field of `ControlInput` is true where any worker says so. The weights are added up. The mark
    is that of all workers; None where they differ.
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
        """From the sum of what all said; of its head alone where `shape` has no parameters."""
        parts, end = [], _HEAD
        for size in (shape.dense, shape.sparse, shape.sparse, shape.tables):
            parts.append([number > 0 for number in numbers[end : end + size]])
            end += size
        weight, stop, checkpoint, count = numbers[:4]
        digits, squares = numbers[4 : 4 + _DIGITS], numbers[4 + _DIGITS : _HEAD]
        # Numbers are the same just where their squares sum to no more than they have to.
        alike = all(count * square == digit * digit for digit, square in zip(digits, squares))
        mark = (
            sum(round(digit / count) << 4 * place for place, digit in enumerate(digits))
            if alike and count
            else None
        )
        return cls(weight, stop > 0, checkpoint > 0, mark, *parts)
