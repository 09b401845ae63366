"""Prepared loaders: the user's own objects, watched batch by batch, and able to rejoin an epoch in its middle.

A position in an epoch holds two things. For each loader: how often it was gone through before the running iteration
began. For each running iteration: the random states when it began, and the number of batches that it gave. On a rejoin,
passes that had ended yield nothing. Running ones draw the same permutation again and skip its indices, so that no data
is read twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Optional, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset

from headgate.torch import batches, rng
from headgate.torch.dealing import Dealt, Hand, Pass
from headgate.torch.positions import EARLIER, NOW, matched
from headgate.torch.shards import ShardingSampler, Sharing
from headgate.torch.watching import (
    MARK,
    OpenIterator,
    SkippingSampler,
    attributes_of,
    cannot_rejoin,
    gives_batches_of_indices,
    watched,
)

Position = tuple[Optional[int], Optional[int], list[dict[str, Any]]]
"""Epoch; batches of it that are done, None where a resume has to start it again; positions of the loaders."""


class Watcher(Protocol):
    """Whom loaders tell. What it raises ends the iteration."""

    def fetching(self, iteration: Iteration) -> None: ...

    def fetched(self, iteration: Iteration, batch: Any) -> Any:
        """Returns the batch to hand on."""

    def divided(self, iteration: Iteration, batch: Any, whole: int) -> None:
        """A batch of so many samples is read whole by every worker, which takes its part."""

    def exhausted(self, iteration: Iteration) -> None: ...

    def arrived(self) -> None:
        """A pass has come to where it was when the checkpoint was taken that the script goes on from."""

    def lost_some(self, iteration: Iteration) -> None:
        """Batches that were drawn ahead for workers that are gone cannot be drawn anew."""


class Loaders:
    """All prepared loaders of a script.

    Attributes:
        epoch: Number of epochs entered; iterations of different ones are told apart by it.
        generators: Random generators that loaders were given.
        source: Where set, what the first loader's batches are drawn through.
        sharing: How training data is divided between several workers; None: there is one.
    """

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.states: list[LoaderState] = []
        self.epoch = 0
        self.source: Callable[[OpenIterator], Iterator[Any]] | None = None
        self.sharing: Sharing | None = None
        self._apart: rng.Stream | None = None
        self._iterations = 0
        self.generators: list[torch.Generator] = []
        self._resume_rng: rng.RngState | None = None
        self._in_epoch = False
        self._past_resumed = False

    def prepare(self, loader: Any, batch_dim: int = 0) -> Any:
        """The loader, watched: the same object wherever Python allows, a thin wrapper otherwise.

        Args:
            loader: It.
            batch_dim: The dimension that samples lie along in the tensors of its batches.
        """
        if hasattr(type(loader), MARK):
            return loader
        state = LoaderState(self, len(self.states), loader, batch_dim, self.epoch if self._in_epoch else 0)
        self.states.append(state)
        known = {id(generator) for generator in self.generators}
        self.generators += [g for g in attributes_of(loader, torch.Generator) if id(g) not in known]
        return watched(loader, state.iterate, state.sampler_for)

    def drawing(self) -> AbstractContextManager[None]:
        """A context in which the random stream that data is drawn with is in force: with one worker, the script's."""
        stream = self._apart if self.sharing is None else self.sharing.stream
        return nullcontext() if stream is None else stream.drawing()

    @property
    def plain(self) -> bool:
        """Whether batches come as the script by itself would read them."""
        return self.sharing is None and self._apart is None

    def draw_apart(self) -> None:
        """Draw data with a stream that begins here, as workers of a plan do, so that one alone has their batches."""
        if not self._iterations:
            self._apart = rng.Stream(self.capture_rng(devices=False))

    def capture_rng(self, devices: bool = True) -> rng.RngState:
        return rng.capture(self.generators, devices)

    def restore_rng(self, state: rng.RngState) -> None:
        rng.restore(state, self.generators)

    def counts(self) -> tuple[int, ...]:
        """How often each loader was gone through in this epoch."""
        return tuple(state.ended for state in self.states)

    @property
    def dealing(self) -> bool:
        """Whether a pass is running whose batches are dealt among workers."""
        running = [state.current() for state in self.states]
        return any(iteration is not None and iteration.dealt is not None for iteration in running)

    def number_iteration(self) -> int:
        self._iterations += 1
        return self._iterations

    def anchor(self, feeding: Set[int]) -> Iteration | None:
        """The outermost of the iterations numbered in `feeding`: the first that was created and is still going."""
        first: Iteration | None = None
        for state in self.states:  # in every step
            each = state.current()
            if each is not None and each.number in feeding and (first is None or each.number < first.number):
                first = each
        return first

    def enter_epoch(self) -> None:
        self.epoch += 1
        self._in_epoch = True
        for state in self.states:
            state.ended = 0

    def snapshot(self, anchor: Iteration | None) -> list[dict[str, Any]] | None:
        """A position for each loader, for `arm`; None where one of them cannot rejoin.

        Args:
            anchor: The iteration whose step was the last; None between two epochs.
        """
        before = (0,) * len(self.states)
        if anchor is not None and anchor.epoch == self.epoch:
            before = anchor.before + before[len(anchor.before) :]
        positions = []
        for state, ended in zip(self.states, before):
            running = state.current()
            if state.cannot_rejoin and (ended or running is not None):
                if anchor is not None:
                    return None
                running = None
            positions.append(
                {
                    "born": state.born and (NOW if state.born == self.epoch else EARLIER),
                    "ended": ended,
                    "running": None if running is None else running.position(anchor is not None),
                }
            )
        return positions

    def position(self, epoch: int | None, anchor: Iteration | None, note: Callable[[str], None]) -> Position:
        """Where the script is in the middle of an epoch; after the last step of `anchor`, where that can be said.

        Args:
            epoch: Which; None: the script does not count them.
            anchor: The iteration whose step was the last; None: it is not known.
            note: Told why it cannot be said.
        """
        if epoch is None:
            note("the script does not use headgate.torch.epochs: a resume starts its epochs again")
            return None, None, []
        if anchor is None:
            note("no step boundary came in time: a resume starts the epoch again")
            return epoch, None, []
        loaders = self.snapshot(anchor)
        if loaders is None:
            reasons = "; ".join(state.cannot_rejoin for state in self.states if state.cannot_rejoin)
            note(f"{reasons}: a resume starts the epoch again")
            return epoch, None, []
        return epoch, anchor.position(True)["done"], loaders

    def arm(
        self, positions: Sequence[dict[str, Any]], resume_rng: rng.RngState | None, inside: bool = False, start: int = 0
    ) -> None:
        """Let the coming iterations rejoin at `positions`, until the resumed epoch is over.

        Args:
            positions: What `snapshot` gave.
            resume_rng: Random states at the snapshot; in force once the first iteration has rejoined. None: none.
            inside: Whether for iterations begun in the resumed epoch, as those of loaders prepared in it are.
            start: The first loader that it is for.
        """
        for state, position in () if self._past_resumed else matched(self.states, positions, start):
            running, begun_inside = position["running"], inside or state.born
            if begun_inside:
                state.to_end = position["ended"]
            if running is not None and running["inside"] == begun_inside:
                state.to_rejoin = running
                self._resume_rng = resume_rng

    def disarm(self) -> None:
        """An epoch is over, that which was resumed as well."""
        self._in_epoch, self._past_resumed = False, True
        self._resume_rng = None
        for state in self.states:
            state.to_end = 0
            state.to_rejoin = None

    def take_resume_rng(self) -> rng.RngState | None:
        found, self._resume_rng = self._resume_rng, None
        return found


class LoaderState:
    """What is known of one prepared loader.

    Attributes:
        batch_dim: The dimension that samples lie along in the tensors of its batches.
        born: The epoch in which it was prepared, as `Loaders` counts; 0: in none.
        ended: How often it was gone through, or given up, in this epoch.
        running: The latest iteration while the script holds on to it.
        cannot_rejoin: Why its position cannot be saved; empty when it can.
        to_end: How many iterations are to yield nothing, because the checkpoint was taken after them.
        to_rejoin: The position at which the iteration after those goes on.
    """

    def __init__(self, loaders: Loaders, index: int, loader: Any, batch_dim: int, born: int = 0) -> None:
        self.loaders = loaders
        self.born = born
        self.index = index
        self.batch_dim = batch_dim
        # Weak: a loader that the script drops has to end its workers at once, not when garbage is collected.
        self._loader = weakref.ref(loader) if isinstance(loader, DataLoader) else None
        self._sequence = loader if isinstance(loader, Sequence) else None
        self.ended = 0
        self.running: weakref.ref[Iteration] | None = None
        self.cannot_rejoin = cannot_rejoin(loader)
        self.by_index = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
        self.to_end = 0
        self.to_rejoin: dict[str, Any] | None = None
        self.skip: SkippingSampler | None = None
        self.shards: ShardingSampler | None = None
        if loaders.sharing is not None and gives_batches_of_indices(loader):
            loader.in_order = True  # all workers have to train on the same batches at the same time
            self.skip = SkippingSampler()
            self.shards = ShardingSampler(loaders.drawing, loaders.sharing.smallest)

    def current(self) -> Iteration | None:
        """The latest iteration, if the script still holds on to it and it is not exhausted."""
        iteration = self.running() if self.running is not None else None
        return None if iteration is None or iteration.exhausted else iteration

    def keeps_iterator(self) -> bool:
        """Whether the loader has an iterator whose workers live on from pass to pass."""
        return self._loader is not None and getattr(self._loader(), "_iterator", None) is not None

    def drop_iterator(self) -> None:
        """End the workers that the loader keeps from pass to pass: the next iterator is a new one."""
        loader = self._loader() if self._loader is not None else None
        if loader is not None and self.keeps_iterator():
            loader._iterator = None

    def draws_ahead(self) -> bool:
        """Whether indices of a worker's parts are drawn before their batch is asked for."""
        loader = self._loader() if self._loader is not None else None
        return self.shards is not None and loader is not None and loader.num_workers > 0

    def sampler_for(self, sampler: Any) -> Any:
        if self.skip is not None:
            sampler = self.skip.around(sampler)
        return sampler if self.shards is None else self.shards.around(sampler)

    def deal(self, done: int) -> Hand | None:
        """This worker's part of the pass that begins now after `done` batches; None: it takes all of it."""
        sharing = self.loaders.sharing
        if sharing is None or not sharing.divides():
            return None
        phase, epoch = sharing.place()
        by_index = self.shards is not None
        return sharing.dealer.deal(Pass(phase, epoch, self.index, self.ended, done, self.batches(), by_index))

    def batches(self) -> int | None:
        """Batches of a whole pass; None where they are not counted beforehand."""
        loader = self._sequence if self._loader is None else self._loader()
        return len(loader) if loader is not None and (self.by_index or self._loader is None) else None

    def iterate(self, open_inner: OpenIterator) -> Iteration:
        if self.to_end:
            self.to_end -= 1
            iteration = Iteration(self, lambda: iter(()), None)
        else:
            position, self.to_rejoin = self.to_rejoin, None
            if self.loaders.source is not None and self.index == 0:
                open_inner = partial(self.loaders.source, open_inner)
            iteration = Iteration(self, open_inner, position)
        self.running = weakref.ref(iteration)
        return iteration


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
        dealt: The part of a global batch that its last batch was; None where it was the whole.
    """

    def __init__(self, state: LoaderState, open_inner: OpenIterator, position: dict[str, Any] | None) -> None:
        loaders = state.loaders
        self.state = state
        self.exhausted = False
        self.number = loaders.number_iteration()
        self.epoch = loaders.epoch
        self._whole = state.batches()
        self.batches = self._whole if loaders.sharing is None else None
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
        try:  # alone, without a call more in every step
            batch = next(self._inner) if self.state.loaders.plain else self._next(self._inner)
        except StopIteration:
            if not self._has_more():
                self._watcher.exhausted(self)
                self._finish()
                raise
            batch = self._next(self._inner)
        self.done += 1
        return self._watcher.fetched(self, batch)

    @property
    def is_at_last(self) -> bool:
        """Whether only one batch is left of it."""
        return self.done + 1 == self._whole

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
            resumed = loaders.take_resume_rng()
            loaders.restore_rng(resumed or now)
        if resumed is not None:
            self._watcher.arrived()
        return inner
