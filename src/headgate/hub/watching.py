"""Who watches which run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

SHOW_SECONDS = 0.5

Watcher = Callable[[dict[str, Any]], None]


class Watchers:
    """Tells those who watch a run what happens to it, and twice a second how it stands.

    Args:
        snapshot: How a run stands; None once it has ended.
    """

    def __init__(self, snapshot: Callable[[str], dict[str, Any] | None]) -> None:
        self._snapshot = snapshot
        self._watchers: dict[str, set[Watcher]] = {}
        self._timer: asyncio.Handle | None = None

    def add(self, run: str, watcher: Watcher) -> Callable[[], None]:
        """Have `watcher` called with what there is to say of a run; the function returned ends that."""
        watchers = self._watchers.setdefault(run, set())
        watchers.add(watcher)
        if self._timer is None:
            # Not at once: the answer to the request comes first.
            self._timer = asyncio.get_running_loop().call_soon(self._show)
        return lambda: watchers.discard(watcher)

    def tell(self, run: str, message: dict[str, Any]) -> None:
        """Say something to all who watch a run."""
        for watcher in list(self._watchers.get(run, ())):
            watcher(message)

    def drop(self, run: str) -> None:
        """There is nothing more to say of a run."""
        self._watchers.pop(run, None)

    def close(self) -> None:
        """Say no more by the clock."""
        if self._timer is not None:
            self._timer.cancel()

    def _show(self) -> None:
        self._timer = None
        snapshots = {run: self._snapshot(run) for run, watchers in self._watchers.items() if watchers}
        if any(snapshot is not None for snapshot in snapshots.values()):
            self._timer = asyncio.get_running_loop().call_later(SHOW_SECONDS, self._show)
        for run, snapshot in snapshots.items():
            if snapshot is not None:
                self.tell(run, snapshot)
