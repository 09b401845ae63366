"""One pass over a prepared loader: batch by batch, from its front or from where a checkpoint was taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headgate.torch import batches, rng
from headgate.torch.dealing import Dealt, Hand
from headgate.torch.watching import OpenIterator, SkippingSampler

if TYPE_CHECKING:
    from headgate.torch.loaders import LoaderState


class Iteration:
    """One pass over a prepared loader.

    Attributes:
        done: Batches that it gave, those before a resume included.
        batches: How many it is to give to the one worker that there is; None where that is not known.
        reopened: Whether the loader's iterator, with its workers, is one from an earlier pass: that draws fewer random
            numbers than a new one.
        created: Random states when it was created.
        first: Random states before its first batch; None until then.
        before: How often each loader had been gone through in this epoch when it was created.
        epoch: The epoch it was created in, as `Loaders` counts.
        number: Counts the iterations of the script.
        dealt: Which part of which global batch its last batch was; None where it was the whole.
    """

    def __init__(self, state: LoaderState, open_inner: OpenIterator, position: dict[str, Any] | None) -> None:
        loaders = state.loaders
        self.state = state
        self.exhausted = False
        self.number = loaders.number_iteration()
        self.epoch = loaders.epoch
        self.batches = state.batches() if loaders.sharing is None else None
        self.before = loaders.counts()
        self.dealt: Dealt | None = None
        self._watcher = loaders.watcher
        self._open = open_inner
        self._inner: Iterator[Any] | None = None
        self._hand: Hand | None = None
        self._read = 0
        self._began = 0 if position is None else position["done"]
        if position is None:
            self.done = 0
            self.reopened = state.keeps_iterator()
            self.first: rng.RngState | None = None
            with loaders.drawing():
                self.created = loaders.capture_rng(devices=False)
                self._inner = self._opened(state.deal(0))
        else:
            self.done = position["done"]
            self.reopened = position["reopened"]
            self.first = position["first"]
            self.created = position["created"]

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        if self._inner is None:
            self._inner = self._rejoined(self.state.deal(self.done), self.done)
        if self.first is None:
            with self.state.loaders.drawing():
                self.first = self.state.loaders.capture_rng(devices=False)
        self._watcher.fetching(self)
        if self._hand is not None and self._hand.stale and self.state.draws_ahead():
            if self.state.cannot_rejoin:
                self._watcher.lost_some(self)
            else:
                self._inner = self._draw_anew(self.state.deal(self.done))
        try:
            batch = self._next(self._inner)
        except StopIteration:
            if not self._has_more():
                self._watcher.exhausted(self)
                self._finish()
                raise
            batch = self._next(self._inner)
        self.done += 1
        return self._watcher.fetched(self, batch)

    def position(self, within_epoch: bool) -> dict[str, Any]:
        """What it takes to rejoin; `inside` says whether it was created in the epoch that is to be resumed."""
        done = None if self._hand is None else self._hand.done
        return {
            "done": self.done if done is None else done,
            "reopened": self.reopened,
            "created": self.created,
            "first": self.first,
            "inside": within_epoch and self.epoch == self.state.loaders.epoch,
        }

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __del__(self) -> None:
        self._finish()

    def _finish(self) -> None:
        if not self.exhausted:
            self.exhausted = True
            if self.epoch == self.state.loaders.epoch:
                self.state.ended += 1

    # --- where data is shared with other workers ---------------------------------------------------------------------

    def _next(self, inner: Iterator[Any]) -> Any:
        """The next batch, or this worker's part of it."""
        state, hand = self.state, self._hand
        if state.loaders.sharing is None:
            return next(inner)
        if state.shards is not None:
            batch = next(inner)
            self.dealt = None if hand is None else state.shards.dealt()
            return batch
        if hand is None:
            return self._read_next(inner)
        number = hand.next()
        if number is None:
            raise StopIteration
        while self._read <= number:
            try:
                batch = self._read_next(inner)
            except StopIteration:
                hand.ended(number)
                raise
        return self._part_of(batch, number, hand)

    def _read_next(self, inner: Iterator[Any]) -> Any:
        with self.state.loaders.drawing():  # what is read may be drawn at random, and has to be the same for all
            batch = next(inner)
        self._read += 1
        return batch

    def _part_of(self, batch: Any, number: int, hand: Hand) -> Any:
        dim = self.state.batch_dim
        whole = batches.size(batch, dim)
        if not whole:
            self.dealt = None
            return batch
        begin, end = hand.part(number, whole)
        self.dealt = Dealt(number, whole, end - begin)
        if begin == end:
            sharing = self.state.loaders.sharing
            begin, end = 0, min(whole, 1 if sharing is None else sharing.smallest())
        self._watcher.divided(self, batch, whole)
        return batches.part(batch, end - begin, whole, begin, dim)

    def _draw_anew(self, hand: Hand | None) -> Iterator[Any]:
        """The data is divided between other workers now: draw again what was drawn ahead and not used."""
        self._inner = None
        self.state.drop_iterator()
        return self._rejoined(hand, self.done)

    def _has_more(self) -> bool:
        """Whether others left batches undone that this worker read past: draws the pass again, up to those."""
        hand = self._hand
        if hand is None or not hand.more(not self.state.cannot_rejoin):
            return False
        self._inner = None
        self.state.drop_iterator()
        self._inner = self._rejoined(hand, self._began)
        return True

    def _opened(self, hand: Hand | None, skipped: int = 0) -> Iterator[Any]:
        self._hand = hand
        if self.state.shards is not None:
            self.state.shards.take(hand, skipped)
        return self._open()

    def _rejoined(self, hand: Hand | None, done: int) -> Iterator[Any]:
        """The inner iterator as it was after so many batches, with the random states of that moment."""
        state, loaders = self.state, self.state.loaders
        with loaders.drawing():
            now = loaders.capture_rng()
            permanent = state.skip
            skip = state.skip = SkippingSampler() if permanent is None else permanent
            if self.reopened:
                self._opened(None)
            loaders.restore_rng(self.created)
            skip.count = done if state.by_index else 0
            inner = self._opened(hand, done)
            if self.first is not None:
                loaders.restore_rng(self.first)
            if state.by_index:
                skip.advance()
            else:
                for _ in range(done):
                    next(inner, None)
            self._read = done
            state.skip = permanent
            loaders.restore_rng(loaders.take_resume_rng() or now)
        return inner
