"""How many jobs run at once where nobody says so."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from statistics import fmean

from headgate.model.identifiers import JobId
from headgate.policies import NoPolicy

_PER_CORE = 4
_MOST_PER_CORE = 16
"""Of jobs that use next to nothing: starts and ends of more take the cores that they leave."""
_BUSY = 0.9
"""With more than this part of the cores in use, another job only slows the others."""
_SEEN_SECONDS = 3.0
"""A job's use of cores tells nothing before it has run for this long."""
_LEAST_CORES = 1e-3
_SCRIPTS_KEPT = 1000
"""Of so many scripts it is kept what their last job used."""
_LONG_SECONDS, _LONG = 60.0, 2.0
"""A job that has run for longer than this, and for so many times what jobs of its script took, may
be far longer than they are.
"""
_NEW_PART = 0.3
"""How much a new reading of what other programs use counts beside those before."""


def per_core(policy: str) -> int:
    """How many jobs may run for each core under a policy, whatever they use. Policy `none`, the
    baseline, has more.
    """
    return _MOST_PER_CORE if policy == NoPolicy.name else _PER_CORE


class CoresInUse:
    """How many jobs may run at once: so many for each core, and more while cores are idle, up to 16
    for each. Cores that other programs use are not idle. A job that is not seen yet uses what
    another of its script does, or a core.

    Args:
        per_core: Jobs for each core that may run whatever they use.

    Attributes:
        most: How many may run now.
        idle_for: How many more would fill the idle cores, judging by those that run.
    """

    def __init__(self, per_core: int) -> None:
        self.most = self._per_core = per_core
        self.idle_for = 0
        self._cores = 1.0
        self._began: dict[JobId, tuple[float, str]] = {}
        self._used: dict[JobId, float] = {}
        self._usual: dict[str, float] = {}
        self._by_others: dict[str, float] = {}

    def have(self, cores: float) -> None:
        """Set the cores of all nodes together."""
        self._cores = cores
        self._count()

    def started(self, now: float, job: JobId, script: str) -> None:
        """A job has started."""
        self._began[job] = now, script
        self._count()

    def use(self, now: float, job: JobId, cores: float) -> None:
        """A running job uses this many cores."""
        if job in self._began and now - self._began[job][0] >= _SEEN_SECONDS:
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

    def left(self, now: float, job: JobId, cpu_seconds: float | None = None) -> None:
        """A job runs no more.

        Args:
            now: Time (s).
            job: Which.
            cpu_seconds: CPU time that it took since it started; None: not known.
        """
        began, script = self._began.pop(job, (now, ""))
        used = self._used.pop(job, None)
        if used is None and cpu_seconds is not None and now > began:
            used = cpu_seconds / (now - began)
        if used is not None and script:
            self._usual.pop(script, None)
            self._usual[script] = used
            if len(self._usual) > _SCRIPTS_KEPT:
                del self._usual[next(iter(self._usual))]
        self._count()

    def _count(self) -> None:
        least, running = max(round(self._per_core * self._cores), 1), len(self._began)
        now_used = {script: self._used[job] for job, script in self._scripts() if job in self._used}
        uses, known = list[float](), 0
        for job, script in self._scripts():
            use = self._used.get(job, self._usual.get(script))
            known += use is not None
            uses.append(now_used.get(script, 1.0) if use is None else use)
        idle = _BUSY * self._cores - sum(self._by_others.values())
        mean = max(fmean(uses), _LEAST_CORES) if uses else 1.0
        # those that came last may fill all that is idle
        fit = min(int(idle / mean), 2 * known, round(_MOST_PER_CORE * self._cores))
        self.idle_for = max(fit - running, 0)
        self.most = least if running < least else max(least, fit)

    def _scripts(self) -> Iterator[tuple[JobId, str]]:
        """The running jobs, and the script of each."""
        return ((job, script) for job, (_, script) in self._began.items())


class JobsOfScript:
    """How many jobs of one script of a run may run at once while no core is idle: one for each
    core. They are about equally long, so that more would slow each other and end none sooner.
    Another runs beside each that has run far longer than those that ended.
    """

    def __init__(self) -> None:
        self._began: dict[JobId, float] = {}
        self._ended, self._seconds = 0, 0.0

    def started(self, now: float, job: JobId) -> None:
        """A job has started."""
        self._began[job] = now

    def left(self, now: float, job: JobId, done: bool) -> None:
        """A job runs no more; if it is done, what it took tells about the others."""
        began = self._began.pop(job, None)
        if began is not None and done:
            self._ended += 1
            self._seconds += now - began

    def most(self, now: float, cores: float) -> int:
        """How many may run now (s) on these cores."""
        if not self._ended:
            return one_per_core(cores)
        seconds = max(_LONG_SECONDS, _LONG * self._seconds / self._ended)
        long = takewhile(lambda began: now - began >= seconds, self._began.values())
        return one_per_core(cores) + sum(1 for _ in long)


def one_per_core(cores: float) -> int:
    """So many jobs; at least one."""
    return max(round(cores), 1)
