"""The samples of global batches that a worker takes.

A `Assigner` says so for every pass over a training loader. `Slices` gives every worker its slice of
every batch. Servers of an asynchronous plan lease whole batches instead, with a dealer of their
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
        phase: Which of the script's loops over `epochs` it is in; -1: none.
        epoch: Epoch of that loop; -1: none.
        loader: Number of the loader, in the order of `prepare`.
        nth: How often the loader was gone through before, in the same epoch.
        done: Global batches that were done before it began or was rejoined here.
        batches: Global batches in all; None where the loader does not tell.
        by_index: Whether batches are drawn as indices: others can only be taken in ascending order.
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
        number: Which of its pass, counted from 0.
        whole: Samples in the global batch; None where it does not tell.
        taken: Samples of this worker's part that count; 0: it runs on borrowed ones, with weight 0.
        mark: A number below 256 that differs, very likely, where the indices of the whole batch do;
            None: unknown.
    """

    number: int
    whole: int | None
    taken: int
    mark: int | None = None


class ShardAssignment(ABC):
    """What a worker takes in one pass.

    Attributes:
        steps_back: Whether `next` may answer a smaller number than before (never where not
            `Pass.by_index`): what was passed over is then kept.
    """

    steps_back: bool = False

    @abstractmethod
    def next(self) -> int | None:
        """Number of the next global batch to take a part of; None: no other is left in this pass.

        Called when the batch's indices are drawn: ahead of its use where a loader reads ahead.
        """

    @abstractmethod
    def part(self, number: int, samples: int) -> tuple[int, int]:
        """From where to where this worker's part of that batch, of so many samples, goes; equal: it
        has none.
        """

    def ended(self, number: int) -> bool:
        """There is no batch of this number: the pass has fewer. Whether `next` may name another one
        all the same: one that came back because the worker that had it is gone.
        """
        return False

    def more(self, can_be_drawn: bool) -> bool:
        """All that `next` named was used: whether there are batches after all, which others left
        undone; waits until that is known.

        Args:
            can_be_drawn: Whether the pass can be drawn again from where it began: `next` then names
                them.
        """
        return False

    @property
    def stale(self) -> bool:
        """Whether parts that were drawn and not used yet have to be drawn anew."""
        return False

    @property
    def done(self) -> int | None:
        """Global batches of the pass that a resume may skip; None: those that this worker has been
        given.
        """
        return None


class Assigner(ABC):
    """Deals every pass over a training loader.

    Attributes:
        gives_again: Whether a worker may train again on the parts of a pass that it had before, as
            a cycle gives them.
    """

    gives_again: bool = False

    @abstractmethod
    def assign(self, coming: Pass) -> ShardAssignment:
        """What this worker takes in the pass that begins."""

    def given(self, loader: int, number: int) -> None:  # noqa: B027 - most dealers have nothing to learn from it
        """The script was given this worker's part of that global batch, of the latest pass over
        that loader.
        """


class Slices(Assigner):
    """Every worker takes its slice of every batch, in the order of their indices.

    Args:
        index: This worker's index.
        members: Indices, ascending, of the workers between which batches are divided.
        proportions: Samples of a step by worker index; None: all take the same.
        smallest: Fewest samples of a part that has any, where the batch has so many: 2 for a model
            with batch normalisation, which cannot be trained on one.
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
        """From where to where this worker's slice of a batch goes."""
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
    """Where each part ends when `samples` are divided by `weights`, to the nearest whole number.

    No part is smaller than `smallest` unless it is empty, or there are fewer samples than that.
    """
    total = sum(weights)
    units = samples // smallest if smallest <= samples else 1
    ends, so_far = [], 0
    for weight in weights:
        so_far += weight
        ends.append((units * so_far * 2 + total) // (2 * total) * smallest)
    # What is over goes to the last part that has any.
    last = ends[-1]
    return [samples if end == last else end for end in ends]
