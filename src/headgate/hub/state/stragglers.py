"""Detect workers that are much slower than the others of their job."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

_OWN = ("input", "copy", "compute", "forward", "backward", "optimizer")
"""Spans of a step in which a worker waits for no other."""
_SLOW_TIMES = 5.0
"""A worker becomes slow at this many times the others' median."""
_CALM_TIMES = 2.0
"""It stops being slow below this many times the median."""
_SLOW_SECONDS = 0.05
"""A smaller delay for each step never counts: a busy machine causes as much now and then."""


@dataclass(frozen=True, slots=True)
class StragglerChange:
    """A worker becomes slow, or stops being slow.

    Args:
        slow: Whether it is slow now.
        own: Seconds of its own part of a step.
        others: Median of the others' own parts.
    """

    slow: bool
    own: float
    others: float


class Stragglers:
    """Finds stragglers by the workers' own parts of a step: their node is slow, and all wait for
    them.
    """

    def __init__(self) -> None:
        self._last: dict[str, deque[float]] = {}
        self._slow: set[str] = set()

    def add(self, worker: str, spans: Mapping[str, float]) -> StragglerChange | None:
        """Add a step of a worker. The faster of its last two steps counts, so that a single delay
        does not.

        Args:
            worker: Its name.
            spans: Seconds by span.

        Returns:
            The change of the worker's status, if any.
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
