"""Gives a worker only its own samples of a loader.

Every worker draws the same global batches, with the same sampler and the same random stream. It
takes the part of each that it is assigned (`sharding`), and only reads the samples of that part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Callable

from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from headgate.torch.rng import Stream
from headgate.torch.sharding import Assigned, Assigner, ShardAssignment


@dataclass(frozen=True)
class Sharing:
    """How the loaders of a script share their data with other workers.

    Args:
        assigner: Assigns the parts of every training pass.
        stream: The random stream with which all workers draw their batches.
        divides: Whether a pass that begins now is over training data.
        place: The current phase and epoch, as in `Pass`.
        smallest: Fewest samples that the model can be trained on.
    """

    assigner: Assigner
    stream: Stream
    divides: Callable[[], bool]
    place: Callable[[], tuple[int, int]]
    smallest: Callable[[], int]


Draws = Callable[[], AbstractContextManager[None]]


class ShardingSampler:
    """Replaces the sampler of a loader's batches: yields the indices of this worker's part of each.

    It stays in place while the loader lives, because a loader that keeps its workers keeps its
    sampler.

    Args:
        draws: A context with the random stream of the data.
        smallest: Number of samples that a worker without a part borrows.
    """

    def __init__(self, draws: Draws, smallest: Callable[[], int]) -> None:
        self._draws = draws
        self._smallest = smallest
        self._assignment: ShardAssignment | None = None
        self._done = 0
        self._sampler: Any = None
        self._assigned: deque[Assigned] = deque()

    def around(self, sampler: Any) -> ShardingSampler:
        """Draw from `sampler`. Returns this object."""
        self._sampler = sampler
        return self

    def take(self, assignment: ShardAssignment | None, done: int = 0) -> None:
        """In later iterators, yield the parts of `assignment`, from batch `done` on. None: yield
        whole batches.
        """
        self._assignment = assignment
        self._done = done

    def __iter__(self) -> Iterator[Any]:
        draws = _Draws(iter(self._sampler), self._draws, _draws_late(self._sampler))
        if self._assignment is None:
            return draws
        # a loader with workers asks twice while its iterator is made; the second request counts
        self._assigned = deque()
        batches = _Numbered(draws, self._done, self._assignment.steps_back)
        return _parts(batches, self._assignment, self._assigned, self._smallest())

    def __len__(self) -> int:
        return len(self._sampler)

    def assigned(self) -> Assigned:
        """The assigned part that the loader yields now. Parts are yielded in the order in which
        they were drawn.
        """
        return self._assigned.popleft()


class _Draws:
    """A sampler's batches of indices, drawn with the random stream of the data."""

    def __init__(self, indices: Iterator[Any], draws: Draws, late: bool) -> None:
        self._indices = indices
        self._draws = draws
        self.late = late
        self.begun = False

    def __iter__(self) -> _Draws:
        return self

    def __next__(self) -> Any:
        if self.begun and not self.late:
            return next(self._indices)
        self.begun = True
        with self._draws():
            return next(self._indices)


class _Numbered:
    """The batches of a pass, by number.

    Args:
        draws: The batches.
        first: Number of the first.
        keeps: Whether a number may be requested after a larger one.
    """

    def __init__(self, draws: _Draws, first: int, keeps: bool) -> None:
        self._draws = draws
        self._at = first
        self._keeps = keeps
        self._passed: dict[int, Any] = {}

    def leave(self) -> None:
        """Note that no other batch is wanted. This worker then makes the draws that other workers
        still make from the random stream.
        """
        if self._draws.late:
            for _ in self._draws:
                pass
        elif not self._draws.begun:
            next(self._draws, None)

    def batch(self, number: int) -> Any:
        """The batch of that number; None if the pass has fewer."""
        while self._at <= number:
            batch = next(self._draws, None)
            if batch is None:
                return None
            self._at += 1
            if self._at > number:
                return batch
            if self._keeps:
                self._passed[self._at - 1] = batch
        return self._passed.pop(number)


def _parts(
    batches: _Numbered, assignment: ShardAssignment, assigned: deque[Assigned], smallest: int
) -> Iterator[Any]:
    """This worker's part of each batch. The parts are also appended to `assigned`."""
    while True:
        number = assignment.next()
        batch = None if number is None else batches.batch(number)
        if number is None or (batch is None and not assignment.ended(number)):
            batches.leave()
            return
        if batch is None:
            continue
        if not isinstance(batch, Sequence) and not hasattr(batch, "shape"):
            batch = list(batch)
        begin, end = assignment.part(number, len(batch))
        assigned.append(Assigned(number, len(batch), end - begin, _mark(batch)))
        yield batch[begin:end] if end > begin else batch[:smallest]


def _mark(batch: Any) -> int | None:
    return (
        hash(tuple(batch)) & 255
        if type(batch) is list and batch and type(batch[0]) is int
        else None
    )


def _draws_late(sampler: Any) -> bool:
    """Whether a batch sampler may draw random numbers after its first batch. torch's own samplers
    do not.
    """
    inner = getattr(sampler, "inner", sampler)  # past what skips batches
    own = (SequentialSampler, RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    return not (type(inner) is BatchSampler and type(inner.sampler) in own)
