"""Throttle frequent progress reports."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from headgate.model.progress import Progress

EVERY_SECONDS = 0.1
"""Least seconds between two reports of a task that prints faster."""
AT_ONCE = 50
"""Reports that pass one by one after a quiet time, before any are merged: every loss of a short
script counts.
"""


class ProgressThrottle:
    """Passes a task's rare reports at once, and merges frequent ones ten times a second. Reports of
    different epochs are merged only if epochs come faster than that.

    Args:
        tell: Takes a report.
        loop: The loop for `add`, `flush` and its clock.
    """

    def __init__(self, tell: Callable[[Progress], None], loop: asyncio.AbstractEventLoop) -> None:
        self._tell = tell
        self._loop = loop
        self._held: Progress | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next = -math.inf  # when the next report may pass

    def add(self, progress: Progress) -> None:
        """Add a report."""
        now = self._loop.time()
        if (
            self._held is not None
            and self._next <= now + EVERY_SECONDS
            and _is_of_another_epoch(self._held, progress)
        ):
            self.flush()
        self._held = progress if self._held is None else self._held.merged(progress)
        if self._next <= now:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next, self.flush)

    def flush(self) -> None:
        """Pass on the pending report."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held is not None:
            held, self._held = self._held, None
            self._next = (
                max(self._next, self._loop.time() - (AT_ONCE - 1) * EVERY_SECONDS) + EVERY_SECONDS
            )
            self._tell(held)


def _is_of_another_epoch(before: Progress, progress: Progress) -> bool:
    return (
        before.epoch is not None and progress.epoch is not None and progress.epoch != before.epoch
    )
