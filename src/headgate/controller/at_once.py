"""How many jobs run at once where nobody says so."""

from __future__ import annotations

from statistics import fmean

from headgate.model.identifiers import JobId
from headgate.policies import NoPolicy

_PER_CORE, _PER_CORE_AS_BASELINE = 4, 16
_BUSY = 0.9
"""With more than this part of the cores in use, another job only slows the others."""
_SEEN_SECONDS = 3.0
"""A job's use of cores tells nothing before it has run for this long."""
_LEAST_CORES = 1e-3
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
    """

    def __init__(self, per_core: int) -> None:
        self.most = self._per_core = per_core
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
        elif len(self._used) == running:  # else those that started last may fill all that is idle
            left = _BUSY * self._cores - sum(self._by_others.values())
            fit = int(left / max(fmean(self._used.values()), _LEAST_CORES))
            self.most = max(least, min(fit, 2 * running))
