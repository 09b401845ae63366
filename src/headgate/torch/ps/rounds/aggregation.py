"""Sums the chunks that workers push, in rounds: no sockets, no clock, one call for each message.

A round is attempted under a view. Once all workers that count, or as many as needed, have pushed a
chunk, its sum is fixed and sent. When the view changes, fixed sums stay and unfinished ones are
dropped. A server's answers about an attempt under a former view never change. So all workers that
ask all servers come to the same conclusion.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

HISTORY, LONGEST_HISTORY = 16, 1024
"""Least and most rounds whose sums a server keeps for workers that are behind, if rounds need not
wait for all workers. The number depends on `HISTORY_BYTES`.
"""
HISTORY_BYTES = 64 << 20
_LOCKSTEP_HISTORY = 2


@dataclass
class ChunkSum:
    """One chunk of an attempt.

    Attributes:
        total: Sum so far; None: zeros.
        dtype: Type of the sum, as in a header.
        size: Bytes of the sum.
        weight: Sum of the weights.
        pushed: When each worker's contribution arrived, in seconds.
        places: The sum's offsets in memory shared with workers.
        fixed: Whether the sum is final.
    """

    total: torch.Tensor | None = None
    dtype: int = 0
    size: int = 0
    weight: float = 0.0
    pushed: dict[int, float] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    fixed: bool = False


@dataclass
class _Attempt:
    count: int
    slots: dict[int, ChunkSum] = field(default_factory=dict)
    fixed: int = 0

    @property
    def complete(self) -> bool:
        return self.fixed == self.count


class Reply(NamedTuple):
    """A sum to send to a worker."""

    worker: int
    round: int
    view: int
    chunk: int
    slot: ChunkSum
    late: bool
    complete: bool


class Contribution(NamedTuple):
    """A worker's contribution, or a sum that it had received.

    Args:
        values: A flat tensor, which may be written to unless it has a place; None: zeros.
        dtype: Type of the values, as in a header.
        size: Bytes of the values.
        weight: Its weight.
        at: When it arrived, in seconds.
        place: Offset of the values, and of their sum, in memory shared with the worker; None: not
            shared. Shared values have to be copied to be kept.
        of_all: Whether the sum needs the contributions of all.
    """

    values: torch.Tensor | None
    dtype: int
    size: int
    weight: float
    at: float
    place: int | None = None
    of_all: bool = False


class Rounds:
    """The rounds of one server.

    Attributes:
        late: Contributions that arrived after the sum was fixed.
        completed: The last round for which each worker has all sums; -1 before the first.
    """

    def __init__(self) -> None:
        self._needed: int | None = None
        self._view = -1
        self._active: frozenset[int] = frozenset()
        self._awaited: set[int] = set()  # no sum does without them
        self._attempts: dict[tuple[int, int], _Attempt] = {}
        self._forgotten = -1
        self._kept = LONGEST_HISTORY
        self.late = 0
        self.completed: dict[int, int] = {}

    def enter(self, view: int, active: frozenset[int], needed: int | None = None) -> None:
        """Change the view. Attempts that are not complete by now never will be.

        Args:
            view: Number of the view.
            active: The workers that count. Rounds wait for a new one until it has caught up with
                the others.
            needed: Contributions that fix a sum; None: those of all workers that count.
        """
        self._awaited = (self._awaited | (active - self._active)) & active
        self._view, self._active, self._needed = view, active, needed
        self._attempts = {
            key: attempt for key, attempt in self._attempts.items() if attempt.complete
        }
        self.completed = {
            worker: last for worker, last in self.completed.items() if worker in active
        }

    def pause(self, worker: int) -> None:
        """Note that a worker pauses. Rounds wait for it until it has caught up with the others
        again.
        """
        self._awaited |= self._active & {worker}

    def push(
        self, worker: int, number: int, view: int, chunk: int, count: int, given: Contribution
    ) -> list[Reply]:
        """Take a contribution. Returns the sums to send now. A contribution under a former view
        comes too late to count.

        Args:
            worker: Index of the worker that pushed it.
            number: Number of the round.
            view: The worker's view.
            chunk: Number of the chunk.
            count: Chunks of this round on this server.
            given: The contribution.
        """
        if view != self._view or worker not in self._active or self.gone(number):
            return []
        self._progressed(worker, number - 1)
        attempt = self._attempts.setdefault((number, view), _Attempt(count))
        slot = attempt.slots.setdefault(chunk, ChunkSum())
        if worker in slot.pushed:  # pushed again: the first answer may have been lost
            return [self._reply(worker, number, view, chunk)] if slot.fixed else []
        slot.pushed[worker] = given.at
        if given.place is not None:
            slot.places[worker] = given.place
        if slot.fixed:
            self.late += 1
            return [self._reply(worker, number, view, chunk, late=True)]
        if (
            worker in self._awaited
            and sum(worker in chunk_sum.pushed for chunk_sum in attempt.slots.values()) == count
        ):
            self._awaited.remove(worker)
        _add(slot, given)
        needed = len(self._active)
        if self._needed is not None and not given.of_all and not self._awaited:
            needed = min(needed, self._needed)
        if len(slot.pushed) < needed:
            return []
        slot.fixed = True
        attempt.fixed += 1
        if attempt.complete:
            size = sum(chunk_sum.size for chunk_sum in attempt.slots.values())
            self._kept = max(HISTORY, min(HISTORY_BYTES // max(1, size), LONGEST_HISTORY))
        self._prune(number)
        return [self._reply(receiver, number, view, chunk) for receiver in slot.pushed]

    def pull(
        self, worker: int, number: int, view: int, chunks: Iterable[int]
    ) -> tuple[list[Reply], list[int], frozenset[int]]:
        """The fixed sums of these chunks, the chunks that this worker has yet to push, and the
        workers that the others wait for.
        """
        replies: list[Reply] = []
        needed: list[int] = []
        waited: set[int] = set()
        attempt = self._attempts.get((number, view))
        for chunk in chunks:
            slot = attempt.slots.get(chunk) if attempt is not None else None
            if slot is not None and slot.fixed:
                replies.append(
                    self._reply(worker, number, view, chunk, late=worker not in slot.pushed)
                )
                continue
            pushed = slot.pushed.keys() if slot is not None else frozenset[int]()
            if worker not in pushed:
                needed.append(chunk)
            waited |= self._active - pushed - {worker}
        return replies, needed, frozenset(waited)

    def complete(self, number: int) -> list[int]:
        """The views under which all sums of a round are fixed here, ascending."""
        return sorted(
            view
            for (round_, view), attempt in self._attempts.items()
            if round_ == number and attempt.complete
        )

    def gone(self, number: int) -> bool:
        """Whether the sums of a round are no longer kept."""
        return number <= self._forgotten

    def supply(self, number: int, view: int, chunk: int, count: int, given: Contribution) -> bool:
        """Take back from a worker a sum that a former life of this server had fixed. Returns
        whether it was the last one.
        """
        attempt = self._attempts.setdefault((number, view), _Attempt(count))
        if chunk not in attempt.slots:
            slot = attempt.slots[chunk] = ChunkSum(fixed=True)
            _add(slot, given)
            attempt.fixed += 1
        return attempt.complete

    def forget(self, number: int) -> None:
        """Note that sums up to this round are not available."""
        if number <= self._forgotten:
            return
        self._forgotten = number
        self._attempts = {
            key: attempt for key, attempt in self._attempts.items() if key[0] > self._forgotten
        }

    def tell(self, worker: int, completed: int) -> None:
        """Note the round that a worker completed last."""
        self._progressed(worker, completed)

    def _progressed(self, worker: int, completed: int) -> None:
        if completed > self.completed.get(worker, -2):
            self.completed[worker] = completed
            if self._active <= self.completed.keys():
                self.forget(min(self.completed[active] for active in self._active))

    def _prune(self, newest: int) -> None:
        self.forget(newest - (_LOCKSTEP_HISTORY if self._needed is None else self._kept))

    def _reply(self, worker: int, number: int, view: int, chunk: int, late: bool = False) -> Reply:
        attempt = self._attempts[number, view]
        return Reply(worker, number, view, chunk, attempt.slots[chunk], late, attempt.complete)


def _add(slot: ChunkSum, given: Contribution) -> None:
    slot.dtype, slot.size = given.dtype, given.size
    slot.weight += given.weight
    if given.values is None:
        return
    if slot.total is None:
        slot.total = given.values.clone() if given.place is not None else given.values
    elif slot.total.shape != given.values.shape or slot.total.dtype != given.values.dtype:
        raise ValueError(
            f"a worker pushed {tuple(given.values.shape)} of {given.values.dtype}, another one "
            f"{tuple(slot.total.shape)} of {slot.total.dtype}: their models differ"
        )
    else:
        slot.total.add_(given.values)
