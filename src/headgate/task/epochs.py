"""The epochs of a script's own training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headgate.task.session import TaskSession


class Epochs:
    """The return value of `epochs`: iterable, with the total number of epochs as its length.

    Args:
        count: Number of epochs.
        join: Called when iteration begins. Returns the session with the engine, None under plain
            `python`.
    """

    def __init__(self, count: int, join: Callable[[], TaskSession | None]) -> None:
        self._count = count
        self._join = join

    def __iter__(self) -> Iterator[int]:
        session = self._join()
        return iter(range(self._count)) if session is None else session.epochs(self._count)

    def __len__(self) -> int:
        return max(0, self._count)
