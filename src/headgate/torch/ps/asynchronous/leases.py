"""Leases the batches of an epoch one by one to workers that do not wait for each other. Server 0
keeps the leases.

No clock and no sockets: requests in, answers out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

OVER = "over"
"""No batch of the epoch is left, and none will be."""
LATER = "later"
"""No batch is left now, but leased ones may come back. Only a worker that holds leases gets this
answer.
"""
Answer = Union[int, str]
"""Number of a batch, `OVER` or `LATER`."""


@dataclass
class _Epoch:
    next: int = 0
    total: int | None = None
    returned: list[int] = field(default_factory=list)
    held: dict[int, str] = field(default_factory=dict)
    below: int = 0
    """All batches below this number are done."""
    ahead: set[int] = field(default_factory=set)
    """Done batches above `below`."""

    def complete(self, number: int) -> None:
        if number >= self.below:
            self.ahead.add(number)
        while self.below in self.ahead:
            self.ahead.remove(self.below)
            self.below += 1

    def is_done(self, number: int) -> bool:
        return number < self.below or number in self.ahead


class Leases:
    """The leases of one job's epochs. All workers count epochs alike. A worker that asks for a
    batch of an epoch has left the earlier epochs.

    A batch is held from the answer that names it until it is done. The batches of a lost worker
    come back, and are the next to be leased. A worker that gets a batch it has passed already goes
    back to it.
    """

    def __init__(self) -> None:
        self._epochs: dict[int, _Epoch] = {}
        self._asking: dict[str, int] = {}
        self._inside: dict[str, int] = {}
        self._oldest = 0

    def begin(self, epoch: int, below: int, ahead: Iterable[int]) -> None:
        """Begin an epoch that a checkpoint was saved in. Batches below `below`, and those in
        `ahead`, are done. Later calls for the same epoch change nothing.
        """
        if epoch not in self._epochs:
            state = self._epochs[epoch] = _Epoch(next=below, below=below)
            for number in ahead:
                state.complete(number)

    def ask(self, worker: str, epoch: int) -> None:
        """Note that a worker wants a batch. `answers` returns it once there is one."""
        self._inside[worker] = epoch
        self._asking[worker] = epoch
        self._forget()

    def ends(self, epoch: int, total: int) -> None:
        """Note the number of batches of an epoch, found by a worker. Batches leased past it do not
        exist.
        """
        state = self._epoch(epoch)
        if state.total is None or total < state.total:
            state.total = total
            state.held = {number: worker for number, worker in state.held.items() if number < total}
            state.returned = [number for number in state.returned if number < total]
            heapq.heapify(state.returned)

    def done(self, worker: str, epoch: int, numbers: Iterable[int]) -> None:
        """Note that a worker's update with these batches was applied."""
        state = self._epochs.get(epoch)
        if state is None:
            return
        for number in numbers:
            if state.held.get(number, worker) != worker:
                continue  # it was taken for gone, and another has the batch now
            state.held.pop(number, None)
            state.complete(number)
        state.returned = [number for number in state.returned if not state.is_done(number)]
        heapq.heapify(state.returned)

    def gone(self, worker: str) -> dict[int, list[int]]:
        """Take back the batches of a lost worker. Returns their numbers by epoch."""
        self._asking.pop(worker, None)
        self._inside.pop(worker, None)
        back: dict[int, list[int]] = {}
        for key, epoch in self._epochs.items():
            numbers = sorted(number for number, holder in epoch.held.items() if holder == worker)
            for number in numbers:
                del epoch.held[number]
                heapq.heappush(epoch.returned, number)
            if numbers:
                back[key] = numbers
        self._forget()
        return back

    def back(self, worker: str, epoch: int, numbers: Iterable[int]) -> None:
        """Take back batches that a worker will not train on."""
        state = self._epoch(epoch)
        for number in numbers:
            if state.held.get(number) == worker:
                del state.held[number]
                heapq.heappush(state.returned, number)

    def answers(self) -> list[tuple[str, Answer]]:
        """The workers whose requests can be answered now, with the answers."""
        answers = []
        for worker, epoch in list(self._asking.items()):
            answer = self._answer(worker, epoch)
            if answer is not None:
                del self._asking[worker]
                answers.append((worker, answer))
        return answers

    def positions(self) -> list[tuple[int, int, list[int]]]:
        """The position in each running epoch: its number, the number below which all batches are
        done, and other done batches.
        """
        return [
            (number, epoch.below, sorted(epoch.ahead)) for number, epoch in self._epochs.items()
        ]

    def retell(self, worker: str, epoch: int, done: Iterable[int], held: Iterable[int]) -> None:
        """Note what a worker did and holds, told to a restarted server that knows less."""
        state = self._epoch(epoch)
        self._inside[worker] = epoch
        for number in done:
            state.complete(number)
            state.held.pop(number, None)
        for number in held:
            if not state.is_done(number):
                state.held[number] = worker
        known = [*state.held, *state.ahead, state.below - 1]
        self._lease_up_to(state, max(known) + 1)
        state.returned = [n for n in state.returned if not state.is_done(n) and n not in state.held]
        heapq.heapify(state.returned)

    def over(self, epoch: int) -> None:
        """Note that an epoch is over, which a restarted server may not know."""
        self._oldest = max(self._oldest, epoch + 1)

    def state(self) -> dict[str, Any]:
        """The leases as plain values, for a snapshot. Held batches count as not done."""
        return {
            str(key): {"total": epoch.total, "below": epoch.below, "ahead": sorted(epoch.ahead)}
            for key, epoch in self._epochs.items()
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Leases:
        """Make leases from `state`. Everything not done can be leased again."""
        leases = cls()
        for key, saved in state.items():
            epoch = leases._epochs[int(key)] = _Epoch(
                next=saved["below"],
                total=saved["total"],
                below=saved["below"],
                ahead=set(saved["ahead"]),
            )
            leases._lease_up_to(epoch, max([saved["below"] - 1, *saved["ahead"]]) + 1)
        return leases

    def _lease_up_to(self, epoch: _Epoch, to: int) -> None:
        """Mark batches below `to` as no longer new. Those that no worker did or holds were held by
        workers that may be gone.
        """
        for number in range(epoch.next, to):
            if not epoch.is_done(number) and number not in epoch.held:
                heapq.heappush(epoch.returned, number)
        epoch.next = max(epoch.next, to)

    def _answer(self, worker: str, number: int) -> Answer | None:
        if number < self._oldest:
            return OVER
        epoch = self._epoch(number)
        if epoch.returned:
            number = heapq.heappop(epoch.returned)
        else:
            while epoch.is_done(epoch.next):
                epoch.next += 1
            if epoch.total is not None and epoch.next >= epoch.total:
                holders = set(epoch.held.values())
                if not holders:
                    return OVER
                return LATER if worker in holders else None
            number = epoch.next
            epoch.next += 1
        epoch.held[number] = worker
        return number

    def _epoch(self, number: int) -> _Epoch:
        return self._epochs.setdefault(number, _Epoch())

    def _forget(self) -> None:
        """Drop epochs that every worker has left. Batches held in them will never be done."""
        oldest = min(self._inside.values(), default=None)
        if oldest is not None:
            self._oldest = max(self._oldest, oldest)
            self._epochs = {key: epoch for key, epoch in self._epochs.items() if key >= oldest}
