"""The control vector: numbers that are summed with the gradients, at the end of a round's last buffer, so that all
workers learn the same at the same step.

They are the weight of the round; what workers were asked to do (`stop`, `checkpoint`); a mark of the batch; and, 0 or 1
for every worker, whether a parameter was used, whether the gradient of a sparse one is dense, and whether that of a
table on servers is not finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FLAGS = slice(1, 3)
"""Where it says what workers were asked to do."""
_MARKS = slice(3, 6)  # of the batch's mark how many workers know it, it, and its square
_HEAD = 6


class ReduceError(RuntimeError):
    """Gradients came in a way that cannot be averaged."""


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
class Said:
    """What one worker says in a round.

    Args:
        weight: What its gradients count.
        stop: Whether it was asked to stop.
        checkpoint: Whether it was asked to save.
        mark: Tells its global batch from others; None: unknown.
        used: For each dense parameter whether it has a gradient.
        sparse: The same of those with sparse gradients.
        densified: Of these, whether the gradient is a dense one.
        overflows: For each table on servers, whether this worker's gradient of it is not finite.
    """

    weight: float
    stop: bool
    checkpoint: bool
    mark: int | None
    used: Sequence[bool]
    sparse: Sequence[bool]
    densified: Sequence[bool]
    overflows: Sequence[bool]

    def numbers(self) -> list[float]:
        """As it is summed."""
        marks = (0.0, 0.0, 0.0) if self.mark is None else (1.0, float(self.mark), float(self.mark * self.mark))
        bits = map(float, (*self.used, *self.sparse, *self.densified, *self.overflows))
        return [self.weight, float(self.stop), float(self.checkpoint), *marks, *bits]


@dataclass(frozen=True)
class Agreed:
    """What all workers of a round say: of what `Said` has, whether any of them says so; and the sum of the weights."""

    weight: float
    stop: bool
    checkpoint: bool
    used: Sequence[bool]
    sparse: Sequence[bool]
    densified: Sequence[bool]
    overflows: Sequence[bool]

    @classmethod
    def read(cls, numbers: Sequence[float], shape: Shape) -> Agreed:
        """From the sum of what all said.

        Raises:
            ReduceError: They train on different batches.
        """
        _check_marks(*numbers[_MARKS])
        parts, end = [], _HEAD
        for size in (shape.dense, shape.sparse, shape.sparse, shape.tables):
            parts.append([number > 0 for number in numbers[end : end + size]])
            end += size
        stop, checkpoint = (number > 0 for number in numbers[FLAGS])
        return cls(numbers[0], stop, checkpoint, *parts)


def _check_marks(count: float, marks: float, squares: float) -> None:
    """All marks are the same just where their squares sum to no more than they have to."""
    if count * squares != marks * marks:
        raise ReduceError(
            "the workers draw different batches from a loader; expected the same ones. Its sampler has a random "
            "generator of its own: seed it alike in all workers, or let it draw from the global one of torch or NumPy"
        )
