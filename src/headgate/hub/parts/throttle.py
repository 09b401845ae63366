"""Reports of progress that come faster than anybody has to know of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from headgate.model import events

EVERY_SECONDS = 0.1
"""Time between two reports of a task that prints faster."""
AT_ONCE = 50
"""Reports that are told one by one, after a while of few, before any are merged: a short script's
every loss counts.
"""


class ProgressThrottle:
    """Tells what one task reports: at once where that is seldom, else merged, ten times a second.
    An epoch is told apart from the next one, unless epochs come faster than that.

    Args:
        tell: Takes a report.
        loop: Whose time counts; `add` and `flush` are called on it.
    """

    def __init__(
        self, tell: Callable[[events.Progress], None], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._tell = tell
        self._loop = loop
        self._held: events.Progress | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._next = -math.inf  # when the next one may be told

    def add(self, progress: events.Progress) -> None:
        """Take in a report."""
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
        """Tell what is not told yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held is not None:
            held, self._held = self._held, None
            self._next = (
                max(self._next, self._loop.time() - (AT_ONCE - 1) * EVERY_SECONDS) + EVERY_SECONDS
            )
            self._tell(held)


def _is_of_another_epoch(before: events.Progress, progress: events.Progress) -> bool:
    return (
        before.epoch is not None and progress.epoch is not None and progress.epoch != before.epoch
    )
