"""Prepared loaders: the user's own objects, watched batch by batch, and able to rejoin an epoch in its middle.

A position in an epoch is: how often each loader was gone through before the running iteration began, and of each
running iteration the random states when it began and how many batches it gave. To rejoin, the former yield nothing, and
the latter draw the same permutation again and skip its indices, so that no data is read twice.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from typing import Any, Protocol

import torch
from torch.utils.data import DataLoader, IterableDataset

from headgate.torch import rng
from headgate.torch.watching import MARK, OpenIterator, SkippingSampler, attributes_of, cannot_rejoin, watched


class Watcher(Protocol):
    """Whom loaders tell. What it raises ends the iteration."""

    def fetching(self, iteration: Iteration) -> None: ...

    def fetched(self, iteration: Iteration, batch: Any) -> Any:
        """Returns the batch to hand on."""

    def exhausted(self, iteration: Iteration) -> None: ...


class Loaders:
    """All prepared loaders of a script.

    Attributes:
        epoch: Number of epochs entered; iterations of different ones are told apart by it.
        generators: Random generators that loaders were given.
        source: Where set, what the first loader's batches are drawn through.
    """

    def __init__(self, watcher: Watcher) -> None:
        self.watcher = watcher
        self.states: list[LoaderState] = []
        self.epoch = 0
        self.source: Callable[[OpenIterator], Iterator[Any]] | None = None
        self._iterations = 0
        self.generators: list[torch.Generator] = []
        self._resume_rng: rng.RngState | None = None

    def prepare(self, loader: Any) -> Any:
        """The loader, watched: the same object wherever Python allows, a thin wrapper otherwise."""
        if hasattr(type(loader), MARK):
            return loader
        state = LoaderState(self, len(self.states), loader)
        self.states.append(state)
        known = {id(generator) for generator in self.generators}
        self.generators += [g for g in attributes_of(loader, torch.Generator) if id(g) not in known]
        return watched(loader, state.iterate, state.sampler_for)

    def capture_rng(self, devices: bool = True) -> rng.RngState:
        return rng.capture(self.generators, devices)

    def restore_rng(self, state: rng.RngState) -> None:
        rng.restore(state, self.generators)

    def counts(self) -> tuple[int, ...]:
        """How often each loader was gone through in this epoch."""
        return tuple(state.ended for state in self.states)

    def number_iteration(self) -> int:
        self._iterations += 1
        return self._iterations

    def anchor(self, feeding: Set[int]) -> Iteration | None:
        """The outermost of the iterations numbered in `feeding`: the first that was created and is still going."""
        running = [i for i in (state.current() for state in self.states) if i is not None and i.number in feeding]
        return min(running, key=lambda iteration: iteration.number, default=None)

    def enter_epoch(self) -> None:
        self.epoch += 1
        for state in self.states:
            state.ended = 0

    def snapshot(self, anchor: Iteration | None) -> list[dict[str, Any]] | None:
        """Positions of all loaders, for `arm`.

        Args:
            anchor: The iteration whose step was the last; None between two epochs.

        Returns:
            One position for each loader; None where one of them cannot rejoin.
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
                    "ended": ended,
                    "running": None if running is None else running.position(anchor is not None),
                }
            )
        return positions

    def arm(
        self, positions: Sequence[dict[str, Any]], resume_rng: rng.RngState | None, inside: bool, start: int = 0
    ) -> None:
        """Let the coming iterations rejoin at `positions`.

        Args:
            positions: What `snapshot` gave.
            resume_rng: Random states at the snapshot; in force again once the first iteration has rejoined. None: those
                of that moment stay.
            inside: Whether this is for iterations begun in the resumed epoch, or for those from before it.
            start: The first loader that it is for.
        """
        for state, position in zip(self.states[start:], positions[start:]):
            running = position["running"]
            if inside:
                state.to_end = position["ended"]
            if running is not None and running["inside"] == inside:
                state.to_rejoin = running
                self._resume_rng = resume_rng

    def disarm(self) -> None:
        """The resumed epoch is over."""
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
        ended: How often it was gone through, or given up, in this epoch.
        running: The latest iteration while the script holds on to it.
        cannot_rejoin: Why its position cannot be saved; empty when it can.
        to_end: How many iterations are to yield nothing, because the checkpoint was taken after them.
        to_rejoin: The position at which the iteration after those goes on.
    """

    def __init__(self, loaders: Loaders, index: int, loader: Any) -> None:
        self.loaders = loaders
        self.index = index
        # Weak: a loader that the script drops has to end its workers at once, not when garbage is collected.
        self._loader = weakref.ref(loader) if isinstance(loader, DataLoader) else None
        self.ended = 0
        self.running: weakref.ref[Iteration] | None = None
        self.cannot_rejoin = cannot_rejoin(loader)
        self.by_index = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
        self.to_end = 0
        self.to_rejoin: dict[str, Any] | None = None
        self.skip: SkippingSampler | None = None

    def current(self) -> Iteration | None:
        """The latest iteration, if the script still holds on to it and it is not exhausted."""
        iteration = self.running() if self.running is not None else None
        return None if iteration is None or iteration.exhausted else iteration

    def keeps_iterator(self) -> bool:
        """Whether the loader has an iterator whose workers live on from pass to pass."""
        loader = self._loader() if self._loader is not None else None
        return getattr(loader, "_iterator", None) is not None

    def sampler_for(self, sampler: Any) -> Any:
        return sampler if self.skip is None else self.skip.around(sampler)

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
        reopened: Whether the loader's iterator, with its workers, is one from an earlier pass: that draws fewer random
            numbers than a new one.
        created: Random states when it was created.
        first: Random states before its first batch; None until then.
        before: How often each loader had been gone through in this epoch when it was created.
        epoch: The epoch it was created in, as `Loaders` counts.
        number: Counts the iterations of the script.
    """

    def __init__(self, state: LoaderState, open_inner: OpenIterator, position: dict[str, Any] | None) -> None:
        loaders = state.loaders
        self.state = state
        self.exhausted = False
        self.number = loaders.number_iteration()
        self.epoch = loaders.epoch
        self.before = loaders.counts()
        self._watcher = loaders.watcher
        self._open = open_inner
        self._inner: Iterator[Any] | None = None
        if position is None:
            self.done = 0
            self.reopened = state.keeps_iterator()
            self.first: rng.RngState | None = None
            self.created = loaders.capture_rng(devices=False)
            self._inner = open_inner()
        else:
            self.done = position["done"]
            self.reopened = position["reopened"]
            self.first = position["first"]
            self.created = position["created"]

    def __iter__(self) -> Iteration:
        return self

    def __next__(self) -> Any:
        inner = self._inner
        if inner is None:
            inner = self._inner = self._rejoined()
        if self.first is None:
            self.first = self.state.loaders.capture_rng(devices=False)
        self._watcher.fetching(self)
        try:
            batch = next(inner)
        except StopIteration:
            self._watcher.exhausted(self)
            self._finish()
            raise
        self.done += 1
        return self._watcher.fetched(self, batch)

    def position(self, within_epoch: bool) -> dict[str, Any]:
        """What it takes to rejoin; `inside` says whether it was created in the epoch that is to be resumed."""
        return {
            "done": self.done,
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

    def _rejoined(self) -> Iterator[Any]:
        """The inner iterator as it was after `done` batches, with the random states of that moment."""
        state, loaders = self.state, self.state.loaders
        now = loaders.capture_rng()
        skip = state.skip = SkippingSampler()
        if self.reopened:
            self._open()
        loaders.restore_rng(self.created)
        skip.count = self.done if state.by_index else 0
        inner = self._open()
        if self.first is not None:
            loaders.restore_rng(self.first)
        if state.by_index:
            skip.advance()
        else:
            for _ in range(self.done):
                next(inner, None)
        state.skip = None
        loaders.restore_rng(loaders.take_resume_rng() or now)
        return inner
