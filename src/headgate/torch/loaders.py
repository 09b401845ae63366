"""Prepared loaders: the user's own objects, watched batch by batch, which can rejoin in the middle
of an epoch.

A position in an epoch holds two things. For each loader: the number of passes before the running
one. For each running pass: the random states when it began, and the number of batches that it gave.
On a rejoin, finished passes yield nothing. A running pass draws the same permutation again and
skips its first indices, so that no data is read twice.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Optional

import torch
from torch.utils.data import DataLoader, IterableDataset

from headgate.torch import rng
from headgate.torch.iteration import Iteration, Watcher
from headgate.torch.loader_hooks import (
    MARK,
    OpenIterator,
    SkippingSampler,
    attributes_of,
    cannot_rejoin,
    gives_batches_of_indices,
    watched,
)
from headgate.torch.loader_matching import EARLIER, NOW, matched
from headgate.torch.sharded_loaders import ShardingSampler, Sharing
from headgate.torch.sharding import Pass, ShardAssignment

Position = tuple[Optional[int], Optional[int], list[dict[str, Any]]]
"""Epoch; finished batches in it, None if a resume has to start it again; positions of the
loaders.
"""


_LOOKS = 3
"""First passes over each loader that are all checked for a cycle."""
_LOOK_SECONDS = 1.5
"""Time between two checks after those."""


class Loaders:
    """All prepared loaders of a script.

    Attributes:
        epoch: Number of epochs entered, by which passes of different epochs are told apart.
        generators: Random generators given to loaders.
        source: If set, the first loader's batches are drawn through it.
        sharing: How training data is divided between several workers; None: there is one.
        rejoined: Whether a pass has rejoined in this epoch.
        rejoined_to_end: Whether a rejoined pass has ended.
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
        self.rejoined = self.rejoined_to_end = False

    def prepare(self, loader: Any, batch_dim: int = 0) -> Any:
        """The watched loader: the same object if possible, otherwise a thin wrapper.

        Args:
            loader: The loader.
            batch_dim: The dimension of the samples in the tensors of its batches.
        """
        if hasattr(type(loader), MARK):
            return loader
        state = LoaderState(
            self, len(self.states), loader, batch_dim, self.epoch if self._in_epoch else 0
        )
        self.states.append(state)
        known = {id(generator) for generator in self.generators}
        self.generators += [g for g in attributes_of(loader, torch.Generator) if id(g) not in known]
        return watched(loader, state.iterate, state.sampler_for)

    def drawing(self) -> AbstractContextManager[None]:
        """A context with the random stream for drawing data. With one worker it is the script's."""
        stream = self._apart if self.sharing is None else self.sharing.stream
        return nullcontext() if stream is None else stream.drawing()

    @property
    def plain(self) -> bool:
        """Whether batches are those that the script would read without Headgate."""
        return self.sharing is None and self._apart is None

    def draw_apart(self) -> None:
        """Draw data with a separate stream from here on, as workers of a plan do, so that a single
        worker gets their batches.
        """
        if not self._iterations:
            self._apart = rng.Stream(self.capture_rng(devices=False))

    def capture_rng(self, devices: bool = True) -> rng.RngState:
        return rng.capture(self.generators, devices)

    def restore_rng(self, state: rng.RngState) -> None:
        rng.restore(state, self.generators)

    def counts(self) -> tuple[int, ...]:
        """Number of passes over each loader in this epoch."""
        return tuple(state.ended for state in self.states)

    @property
    def assigning(self) -> bool:
        """Whether a pass is running whose batches are assigned to workers."""
        running = [state.current() for state in self.states]
        return any(
            iteration is not None and iteration.assigned is not None for iteration in running
        )

    def number_iteration(self) -> int:
        self._iterations += 1
        return self._iterations

    def anchor(self, feeding: Set[int]) -> Iteration | None:
        """The outermost of the iterations numbered in `feeding`: the first one created that is
        still running and ends.
        """
        first: Iteration | None = None
        for state in self.states:  # in every step
            current = state.current()
            if current is None or current.number not in feeding:
                continue
            if first is None or (current.endless, current.number) < (first.endless, first.number):
                first = current
        return first

    def ends_by_count(self, feeding: Set[int]) -> bool:
        """Whether the script ends an epoch by counting batches, and not by the end of the
        iterations numbered in `feeding`. After a resume such a script does not know how many
        batches it has done.
        """
        running = [state.current() for state in self.states]
        return all(
            iteration.ends_by_count
            for iteration in running
            if iteration is not None and iteration.number in feeding
        )

    def enter_epoch(self) -> None:
        self.epoch += 1
        self._in_epoch = True
        for state in self.states:
            state.ended = 0

    def snapshot(self, anchor: Iteration | None) -> list[dict[str, Any]] | None:
        """A position for each loader, for `arm`; None if one of them cannot rejoin.

        Args:
            anchor: The iteration that fed the last step; None between two epochs.
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

    def position(
        self, epoch: int | None, anchor: Iteration | None, note: Callable[[str], None]
    ) -> Position:
        """The script's position in the middle of an epoch, after the last step of `anchor`, if it
        is known.

        Args:
            epoch: The epoch; None: the script does not count epochs.
            anchor: The iteration that fed the last step; None: unknown.
            note: Called with the reason why the position is unknown.
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
        self,
        positions: Sequence[dict[str, Any]],
        resume_rng: rng.RngState | None,
        inside: bool = False,
        start: int = 0,
    ) -> None:
        """Make the coming iterations rejoin at `positions`, until the resumed epoch is over.

        Args:
            positions: The result of `snapshot`.
            resume_rng: Random states at the snapshot, restored once the first iteration has
                rejoined; None: none.
            inside: Whether this is for iterations begun in the resumed epoch, such as those of
                loaders prepared in it.
            start: The first loader that this is for.
        """
        for state, position in () if self._past_resumed else matched(self.states, positions, start):
            running, begun_inside = position["running"], inside or state.born
            if begun_inside:
                state.to_end = position["ended"]
            if running is not None and running["inside"] == begun_inside:
                state.to_rejoin = running
                self._resume_rng = resume_rng

    def disarm(self) -> None:
        """Handle the end of an epoch, and of the one that was resumed."""
        self._in_epoch, self._past_resumed = False, True
        self._resume_rng = None
        self.rejoined = self.rejoined_to_end = False
        for state in self.states:
            state.to_end = 0
            state.to_rejoin = None

    def take_resume_rng(self) -> rng.RngState | None:
        states, self._resume_rng = self._resume_rng, None
        return states


class LoaderState:
    """State of one prepared loader.

    Attributes:
        batch_dim: The dimension of the samples in the tensors of its batches.
        born: The epoch in which it was prepared, as `Loaders` counts; 0: outside of epochs.
        ended: Passes that ended or were abandoned in this epoch.
        running: The latest iteration while the script holds it.
        cannot_rejoin: Why its position cannot be saved; empty if it can.
        to_end: Number of iterations that yield nothing, because the checkpoint was saved after
            them.
        to_rejoin: The position at which the iteration after those continues.
        left_early: Whether the script abandoned the latest pass, or did not ask for its end.
        lacks_begin: Whether this process gave only the rest of the latest pass that ended.
    """

    def __init__(
        self, loaders: Loaders, index: int, loader: Any, batch_dim: int, born: int = 0
    ) -> None:
        self.loaders = loaders
        self.born = born
        self.index = index
        self.batch_dim = batch_dim
        # Weak: a loader that the script drops has to end its workers at once, not at a later
        # garbage collection.
        self._loader = weakref.ref(loader) if isinstance(loader, DataLoader) else None
        self._sequence = loader if isinstance(loader, Sequence) else None
        self.ended = 0
        self.running: weakref.ref[Iteration] | None = None
        self.cannot_rejoin = cannot_rejoin(loader)
        self.by_index = isinstance(loader, DataLoader) and not isinstance(
            loader.dataset, IterableDataset
        )
        self.to_end = 0
        self.to_rejoin: dict[str, Any] | None = None
        self.left_early = self.lacks_begin = False
        self._looks, self._looked = 0, 0.0
        self.skip: SkippingSampler | None = None
        self.shards: ShardingSampler | None = None
        if loaders.sharing is not None and gives_batches_of_indices(loader):
            loader.in_order = True  # all workers have to train on the same batches at the same time
            self.skip = SkippingSampler()
            self.shards = ShardingSampler(loaders.drawing, loaders.sharing.smallest)

    def current(self) -> Iteration | None:
        """The latest iteration, if the script still holds it and it is not exhausted."""
        iteration = self.running() if self.running is not None else None
        return None if iteration is None or iteration.exhausted else iteration

    def keeps_iterator(self) -> bool:
        """Whether the loader keeps an iterator with its workers from pass to pass."""
        return self._loader is not None and getattr(self._loader(), "_iterator", None) is not None

    def drop_iterator(self) -> None:
        """End the workers that the loader keeps from pass to pass. The next iterator is a new
        one.
        """
        loader = self._loader() if self._loader is not None else None
        if loader is not None and self.keeps_iterator():
            loader._iterator = None

    def draws_ahead(self) -> bool:
        """Whether indices of a worker's parts are drawn before their batch is requested."""
        loader = self._loader() if self._loader is not None else None
        return self.shards is not None and loader is not None and loader.num_workers > 0

    def sampler_for(self, sampler: Any) -> Any:
        if self.skip is not None:
            sampler = self.skip.around(sampler)
        return sampler if self.shards is None else self.shards.around(sampler)

    def assign(self, done: int) -> ShardAssignment | None:
        """This worker's part of a pass that begins after `done` batches; None: all of it."""
        sharing = self.loaders.sharing
        if sharing is None or not sharing.divides():
            return None
        phase, epoch = sharing.place()
        by_index = self.shards is not None
        return sharing.assigner.assign(
            Pass(phase, epoch, self.index, self.ended, done, self.batches(), by_index)
        )

    def looks_for_cycle(self) -> bool:
        """Whether to check which object holds the pass that begins now.

        The check takes about 15 ms. Not every short pass is checked, except where workers have to
        do the same.
        """
        sharing, now = self.loaders.sharing, time.monotonic()
        if self.loaders.source is not None or (
            sharing is not None and not sharing.assigner.gives_again
        ):
            return False
        looks = sharing is not None or self._looks < _LOOKS or now - self._looked > _LOOK_SECONDS
        if looks:
            self._looks, self._looked = self._looks + 1, now
        return looks

    def batches(self) -> int | None:
        """Batches of a whole pass; None if unknown beforehand."""
        loader = self._sequence if self._loader is None else self._loader()
        return (
            len(loader) if loader is not None and (self.by_index or self._loader is None) else None
        )

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
