"""One pass over a prepared loader, batch by batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from headgate.torch import batches, rng
from headgate.torch.batch_replay import KeptBatch, Replay, is_cut_off, is_in_cycle
from headgate.torch.loader_hooks import OpenIterator, SkippingSampler
from headgate.torch.sharded_loaders import ShardingSampler, Sharing
from headgate.torch.sharding import Assigned, ShardAssignment


class Watcher(Protocol):
    """Gets the events of loaders. Its exceptions end the iteration."""

    def fetching(self, iteration: Iteration) -> None: ...

    def fetched(self, iteration: Iteration, batch: Any) -> Any:
        """Take a batch. Returns the batch for the script."""

    def divided(self, iteration: Iteration, batch: Any, whole: int) -> None:
        """Note a batch of `whole` samples that every worker reads, and divides."""

    def exhausted(self, iteration: Iteration) -> None: ...

    def replays(self, iteration: Iteration, drawn: bool) -> None:
        """Note that a pass held by `itertools.cycle` is over and its batches are repeated.

        Args:
            iteration: The pass.
            drawn: Whether the batches were read again after a resume, and reading them draws random
                numbers.
        """

    def arrived(self) -> None:
        """Note that a pass has reached its position in the checkpoint that the script resumed
        from.
        """

    def lost_some(self, iteration: Iteration) -> None:
        """Note that batches drawn ahead for lost workers cannot be drawn again."""


class AllLoaders(Protocol):
    """The interface of all loaders for a pass. See `headgate.torch.loaders.Loaders`."""

    watcher: Watcher
    epoch: int
    sharing: Sharing | None
    rejoined: bool
    rejoined_to_end: bool

    @property
    def plain(self) -> bool: ...

    def drawing(self) -> AbstractContextManager[None]: ...

    def capture_rng(self, devices: bool = True) -> rng.RngState: ...

    def restore_rng(self, state: rng.RngState) -> None: ...

    def take_resume_rng(self) -> rng.RngState | None: ...

    def counts(self) -> tuple[int, ...]: ...

    def number_iteration(self) -> int: ...


class OneLoader(Protocol):
    """The interface of its own loader for a pass. See `headgate.torch.loaders.LoaderState`."""

    index: int
    batch_dim: int
    by_index: bool
    cannot_rejoin: str
    ended: int
    left_early: bool
    lacks_begin: bool
    skip: SkippingSampler | None
    shards: ShardingSampler | None

    @property
    def loaders(self) -> AllLoaders: ...

    def keeps_iterator(self) -> bool: ...

    def drop_iterator(self) -> None: ...

    def draws_ahead(self) -> bool: ...

    def looks_for_cycle(self) -> bool: ...

    def assign(self, done: int) -> ShardAssignment | None: ...

    def batches(self) -> int | None: ...


class Iteration:
    """One pass over a prepared loader.

    Attributes:
        done: Batches given, including those before a resume.
        batches: Batches of the pass in a job of one worker; None if unknown.
        reopened: Whether the loader's iterator, with its workers, is one of an earlier pass. Such a
            one draws fewer random numbers than a new one.
        created: Random states when it was created.
        first: Random states before its first batch; None until then.
        before: Finished passes over each loader in this epoch when it was created.
        epoch: The epoch it was created in, as `Loaders` counts.
        number: Number of the iteration in the script.
        assigned: The last batch's part of a global batch; None if it was whole.
        endless: Whether `itertools.cycle` holds it, so that its batches are repeated after the last
            one.
        began: Batches given before it rejoined; 0: it did not rejoin.
    """

    def __init__(
        self, state: OneLoader, open_inner: OpenIterator, position: dict[str, Any] | None
    ) -> None:
        loaders = state.loaders
        self.state = state
        self.exhausted = False
        self.number = loaders.number_iteration()
        self.epoch = loaders.epoch
        self._whole = state.batches()
        self.batches = self._whole if loaders.sharing is None else None
        self.before = loaders.counts()
        self.assigned: Assigned | None = None
        self.endless = False
        self._watcher = loaders.watcher
        self._open = open_inner
        self._inner: Iterator[Any] | None = None
        self._assignment: ShardAssignment | None = None
        self._read = 0
        self._begun = False
        self._kept: list[KeptBatch] = []
        self._drawn = False
        self._cut_off: bool | None = None
        self.began = 0 if position is None else position["done"]
        if position is None:
            self.done = 0
            self.reopened = state.keeps_iterator()
            self.first: rng.RngState | None = None
            with loaders.drawing():
                self.created = loaders.capture_rng(devices=False)
                self._inner = self._opened(state.assign(0))
        else:
            self.done = position["done"]
            self.reopened = position["reopened"]
            self.first = position["first"]
            self.created = position["created"]
            self._drawn = position.get("drawn", False)

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        if not self._begun:
            self._begin()
        self._watcher.fetching(self)
        if (
            self._assignment is not None
            and self._assignment.stale
            and (self.endless or self.state.draws_ahead())
        ):
            if self.state.cannot_rejoin:
                self._watcher.lost_some(self)
            else:
                self._inner = self._draw_anew()
        try:  # alone, without a call more in every step
            plain = self.state.loaders.plain and not self.endless
            batch = next(self._inner) if plain else self._next()  # type: ignore[arg-type]
        except StopIteration:
            if self._has_more():
                batch = self._next()
            elif self._kept:
                self._inner = Replay(self._kept, self.done)
                self._watcher.replays(self, drawn=self._drawn and bool(self.began))
                batch = self._next()
            else:
                self._watcher.exhausted(self)
                self._finish()
                raise
        self.done += 1
        return self._watcher.fetched(self, batch)

    @property
    def is_at_last(self) -> bool:
        """Whether only one batch is left."""
        return self.done + 1 == self._whole and not self.endless

    @property
    def ends_by_count(self) -> bool:
        """Whether the script ends the pass by counting batches, and not at its end."""
        spans = self.epoch != self.state.loaders.epoch
        if self._cut_off is None:
            self._cut_off = is_cut_off(self)
        return self.endless or spans or self.state.left_early or self._cut_off

    def position(self, within_epoch: bool) -> dict[str, Any]:
        """What a resume needs to rejoin the pass. `inside` tells whether it was created in the
        epoch to resume.
        """
        done = None if self._assignment is None else self._assignment.done
        return {
            "done": self.done if done is None else done,
            "reopened": self.reopened,
            "created": self.created,
            "first": self.first,
            "inside": within_epoch and self.epoch == self.state.loaders.epoch,
            "drawn": self._drawn,
        }

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __del__(self) -> None:
        self._finish(early=True)

    def _begin(self) -> None:
        """Begin the pass, when the first batch is requested."""
        self._begun = True
        if self.state.looks_for_cycle() and is_in_cycle(self):
            self.endless, self.batches = True, None
        if self._inner is None:
            self.state.loaders.rejoined = True
            self._inner = self._rejoined(self.done)
        if self.first is None:
            with self.state.loaders.drawing():
                self.first = self.state.loaders.capture_rng(devices=False)

    def _finish(self, early: bool = False) -> None:
        if self.exhausted:
            return
        self.exhausted = True
        if not early:
            self.state.lacks_begin = self.began > 0
            self.state.loaders.rejoined_to_end |= self.began > 0
        if self.epoch == self.state.loaders.epoch:
            self.state.ended += 1
            if self._begun:
                self.state.left_early = early

    def _next(self) -> Any:
        """The next batch, or this worker's part of it. The batch is kept if a cycle holds the
        pass.
        """
        inner = self._inner
        assert inner is not None
        if isinstance(inner, Replay):
            batch = next(inner)
            self.assigned = inner.assigned
            return batch
        if not self.endless:
            return self._fresh(inner)
        looks = bool(self._kept) and not self._drawn  # the first batch is where samplers draw
        before = rng.capture((), devices=False) if looks else {}
        batch = self._fresh(inner)
        self._drawn |= looks and not rng.same(before, rng.capture((), devices=False))
        self._kept.append((batch, self.assigned))
        return batch

    # --- data shared with other workers -----------------------------------------------------------

    def _fresh(self, inner: Iterator[Any]) -> Any:
        """The next batch of an iterator, or this worker's part of it."""
        state, assignment = self.state, self._assignment
        if state.shards is not None:
            batch = next(inner)
            self.assigned = None if assignment is None else state.shards.assigned()
            return batch
        if assignment is None:
            return self._read_next(inner)
        number = assignment.next()
        if number is None:
            raise StopIteration
        while self._read <= number:
            try:
                batch = self._read_next(inner)
            except StopIteration:
                assignment.ended(number)
                raise
        return self._part_of(batch, number, assignment)

    def _read_next(self, inner: Iterator[Any]) -> Any:
        # reading may draw random numbers, which have to be the same for all workers
        with self.state.loaders.drawing():
            batch = next(inner)
        self._read += 1
        return batch

    def _part_of(self, batch: Any, number: int, assignment: ShardAssignment) -> Any:
        dim = self.state.batch_dim
        size = batches.size(batch, dim)
        if not size:
            self.assigned = None
            return batch
        begin, end = assignment.part(number, size)
        self.assigned = Assigned(number, size, end - begin)
        if begin == end:
            sharing = self.state.loaders.sharing
            begin, end = 0, min(size, 1 if sharing is None else sharing.smallest())
        self._watcher.divided(self, batch, size)
        return batches.part(batch, end - begin, size, begin, dim)

    def _draw_anew(self) -> Iterator[Any]:
        """Draw again the unused batches that were drawn ahead, because the data is now divided
        between other workers.
        """
        self._inner = None
        self.state.drop_iterator()
        return self._rejoined(self.done)

    def _has_more(self) -> bool:
        """Whether others left batches undone that this worker read past. If so, draws the pass
        again up to these batches.
        """
        assignment = self._assignment
        if assignment is None or not assignment.more(not self.state.cannot_rejoin):
            return False
        self._inner = None
        self.state.drop_iterator()
        self._inner = self._rejoined(self.began, assignment)
        return True

    def _opened(self, assignment: ShardAssignment | None, skipped: int = 0) -> Iterator[Any]:
        self._assignment = assignment
        if self.state.shards is not None:
            self.state.shards.take(assignment, skipped)
        return self._open()

    def _rejoined(self, done: int, assignment: ShardAssignment | None = None) -> Iterator[Any]:
        """The inner iterator after `done` batches, with the random states of that moment.

        Args:
            done: Number of batches. A pass held by a cycle reads them, any other skips them.
            assignment: This worker's part of the pass; None: it is assigned anew.
        """
        state, loaders = self.state, self.state.loaders
        skipped = 0 if self.endless else done
        assignment = state.assign(skipped) if assignment is None else assignment
        with loaders.drawing():
            now = loaders.capture_rng()
            permanent = state.skip
            skip = state.skip = SkippingSampler() if permanent is None else permanent
            if self.reopened:
                self._opened(None)
            loaders.restore_rng(self.created)
            skip.count = skipped if state.by_index else 0
            inner = self._opened(assignment, skipped)
            if self.first is not None:
                loaders.restore_rng(self.first)
            if state.by_index:
                skip.advance()
            else:
                for _ in range(skipped):
                    next(inner, None)
            self._read = skipped
            state.skip = permanent
            if self.endless:
                inner = self._read_again(inner, done)
            resumed = loaders.take_resume_rng()
            loaders.restore_rng(resumed or now)
        if resumed is not None:
            self._watcher.arrived()
        return inner

    def _read_again(self, inner: Iterator[Any], done: int) -> Iterator[Any]:
        """Read and keep the first `done` batches for a cycle."""
        self._inner, self._kept = inner, []
        try:
            while len(self._kept) < done:
                self._next()
        except StopIteration:
            if self._kept:
                self._watcher.replays(self, self._drawn and bool(self.began))
                return Replay(self._kept, done)
        return inner
