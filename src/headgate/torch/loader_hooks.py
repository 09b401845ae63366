"""Watches a user's loader without replacing the object."""

from __future__ import annotations

import random
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

OpenIterator = Callable[[], Iterator[Any]]
MARK = "_headgate_watched"
"""Attribute of the type of a watched loader."""


def watched(
    loader: Any, iterate: Callable[[OpenIterator], Iterator[Any]], sampler_for: Callable[[Any], Any]
) -> Any:
    """`loader`, with its class replaced by a subclass, so that the object and its attributes stay
    the same.

    Args:
        loader: Any iterable.
        iterate: Called for each pass with a function that opens the loader's own iterator.
        sampler_for: Called with the sampler that a `DataLoader` is about to draw indices from.
            Returns the sampler to use.

    Returns:
        The same object, or a thin wrapper if its class cannot be replaced (a list, a type written
        in C).
    """
    kind = type(loader)
    open_iterator = getattr(kind, "__iter__", iter)
    namespace: dict[str, Any] = {
        "__slots__": (),
        "__iter__": lambda self: iterate(lambda: iter(open_iterator(self))),
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__doc__": kind.__doc__,
        MARK: True,
    }
    if isinstance(loader, DataLoader):
        # The samplers of DataLoader's iterators; a property, so that our subclasses can override
        # it.
        namespace["_index_sampler"] = property(
            lambda self: sampler_for(kind._index_sampler.fget(self))
        )
    try:
        loader.__class__ = types.new_class(
            kind.__name__, (kind,), exec_body=lambda body: body.update(namespace)
        )
    except (TypeError, AttributeError):
        return WatchedIterable(loader, iterate)
    return loader


class WatchedIterable:
    """A loader whose class cannot be replaced. It forwards everything but its iteration."""

    _headgate_watched = True

    def __init__(self, loader: Any, iterate: Callable[[OpenIterator], Iterator[Any]]) -> None:
        self._loader = loader
        self._iterate = iterate

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(lambda: iter(self._loader))

    def __len__(self) -> int:
        return len(self._loader)

    def __getitem__(self, index: Any) -> Any:
        return self._loader[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class SkippingSampler:
    """Replaces a loader's sampler, so that the next pass begins at batch `count`.

    Attributes:
        count: Batches that passes begun from now on skip.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sampler: Any = None
        self._latest: _SkippedIterator | None = None

    @property
    def inner(self) -> Any:
        """The replaced sampler."""
        return self._sampler

    def around(self, sampler: Any) -> SkippingSampler:
        self._sampler = sampler
        return self

    def __iter__(self) -> Iterator[Any]:
        # A loader with workers asks twice while its iterator is made. A later request starts the
        # pass at its beginning.
        self._latest = _SkippedIterator(iter(self._sampler), self.count)
        return self._latest

    def __len__(self) -> int:
        return len(self._sampler)

    def advance(self) -> None:
        """Skip now what was not skipped yet. Later passes skip nothing."""
        self.count = 0
        if self._latest is not None:
            self._latest.advance()


class _SkippedIterator:
    def __init__(self, indices: Iterator[Any], count: int) -> None:
        self._indices = indices
        self._count = count

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.advance()
        return next(self._indices)

    def advance(self) -> None:
        while self._count:
            self._count -= 1
            next(self._indices, None)


def cannot_rejoin(loader: Any) -> str:
    """Why a loader cannot rejoin in the middle of a pass; empty if it can."""
    name = type(loader).__qualname__
    if isinstance(loader, DataLoader):
        private: tuple[type, ...] = (random.Random,)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            private = (*private, numpy.random.Generator, numpy.random.RandomState)
        if type(loader).__iter__ is not DataLoader.__iter__:
            return f"{name} has an __iter__ of its own"
        if not getattr(loader, "in_order", True):
            return f"{name} was made with in_order=False"
        if attributes_of(loader, private):
            return f"the sampler of {name} draws from a random generator of its own"
        return ""
    if isinstance(loader, Sequence):
        return ""
    return f"{name} is neither a DataLoader nor a sequence"


def gives_batches_of_indices(loader: Any) -> bool:
    """Whether a batch of a loader is determined by the indices that its sampler draws."""
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
        and type(loader).__iter__ is DataLoader.__iter__
    )


def attributes_of(loader: Any, kind: Any) -> list[Any]:
    """Attributes of type `kind` of a `DataLoader` and its samplers, each once, in a fixed order."""
    if not isinstance(loader, DataLoader):
        return []
    batch_sampler = getattr(loader, "batch_sampler", None)
    owners = (loader, loader.sampler, batch_sampler, getattr(batch_sampler, "sampler", None))
    values = [value for owner in owners for value in getattr(owner, "__dict__", {}).values()]
    return list({id(value): value for value in values if isinstance(value, kind)}.values())
