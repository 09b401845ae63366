"""The batches of a worker whose pace is its own: whole batches, each leased to one worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from headgate.torch.ps.asynchronous.leases import LATER, OVER
from headgate.torch.ps.asynchronous.schedules import PassProgress, Schedule
from headgate.torch.ps.transport.calls import Caller
from headgate.torch.sharding import Assigner, Pass, ShardAssignment

Key = tuple[int, int]
"""Number of a loader, and number of the pass over it."""


class LeaseClient(Assigner):
    """Takes leases from server 0.

    Args:
        caller: Calls the servers.
        refresh: Brings new values after others continued without this worker.
        note: Tells the user something.
        freeze: Holds the others before their next step, and sets `positions`.

    Attributes:
        positions: For each pass, the number below which all batches were done when the others were
            last held; empty while they are not held.
        ahead: Batches past `positions` that were done then, and past this worker's pass of each
            loader.
        schedules: Schedulers that count the batches of all workers, by passes over the first
            loader.
    """

    def __init__(
        self,
        caller: Caller,
        refresh: Callable[[], None],
        note: Callable[[str], None],
        freeze: Callable[[], None],
    ) -> None:
        self.caller = caller
        self.refresh = refresh
        self.note = note
        self.positions: dict[Key, int] = {}
        self.ahead = 0
        self.freeze = freeze
        self.held: dict[Key, list[int]] = {}
        self._given: dict[Key, list[int]] = {}
        self._done: dict[Key, list[int]] = {}
        self._passes: dict[int, Key] = {}
        self._over: dict[int, int] = {}
        self.schedules: list[Schedule] = []
        self._pace: PassProgress | None = None

    def assign(self, coming: Pass) -> ShardAssignment:
        # All workers count passes alike, and later passes have higher numbers.
        number = ((coming.phase + 1) << 40) + ((coming.epoch + 1) << 20) + coming.nth
        key = (coming.loader, number)
        for past in [k for k in self._done if k[0] == key[0] and k[1] < number]:
            del self._done[past]
        self._passes[key[0]] = key
        if key[0] == 0:
            self._pace = PassProgress(coming.batches, coming.done)
            for schedule in self.schedules:
                schedule.enter(self._pace)
        return _LeasedHand(self, key, coming)

    def given(self, loader: int, number: int) -> None:
        if loader == 0 and self._pace is not None:
            self._pace.given(number)
        self._given.setdefault(self._passes[loader], []).append(number)

    def take_given(self) -> list[tuple[int, int, list[int]]]:
        """Take the batches of this step's gradients, by pass. They are done once the step is."""
        given = [(*key, numbers) for key, numbers in self._given.items() if numbers]
        self._given = {}
        for loader, number, numbers in given:
            key = (loader, number)
            self._done.setdefault(key, []).extend(numbers)
            left = set(numbers)
            self.held[key] = [n for n in self.held.get(key, ()) if n not in left]
        return given

    def take_positions(self, positions: Iterable[tuple[int, int, int, Sequence[int]]]) -> None:
        """Set positions while the others are held. Each pass, by loader and number, has the number
        below which all batches are done, and other done batches.
        """
        positions = list(positions)
        self.positions = {
            (loader, number): done_below for loader, number, done_below, _ in positions
        }
        self.ahead = 0
        for loader, number, done_below, others in positions:
            present = self._passes.get(loader, (loader, -1))[1]
            self.ahead += (done_below if number > present else 0) + (
                len(others) if number >= present else 0
            )

    def progress(self) -> list[tuple[int, int, list[int], list[int]]]:
        """The batches that this worker did and holds, for a restarted server."""
        keys = dict.fromkeys((*self._done, *self.held))
        return [(*key, list(self._done.get(key, ())), list(self.held.get(key, ()))) for key in keys]

    def over(self) -> list[tuple[int, int]]:
        """The last finished pass over each loader. Its worker has forgotten what it did in it."""
        return list(self._over.items())

    def ask(self, key: Key, below: int) -> int | str:
        """The number of the next batch of a pass; `OVER` or `LATER` if there is none."""
        self.positions = {}
        content: Mapping[str, Any] = {"loader": key[0], "epoch": key[1], "below": below}

        def take(answer: Mapping[str, Any]) -> None:
            if isinstance(answer["number"], int):
                self.held.setdefault(key, []).append(answer["number"])

        answer = self.caller.call(0, "coordinator.lease", content, take).wait()
        number: int | str = answer["number"]
        if answer["refresh"] or number == OVER:
            self.refresh()
        if number == OVER:
            self._over[key[0]] = key[1]
            if key == self._passes.get(0) and self._pace is not None:
                self._pace.over = True
                for schedule in self.schedules:
                    schedule.finish()
        return number


class _LeasedHand(ShardAssignment):
    def __init__(self, assigner: LeaseClient, key: Key, coming: Pass) -> None:
        self._assigner = assigner
        self._key = key
        self._below = coming.done
        self.steps_back = coming.by_index
        self._by_index = coming.by_index
        self._last = -1
        self._left_early = False
        self._found: int | None = None

    def next(self) -> int | None:
        assigner, key = self._assigner, self._key
        if self._found is not None:
            leased, self._found = self._found, None
            return leased
        while True:
            number = assigner.ask(key, self._below)
            if number == LATER:
                if not self._acknowledge_given():  # it reads ahead: what it holds is not used yet
                    self._left_early = True
                    return None
            elif not isinstance(number, int):
                return None
            elif number < self._last and not self._by_index:
                assigner.note(
                    f"batch {number} of a stream is left out: its worker was lost, and it "
                    "cannot be read again"
                )
                assigner.given(key[0], number)
                self._acknowledge_given()
            else:
                self._last = number
                return number

    def more(self, can_be_drawn: bool) -> bool:
        if not self._left_early:
            return False
        self._left_early = False
        if can_be_drawn:
            self._found = self.next()
        else:
            self._assigner.note(
                "a loader that reads ahead and cannot go back ends its pass before other workers "
                "have ended theirs: what one of them might leave undone would be left out"
            )
        return self._found is not None

    def part(self, number: int, samples: int) -> tuple[int, int]:
        return 0, samples

    def ended(self, number: int) -> bool:
        assigner, key = self._assigner, self._key
        assigner.held[key] = [held for held in assigner.held.get(key, ()) if held != number]
        assigner.caller.ask(
            0, "coordinator.ends", {"loader": key[0], "epoch": key[1], "total": number}
        )
        return True  # some that others hold may come back

    @property
    def done(self) -> int | None:
        self._assigner.freeze()
        return self._assigner.positions.get(self._key, self._below)

    def _acknowledge_given(self) -> bool:
        """Report batches that were given without a step as done. Returns whether there were any."""
        leases = self._assigner.take_given()
        if leases:
            self._assigner.caller.ask(0, "coordinator.done", {"leases": leases})
        return bool(leases)
