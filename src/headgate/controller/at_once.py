"""How many jobs run at once where nobody says so."""

from __future__ import annotations

from itertools import takewhile
from statistics import fmean

from headgate.model.identifiers import JobId
from headgate.policies import NoPolicy

_PER_CORE, _PER_CORE_AS_BASELINE = 4, 16
_BUSY = 0.9
"""With more than this part of the cores in use, another job only slows the others."""
_SEEN_SECONDS = 3.0
"""A job's use of cores tells nothing before it has run for this long."""
_LEAST_CORES = 1e-3
_LONG_SECONDS, _LONG = 60.0, 2.0
"""A job that has run for longer than this, and for so many times what jobs of its script took, may
be far longer than they are: another may run beside it.
"""
_NEW_PART = 0.3
"""How much a new reading of what other programs use counts beside those before."""


def per_core(policy: str) -> int:
    """How many jobs may run for each core under a policy, whatever they use. Policy `none`, the
    baseline, has more.
    """
    return _PER_CORE_AS_BASELINE if policy == NoPolicy.name else _PER_CORE


class CoresInUse:
    """How many jobs may run at once: so many for each core, and more while cores are idle. Cores
    that other programs use are not.

    Args:
        per_core: Jobs for each core that may run whatever they use.

    Attributes:
        most: How many may run now.
        idle_for: How many more would fill the idle cores, judging by those that run; 0 until the
            use of all of them is seen.
    """

    def __init__(self, per_core: int) -> None:
        self.most = self._per_core = per_core
        self.idle_for = 0
        self._cores = 1.0
        self._began: dict[JobId, float] = {}
        self._used: dict[JobId, float] = {}
        self._by_others: dict[str, float] = {}

    def have(self, cores: float) -> None:
        """Set the cores of all nodes together."""
        self._cores = cores
        self._count()

    def started(self, now: float, job: JobId) -> None:
        """A job has started."""
        self._began[job] = now
        self.idle_for = 0

    def use(self, now: float, job: JobId, cores: float) -> None:
        """A running job uses this many cores."""
        began = self._began.get(job)
        if began is not None and now - began >= _SEEN_SECONDS:
            self._used[job] = cores
            self._count()

    def busy(self, node: str, cores: float | None, of_jobs: float) -> None:
        """All programs of a node use this many cores, its jobs `of_jobs` of them; None: not known
        from now on.
        """
        if cores is None:
            self._by_others.pop(node, None)
            return
        others = max(cores - of_jobs, 0.0)
        before = self._by_others.get(node, others)
        self._by_others[node] = before + _NEW_PART * (others - before)

    def ended(self, job: JobId) -> None:
        """A job has ended."""
        self._began.pop(job, None)
        self._used.pop(job, None)

    def _count(self) -> None:
        least, running = max(round(self._per_core * self._cores), 1), len(self._began)
        if running < least:
            self.most = least
        self.idle_for = 0
        if running and len(self._used) == running:  # else the last may fill all that is idle
            left = _BUSY * self._cores - sum(self._by_others.values())
            fit = min(int(left / max(fmean(self._used.values()), _LEAST_CORES)), 2 * running)
            self.idle_for = max(fit - running, 0)
            if running >= least:
                self.most = max(least, fit)


class JobsOfScript:
    """How many jobs of one script of a run may run at once: one for each core. They are about
    equally long, so that more would slow each other and end none sooner. More run on idle cores,
    and beside those that have run far longer than others took.
    """

    def __init__(self) -> None:
        self._began: dict[JobId, float] = {}
        self._ended, self._seconds = 0, 0.0

    def started(self, now: float, job: JobId) -> None:
        """A job has started."""
        self._began[job] = now

    def ended(self, now: float, job: JobId, is_over: bool) -> None:
        """A job runs no more; if it is over, what it took tells about the others."""
        began = self._began.pop(job, None)
        if began is not None and is_over:
            self._ended += 1
            self._seconds += now - began

    def most(self, now: float, cores: float, idle_for: int) -> int:
        """How many may run now.

        Args:
            now: Time (s).
            cores: Cores of all nodes.
            idle_for: As of `CoresInUse`.
        """
        usual = self._seconds / self._ended if self._ended else 0.0
        seconds = max(_LONG_SECONDS, _LONG * usual)
        long = takewhile(lambda began: now - began >= seconds, self._began.values())
        return max(at_least_one(cores) + sum(1 for _ in long), len(self._began) + idle_for)


def at_least_one(cores: float) -> int:
    """One job for each core."""
    return max(round(cores), 1)
