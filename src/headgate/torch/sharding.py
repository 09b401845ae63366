"""Assigns the samples of global batches to workers.

An `Assigner` does so for every pass over a training loader. `Slices` gives every worker its slice
of every batch. In asynchronous plans, the servers lease whole batches, with an assigner of their
own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Callable


@dataclass(frozen=True)
class Pass:
    """A pass over a loader, the same for all workers.

    Args:
        phase: Number of the script's loop over `epochs`; -1: outside.
        epoch: Epoch of that loop; -1: outside.
        loader: Number of the loader, in the order of `prepare`.
        nth: Number of earlier passes over the loader in the same epoch.
        done: Global batches done before the pass began or was rejoined.
        batches: Number of global batches; None if the loader does not tell.
        by_index: Whether batches are drawn as indices. Other batches can only be taken in ascending
            order.
    """

    phase: int
    epoch: int
    loader: int
    nth: int
    done: int
    batches: int | None
    by_index: bool


@dataclass(frozen=True)
class Assigned:
    """This worker's part of a global batch.

    Args:
        number: Number in its pass, from 0.
        whole: Samples in the global batch; None if unknown.
        taken: Samples of this worker's part that count; 0: it computes on borrowed ones, with
            weight 0.
        mark: A digest below 256 of the whole batch's indices; None: unknown.
    """

    number: int
    whole: int | None
    taken: int
    mark: int | None = None


class ShardAssignment(ABC):
    """A worker's parts of one pass.

    Attributes:
        steps_back: Whether `next` may return a smaller number than before (only if
            `Pass.by_index`). Then batches that were passed over are kept.
    """

    steps_back: bool = False

    @abstractmethod
    def next(self) -> int | None:
        """Number of the next global batch to take a part of; None: none is left in this pass.

        Called when the batch's indices are drawn: ahead of its use, if a loader reads ahead.
        """

    @abstractmethod
    def part(self, number: int, samples: int) -> tuple[int, int]:
        """Begin and end of this worker's part of that batch of `samples` samples. If they are
        equal, it has none.
        """

    def ended(self, number: int) -> bool:
        """Note that the pass has no batch of this number. Returns whether `next` may still name
        another one, which came back from a lost worker.
        """
        return False

    def more(self, can_be_drawn: bool) -> bool:
        """Wait until it is known whether there are more batches after all that `next` named: those
        that other workers left undone.

        Args:
            can_be_drawn: Whether the pass can be drawn again from its beginning. Then `next` names
                these batches.

        Returns:
            Whether there are any.
        """
        return False

    @property
    def stale(self) -> bool:
        """Whether parts that were drawn and not used yet have to be drawn again."""
        return False

    @property
    def done(self) -> int | None:
        """Global batches of the pass that a resume may skip. None: those given to this worker."""
        return None


class Assigner(ABC):
    """Assigns the parts of every pass over a training loader.

    Attributes:
        gives_again: Whether a worker may train again on its earlier parts of a pass, as a cycle
            repeats them.
    """

    gives_again: bool = False

    @abstractmethod
    def assign(self, coming: Pass) -> ShardAssignment:
        """This worker's parts of the pass that begins."""

    def given(self, loader: int, number: int) -> None:  # noqa: B027 - most have nothing to learn from it
        """Note that the script was given this worker's part of that global batch, of the latest
        pass over that loader.
        """


class Slices(Assigner):
    """Gives every worker a slice of every batch, in the order of their indices.

    Args:
        index: This worker's index.
        members: Indices, ascending, of the workers between which batches are divided.
        proportions: Samples of a step by worker index; None: all take the same.
        smallest: Fewest samples of a non-empty part, if the batch has as many: 2 for a model with
            batch normalisation, which cannot be trained on one.
    """

    gives_again = True

    def __init__(
        self,
        index: int,
        members: Sequence[int],
        proportions: Sequence[int] | None,
        smallest: Callable[[], int],
    ) -> None:
        self._index = index
        self._proportions = proportions
        self._smallest = smallest
        self.members = tuple(members)

    def assign(self, coming: Pass) -> ShardAssignment:
        return _Slicing(self, coming.done)

    def part(self, samples: int) -> tuple[int, int]:
        """Begin and end of this worker's slice of a batch."""
        if self._index not in self.members:
            return 0, 0
        ends = divided(samples, [self._weight(member) for member in self.members], self._smallest())
        place = self.members.index(self._index)
        return (ends[place - 1] if place else 0), ends[place]

    def _weight(self, member: int) -> int:
        if self._proportions is None or member >= len(self._proportions):
            return max(self._proportions) if self._proportions else 1
        return self._proportions[member]


class _Slicing(ShardAssignment):
    def __init__(self, slices: Slices, done: int) -> None:
        self._slices = slices
        self._members = slices.members
        self._next = done

    def next(self) -> int:
        self._next += 1
        return self._next - 1

    def part(self, number: int, samples: int) -> tuple[int, int]:
        return self._slices.part(samples)

    @property
    def stale(self) -> bool:
        return self._members != self._slices.members


def divided(samples: int, weights: Sequence[int], smallest: int = 1) -> list[int]:
    """The end of each part when `samples` are divided by `weights`, rounded to whole numbers.

    No part is smaller than `smallest` unless it is empty, or there are fewer samples than that.
    """
    total = sum(weights)
    units = samples // smallest if smallest <= samples else 1
    ends, so_far = [], 0
    for weight in weights:
        so_far += weight
        ends.append((units * so_far * 2 + total) // (2 * total) * smallest)
    # The remainder goes to the last non-empty part.
    last = ends[-1]
    return [samples if end == last else end for end in ends]
