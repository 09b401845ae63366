"""How much faster a job gets with more cores, from the cost of its steps with different numbers of
threads.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

LONGEST_SECONDS = 10.0
"""After a longer gap between two readings, many times the usual one, something stood still."""
_SETTLE_SECONDS = 1.0
"""For so long after a change of the threads, usage and reports still belong to the time before."""
_WINDOW_SECONDS = 1.0
"""Steps are counted over so long at least, because usage is read once a second."""
_LEAST_SECONDS = 3.0
"""A number of threads counts once it was seen for so long."""
_MOST_WAITED = 0.25
"""Of the time in which its threads ran or waited for a core: where they waited for more, others had
its cores.
"""
_MOST_OVER = 0.75
"""Threads beyond the cores of a task, as many as it has by its own part
(`headgate.model.shares.threads`).
"""
_WORTH = 0.5
"""Two equally long jobs may run on one core each, or one after the other on two. If a second core
adds more than this part of the first, they end sooner on average one after the other: with a
speedup of s, 3 / s < 2.
"""
_MOST_CORES = 10_000
"""More than any machine has: a job that puts so many to good use loses nothing on any."""


@dataclass(slots=True)
class _ThreadTally:
    """Totals for one number of threads: seconds, steps, core-seconds used, and core-seconds that it
    could have used.
    """

    seconds: float = 0.0
    steps: float = 0.0
    used: float = 0.0
    entitled: float = 0.0


class Scaling:
    """A job's steps and their cost, by the number of its threads."""

    def __init__(self) -> None:
        self._seen: dict[int, _ThreadTally] = {}
        self._threads = 0
        self._entitled = 0.0
        self._settled_at = 0.0
        self._work = self._waited = 0.0
        self._cores = self._waits = 0.0
        self._used_at: float | None = None
        # of the window: second, step, core-seconds used and waited for
        self._begun: tuple[float, ...] | None = None

    def used(
        self, now: float, cores: float, threads: int, entitled: float, waits: float = 0.0
    ) -> None:
        """Take in its mean use since the last call.

        Args:
            now: Seconds.
            cores: Cores that it used.
            threads: Compute threads that it has.
            entitled: Cores that it could have if all jobs wanted theirs.
            waits: Threads of it that waited for a core.
        """
        if self._stood_still(now):
            self._begun, self._settled_at = None, now + _SETTLE_SECONDS
        elif self._used_at is not None:
            self._work += cores * (now - self._used_at)
            self._waited += waits * (now - self._used_at)
        self._used_at, self._cores, self._waits = now, cores, waits
        if threads != self._threads:
            self._threads, self._settled_at, self._begun = threads, now + _SETTLE_SECONDS, None
        self._entitled = min(entitled, threads)  # more it cannot use
        # for what others leave, which is not known here
        if threads > max(entitled + _MOST_OVER, 1):
            self._begun = None
            self._settled_at = now + _SETTLE_SECONDS

    def reported(self, now: float, step: float) -> None:
        """Take in the step that it has reached."""
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
        """Whether the last reading is so long ago that the machine, or the process that reads, must
        have stood still.
        """
        return self._used_at is not None and now - self._used_at > LONGEST_SECONDS

    def power(self) -> float | None:
        """The power of the number of its threads that its speed follows, as in heSRPT (Berg et al.
        2020), by the fewest and the most with which it was seen; None if it was not seen for long
        enough with two numbers of them.
        """
        speeds = {
            threads: _speed(threads, seen) for threads, seen in self._seen.items() if _is_told(seen)
        }
        few, many = min(speeds, default=0), max(speeds, default=0)
        if few == many:
            return None
        return math.log(speeds[many] / speeds[few]) / math.log(many / few)

    def useful(self) -> float | None:
        """The cores that it puts to good use while others want them (`useful_cores`); None: not
        known.
        """
        power = self.power()
        return useful_cores(power) if power is not None else None


def useful_cores(power: float) -> float:
    """The cores that a job of this power (`Scaling.power`) puts to good use while others want them:
    each adds half of what the first brings, or more. Infinity if it loses nothing, or too little
    for any machine.
    """
    if power >= 1.0:
        return math.inf

    def adds_little(cores: int) -> bool:
        """Whether one more core adds little; if so, all after it do too."""
        return math.pow(cores + 1, power) - math.pow(cores, power) < _WORTH

    cores = bisect_left(range(_MOST_CORES), True, lo=1, key=adds_little)
    return float(cores) if cores < _MOST_CORES else math.inf


def _is_told(seen: _ThreadTally) -> bool:
    return seen.seconds >= _LEAST_SECONDS and seen.used > 0.0


def _speed(threads: int, seen: _ThreadTally) -> float:
    """Steps a second on as many cores as threads, by the cost of a step and the part of its cores
    that it used.
    """
    busy = min(seen.used / seen.entitled, 1.0) if seen.entitled > 0.0 else 1.0
    return seen.steps / seen.used * busy * threads
