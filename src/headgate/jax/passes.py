"""Passes over data, counted batch by batch, so that a resume can go on inside of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any


class Passes:
    """The passes over data in the present epoch.

    Attributes:
        counts: Batches that each gave, in the order in which they began.
        loose: Whether a batch of this epoch came by another way, so that the counts do not tell where the script is.
    """

    def __init__(self) -> None:
        self.counts: list[int] = []
        self.loose = False
        self._skips: list[int] = []

    def enter_epoch(self, skips: Sequence[int]) -> None:
        """An epoch begins; its first passes begin after so many batches."""
        self.counts = []
        self.loose = False
        self._skips = list(skips)

    def done(self) -> list[int] | None:
        """Batches that each pass gave; None where that does not tell where the script is."""
        return None if self.loose or not self.counts else list(self.counts)

    def over(self, batches: Iterable[Any], deal: Callable[[Callable[[], Any]], Any]) -> Iterator[Any]:
        """The batches of one pass.

        Args:
            deal: Is given a function that reads the next batch; returns what the script gets.
        """
        number = len(self.counts)
        skip = self._skips[number] if number < len(self._skips) else 0
        self.counts.append(skip)
        counts = self.counts  # those of this epoch, also when it ends in the middle of the pass
        if isinstance(batches, Sequence):
            inner: Iterator[Any] = (batches[index] for index in range(skip, len(batches)))
        else:
            inner = iter(batches)
            next(islice(inner, skip, skip), None)
        while True:
            try:
                batch = deal(lambda: next(inner))
            except StopIteration:
                return
            counts[number] += 1
            yield batch
