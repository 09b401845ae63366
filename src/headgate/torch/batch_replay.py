"""Repeats the batches of a pass without reading the loader: for passes that `itertools.cycle`
holds.

A cycle reads its loader once, and then silently repeats the batches of that pass. So under Headgate
a pass held by a cycle never ends: it keeps its batches and repeats them itself.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator
from typing import Any, Optional

from headgate.torch.sharding import Assigned

KeptBatch = tuple[Any, Optional[Assigned]]
"""A batch, and its part of a global batch."""
_WRAPPERS = (enumerate, zip, map, filter, itertools.chain, itertools.islice)
_RANGE = type(iter(range(0)))
_DEEP = 3


def is_in_cycle(iterator: Any) -> bool:
    """Whether `itertools.cycle` holds an iterator, and so keeps its items."""
    return any(isinstance(holder, itertools.cycle) for holder in gc.get_referrers(iterator))


def is_cut_off(iterator: Any, deep: int = _DEEP) -> bool:
    """Whether `itertools.islice` or a `zip` with a range holds an iterator. These end by counts of
    their own.
    """
    for holder in _wrappers(iterator):
        if isinstance(holder, itertools.islice) or (isinstance(holder, zip) and _has_range(holder)):
            return True
        if deep and is_cut_off(holder, deep - 1):
            return True
    return False


def _wrappers(iterator: Any) -> Iterator[Any]:
    for holder in gc.get_referrers(iterator):
        if isinstance(holder, _WRAPPERS):
            yield holder
        elif type(holder) is tuple:  # that of a zip or map
            yield from (
                referrer
                for referrer in gc.get_referrers(holder)
                if isinstance(referrer, (zip, map))
            )


def _has_range(holder: Any) -> bool:
    tuples = [referent for referent in gc.get_referents(holder) if type(referent) is tuple]
    return any(isinstance(iterator, _RANGE) for iterators in tuples for iterator in iterators)


class Replay(Iterator[Any]):
    """Repeats the batches of a pass without end.

    Args:
        batches: The batches.
        done: How many batches were given, including repetitions.

    Attributes:
        assigned: The last batch's part of a global batch.
    """

    def __init__(self, batches: list[KeptBatch], done: int) -> None:
        self._batches = batches
        self._next = done % len(batches)
        self.assigned: Assigned | None = None

    def __next__(self) -> Any:
        batch, self.assigned = self._batches[self._next]
        self._next = (self._next + 1) % len(self._batches)
        return batch
