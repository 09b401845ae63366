"""How many jobs run at once where nobody says so, and how much memory those of a script take."""

from __future__ import annotations

from collections import deque
from statistics import fmean, pstdev

from headgate.model.identifiers import JobId
from headgate.policies import NoPolicy

_PER_CORE, _PER_CORE_AS_BASELINE = 4, 16
_BUSY = 0.9
"""With more than this part of the cores in use, another job only slows the others."""
_SEEN_SECONDS = 3.0
"""A job's use of cores tells nothing before it has run for this long."""
_LEAST_CORES = 1e-3
_PEAKS_KEPT = 32
_MARGIN = 0.1
_NEWS = 0.05
"""An expected need that changes by less than this part stays as it is."""


def per_core(policy: str) -> int:
    """How many jobs may run for each core under a policy, whatever they use. Policy `none`, the
    baseline, has more.
    """
    return _PER_CORE_AS_BASELINE if policy == NoPolicy.name else _PER_CORE


class CoresInUse:
    """How many jobs may run at once: so many for each core, and more while cores are idle.

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

    def ended(self, job: JobId) -> None:
        """A job has ended."""
        self._began.pop(job, None)
        self._used.pop(job, None)

    def _count(self) -> None:
        least, running = max(round(self._per_core * self._cores), 1), len(self._began)
        if running < least:
            self.most = least
        elif len(self._used) == running:  # else those that started last may fill all that is idle
            fit = int(_BUSY * self._cores / max(fmean(self._used.values()), _LEAST_CORES))
            self.most = max(least, min(fit, 2 * running))


class MemoryOfScripts:
    """The memory that jobs of a script were seen to take."""

    def __init__(self) -> None:
        self._peaks: dict[str, deque[int]] = {}
        self._needs: dict[str, int] = {}

    def need(self, script: str) -> int | None:
        """Bytes that the next job of a script is expected to take; None: none was seen.

        That is the most of nine tenths of the last jobs, with a margin that grows with their
        spread.
        """
        return self._needs.get(script)

    def learn(self, script: str, peak: int) -> bool:
        """A job of a script took this many bytes at most. Returns whether more or less is expected
        from now on.
        """
        peaks = self._peaks.setdefault(script, deque(maxlen=_PEAKS_KEPT))
        peaks.append(peak)
        usual = sorted(peaks)[-1 - len(peaks) // 10]
        need = round(usual * (1 + _MARGIN)) + round(pstdev(min(bytes_, usual) for bytes_ in peaks))
        before = self._needs.get(script)
        if before is not None and abs(need - before) < _NEWS * before:
            return False
        self._needs[script] = need
        return True
