"""Matches each loader of a resumed script with a loader of the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

EARLIER, NOW = 1, 2
"""A loader was prepared in an epoch before the checkpoint's, or in that epoch. 0: outside of
epochs.
"""


class _Loader(Protocol):
    index: int
    born: int


_L = TypeVar("_L", bound=_Loader)


def matched(
    loaders: Sequence[_L], positions: Sequence[dict[str, Any]], start: int
) -> list[tuple[_L, dict[str, Any]]]:
    """Loaders from number `start` on, each with its position in the checkpoint.

    They are matched by the order in which they are prepared. Loaders prepared in the resumed epoch
    match those that were prepared in it, otherwise those of earlier epochs that it read.
    """
    outside = [entry for entry in positions if not entry.get("born")]
    within = [entry for entry in positions if entry.get("born") == NOW]
    if not within:
        within = [
            entry
            for entry in positions
            if entry.get("born") and (entry["ended"] or entry["running"])
        ]
    pairs = [
        *zip([entry for entry in loaders if not entry.born], outside),
        *zip([entry for entry in loaders if entry.born], within),
    ]
    return [(loader, position) for loader, position in pairs if loader.index >= start]
