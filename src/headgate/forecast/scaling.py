"""Estimate a job's speedup with more cores, from the cost of its steps with different thread
counts.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

LONGEST_SECONDS = 10.0
"""A longer gap between readings, many times the usual one, means a standstill."""
_SETTLE_SECONDS = 1.0
"""After a change of threads, use and reports still belong to the old count for this long."""
_WINDOW_SECONDS = 1.0
"""Least length of a window in which steps are counted, because use is read once a second."""
_LEAST_SECONDS = 3.0
"""Least observation of a thread count for it to count."""
_MOST_WAITED = 0.25
"""Largest waiting fraction of the threads' time; beyond it others had its cores."""
_MOST_OVER = 0.75
"""Threads beyond a task's entitled cores that still come from its own share
(`headgate.model.shares.threads`).
"""
_WORTH = 0.5
"""Two equally long jobs may run on one core each, or one after the other on two. If a second core
adds more than this fraction of the first, the sequence has the lower mean completion time: with a
speedup of s, 3 / s < 2.
"""
_MOST_CORES = 10_000
"""More cores than any machine has; beyond it scaling counts as perfect."""


@dataclass(slots=True)
class _ThreadTally:
    """Totals for one thread count: seconds, steps, core-seconds used, and core-seconds
    available.
    """

    seconds: float = 0.0
    steps: float = 0.0
    used: float = 0.0
    entitled: float = 0.0


class Scaling:
    """A job's steps and their cost, by thread count."""

    def __init__(self) -> None:
        self._seen: dict[int, _ThreadTally] = {}
        self._threads = 0
        self._entitled = 0.0
        self._settled_at = 0.0
        self._work = self._waited = 0.0
        self._cores = self._waits = 0.0
        self._used_at: float | None = None
        # start of the window: second, step, core-seconds used and waited for
        self._begun: tuple[float, ...] | None = None

    def used(
        self, now: float, cores: float, threads: int, entitled: float, waits: float = 0.0
    ) -> None:
        """Add its mean use since the last call.

        Args:
            now: Seconds.
            cores: Cores that it used.
            threads: Its compute threads.
            entitled: Cores that it gets if all jobs want theirs.
            waits: Its threads that waited for a core.
        """
        if self._stood_still(now):
            self._begun, self._settled_at = None, now + _SETTLE_SECONDS
        elif self._used_at is not None:
            self._work += cores * (now - self._used_at)
            self._waited += waits * (now - self._used_at)
        self._used_at, self._cores, self._waits = now, cores, waits
        if threads != self._threads:
            self._threads, self._settled_at, self._begun = threads, now + _SETTLE_SECONDS, None
        self._entitled = min(entitled, threads)  # it cannot use more
        # threads for cores that others leave, an unknown number
        if threads > max(entitled + _MOST_OVER, 1):
            self._begun = None
            self._settled_at = now + _SETTLE_SECONDS

    def reported(self, now: float, step: float) -> None:
        """Add the step that it has reached."""
        if self._used_at is None or now < self._settled_at or self._stood_still(now):
            return
        gap = now - self._used_at
        work, waited = self._work + self._cores * gap, self._waited + self._waits * gap
        if self._begun is None or step < self._begun[1]:
            self._begun = now, step, work, waited
            return
        since, first, before, waited_before = self._begun
        if now - since < _WINDOW_SECONDS or step == first:
            return
        self._begun = now, step, work, waited
        if waited - waited_before > _MOST_WAITED * (work - before + waited - waited_before):
            return
        seen = self._seen.setdefault(self._threads, _ThreadTally())
        seen.seconds += now - since
        seen.steps += step - first
        seen.used += max(work - before, 0.0)
        seen.entitled += self._entitled * (now - since)

    def _stood_still(self, now: float) -> bool:
        """Whether the last reading is so old that the machine, or the reading process, must have
        stood still.
        """
        return self._used_at is not None and now - self._used_at > LONGEST_SECONDS

    def power(self) -> float | None:
        """The exponent of the thread count in its speed, as in heSRPT (Berg et al. 2020), from the
        fewest and the most threads observed; None: fewer than two counts were observed long enough.
        """
        speeds = {
            threads: _speed(threads, seen) for threads, seen in self._seen.items() if _is_told(seen)
        }
        few, many = min(speeds, default=0), max(speeds, default=0)
        if few == many:
            return None
        return math.log(speeds[many] / speeds[few]) / math.log(many / few)

    def useful(self) -> float | None:
        """Cores that it uses efficiently while others want them (`useful_cores`); None: unknown."""
        power = self.power()
        return useful_cores(power) if power is not None else None


def useful_cores(power: float) -> float:
    """Cores that a job with this exponent (`Scaling.power`) uses efficiently while others want
    them: each adds at least half of what the first gives. Infinity for perfect or nearly perfect
    scaling.
    """
    if power >= 1.0:
        return math.inf

    def adds_little(cores: int) -> bool:
        """Whether one more core adds little; if so, all further ones do too."""
        return math.pow(cores + 1, power) - math.pow(cores, power) < _WORTH

    cores = bisect_left(range(_MOST_CORES), True, lo=1, key=adds_little)
    return float(cores) if cores < _MOST_CORES else math.inf


def _is_told(seen: _ThreadTally) -> bool:
    return seen.seconds >= _LEAST_SECONDS and seen.used > 0.0


def _speed(threads: int, seen: _ThreadTally) -> float:
    """Steps a second on as many cores as threads, from the cost of a step and the used fraction of
    its cores.
    """
    busy = min(seen.used / seen.entitled, 1.0) if seen.entitled > 0.0 else 1.0
    return seen.steps / seen.used * busy * threads
