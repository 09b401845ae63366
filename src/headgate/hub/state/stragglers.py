"""Workers that are much slower than the others of their job."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

_OWN = ("input", "compute", "forward", "backward", "optimizer")
"""Spans of a step in which a worker waits for no other."""
_SLOW_TIMES = 5.0
"""Times as long as the others' median from which on a worker is slow."""
_CALM_TIMES = 2.0
"""Times as long below which it is no longer."""
_SLOW_SECONDS = 0.05
"""A worker that is behind by less in a step is not slow: a busy machine takes as much now and
then.
"""


@dataclass(frozen=True, slots=True)
class StragglerChange:
    """A worker is slow from now on, or no longer.

    Args:
        slow: Whether it is.
        own: Seconds that its own part of a step takes.
        others: The median of the others'.
    """

    slow: bool
    own: float
    others: float


class Stragglers:
    """Finds the workers that are much slower than the others, by their own parts of a step. Their
    node is slow, and all wait for them.
    """

    def __init__(self) -> None:
        self._last: dict[str, deque[float]] = {}
        self._slow: set[str] = set()

    def add(self, worker: str, spans: Mapping[str, float]) -> StragglerChange | None:
        """Take in a step of a worker; what has changed of it with that. Told by the quicker of its
        last two steps, so that one that was held up by something else does not count.

        Args:
            worker: Its name.
            spans: Seconds by span.
        """
        self._last.setdefault(worker, deque(maxlen=2)).append(
            sum(spans.get(name, 0.0) for name in _OWN)
        )
        known = {name: min(last) for name, last in self._last.items() if len(last) == 2}
        own = known.pop(worker, None)
        if own is None or not known:
            return None
        others = median(known.values())
        was = worker in self._slow
        is_slow = (
            own >= (_CALM_TIMES if was else _SLOW_TIMES) * others and own - others >= _SLOW_SECONDS
        )
        if is_slow == was:
            return None
        self._slow ^= {worker}
        return StragglerChange(is_slow, own, others)

    def drop(self, worker: str) -> None:
        """A worker has ended."""
        self._last.pop(worker, None)
        self._slow.discard(worker)
