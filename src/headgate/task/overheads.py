"""Time that a script spends outside of its steps: garbage collection, evaluation, saving its own
files, waiting for its turn on a GPU.
"""

from __future__ import annotations

import gc
import time
from typing import Any, Callable

_EVERY_SECONDS = 1.0
"""Time between two messages."""
_LEAST_SECONDS = 1e-3
"""Smaller amounts are reported with the next one."""


class OverheadClock:
    """Sums seconds by cause, and reports them about once a second.

    Args:
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._told_at = float("-inf")
        self._collecting_since: float | None = None
        self._watches = False

    def add(self, name: str, seconds: float) -> None:
        """Add seconds to a cause: `garbage-collection`, `evaluation`, `saving`, or `turns`, waiting
        for its turn on a GPU.
        """
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def watch_garbage(self) -> None:
        """From now on time Python's garbage collector, which stops all threads."""
        if not self._watches:
            self._watches = True
            gc.callbacks.append(self._collected)

    def tell(self, send: Callable[[dict[str, object]], object], now: bool = False) -> None:
        """Send the sums if they are due.

        Args:
            now: Send them even if they are not due.
        """
        if not self._seconds or not (now or self._clock() - self._told_at >= _EVERY_SECONDS):
            return
        self._told_at = self._clock()
        due = {
            name: seconds for name, seconds in self._seconds.items() if seconds >= _LEAST_SECONDS
        }
        for name in due:
            del self._seconds[name]
        if due:
            send({"type": "asides", "seconds": due})

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            self._collecting_since = self._clock()
        elif self._collecting_since is not None:
            self.add("garbage-collection", self._clock() - self._collecting_since)
            self._collecting_since = None


overheads = OverheadClock()
