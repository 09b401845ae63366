"""What neighbours cost a job beyond the time that its threads waited: dearer steps, and fewer threads.

A neighbour that evicts cache lines, takes memory bandwidth or runs on the SMT sibling of a core makes each step itself
dearer: it takes more CPU time. Over windows of the run with s steps and x_j cores used by neighbour j, the CPU time is
fitted as

    c = s (c0 + sum_j b_j x_j),    c0, b_j >= 0

by least squares, with a bootstrap over the windows for the band. A neighbour that was always there, or never, cannot be
compared. CPI² (EuroSys 2013) takes the same view with cycles per instruction, which virtual machines do not count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headgate.analysis.jobs import RecordedJob, running
from headgate.analysis.losing import ITSELF, OTHERS, Loss, within
from headgate.analysis.usage import Array, Signal

_WINDOW_SECONDS = 2.0
"""CPU time is read once a second: shorter windows are mostly rounding."""
_MOST_WINDOWS = 400
_SETTLE_SECONDS = 2.0
"""Its first steps fill caches and allocate."""
_THERE, _AWAY = 0.2, 0.05
"""Cores that a neighbour used in a window, from which it counts as there, and below which as away."""
_LEAST_WINDOWS = 3
_MOST_COMPARED = 6
"""Neighbours: more than these cannot be told apart within one run."""
_DRAWS = 200
_SEEN_SECONDS, _SEEN_STEPS = 3.0, 5.0
"""Of one number of threads, for its speed to be known."""
_COMPARED_ERROR = 0.25
_LOW, _HIGH = 5.0, 95.0


@dataclass(frozen=True, slots=True)
class Dearer:
    """By how much a neighbour made a step dearer: CPU seconds a step for each core that it used, over those of a step
    without any."""

    ratio: float
    low: float
    high: float


def dearer(job: RecordedJob, neighbours: Mapping[str, Signal]) -> dict[str, Dearer]:
    """What each neighbour made a step dearer by; those that cannot be compared, or that made no difference beyond the
    noise, are left out.

    Args:
        neighbours: Cores that each used on the job's node.
    """
    windows = _windows(job)
    if len(windows) <= _LEAST_WINDOWS:
        return {}
    steps = np.diff(np.interp(windows, job.progress.t, np.maximum.accumulate(np.nan_to_num(job.progress.step))))
    seconds = np.diff(windows)
    spent = np.diff(job.signal("cpu_cores").cumulative(windows))
    used = {name: np.diff(signal.cumulative(windows)) / seconds for name, signal in neighbours.items()}
    varying = sorted((name for name in used if _varies(used[name])), key=lambda name: -float(used[name].sum()))
    told = {name: used[name] for name in varying[:_MOST_COMPARED]}
    kept = steps > 0
    if not told or np.count_nonzero(kept) <= _LEAST_WINDOWS + len(told):
        return {}
    weight = 1.0 / np.sqrt(steps[kept])
    columns = np.column_stack([steps, *(steps * cores for cores in told.values())])[kept] * weight[:, None]
    fits = _fits(columns, spent[kept] * weight)
    ratios = fits[:, 1:] / np.maximum(fits[:, :1], 1e-12)
    lows, highs = np.percentile(ratios[1:], [_LOW, _HIGH], axis=0)
    found = zip(told, ratios[0], lows, highs, strict=True)
    return {name: Dearer(float(ratio), float(low), float(high)) for name, ratio, low, high in found if low > 0.0}


def _windows(job: RecordedJob) -> Array:
    """Edges of windows, each from one report to another, at least `_WINDOW_SECONDS` apart, within one attempt."""
    ran, progress = running(job.phases), job.progress
    if not ran:
        return np.empty(0)
    start, end = ran[-1]
    times = progress.t[np.isfinite(progress.step) & (progress.t >= start) & (progress.t <= end)]
    if not len(times):
        return np.empty(0)
    least = max(_WINDOW_SECONDS, (end - start) / _MOST_WINDOWS)
    edges: list[float] = []
    for t in times[times >= times[0] + _SETTLE_SECONDS]:
        if not edges or t - edges[-1] >= least:
            edges.append(float(t))
    return np.array(edges)


def _varies(cores: Array) -> bool:
    """Whether a neighbour was there in some windows and away in others."""
    there, away = np.count_nonzero(cores >= _THERE), np.count_nonzero(cores < _AWAY)
    return bool(there >= _LEAST_WINDOWS and away >= _LEAST_WINDOWS)


def _fits(columns: Array, spent: Array) -> Array:
    """Coefficients by least squares: of all windows, then of each draw of as many with replacement."""
    from scipy.optimize import nnls

    draw = np.random.default_rng(0)
    rows = [np.arange(len(spent)), *(draw.integers(0, len(spent), len(spent)) for _ in range(_DRAWS))]
    return np.array([nnls(columns[chosen], spent[chosen])[0] for chosen in rows])


@dataclass(frozen=True, slots=True, eq=False)
class Fewer:
    """What a job lost by having fewer threads than it would have had alone.

    Args:
        part: Of its own time in each bucket.
        error: Relative error of it, to one side of a band of 90 %.
    """

    part: Array
    error: float

    def losses(self, beside: Mapping[str, Array], own: Array, elapsed: float) -> list[Loss]:
        """To whom: the other jobs that ran meanwhile, by the cores that they used.

        Args:
            beside: Cores that each neighbour used in each bucket.
            own: Seconds of each bucket that were its own.
        """
        jobs = _jobs(beside)
        taken = sum(jobs.values(), np.zeros_like(self.part))
        found = []
        for name, cores in jobs.items():
            share = np.divide(cores, taken, out=np.zeros_like(cores), where=taken > 0.0)
            seconds = float(np.sum(self.part * own * share))
            found.append(Loss(name, "cores", within(seconds, self.error, elapsed), "compared"))
        return found


def fewer_threads(job: RecordedJob, beside: Mapping[str, Array], own: Array, edges: Array, cores: float) -> Fewer:
    """What a job lost because it was given fewer compute threads while other jobs ran.

    Its speed on k threads is taken for a power of k (Berg et al. 2020, heSRPT). The power comes from what it did in its
    own time with one number of threads and another. Where it had only one, nothing tells, and nothing is blamed: to a
    program of one thread more bring nothing.

    Args:
        beside: Cores that each neighbour used in each bucket.
        own: Seconds of each bucket that it lost to nobody.
        edges: Of the buckets.
        cores: Of its node.
    """
    threads = _threads(job, edges)
    there = sum(
        (np.nan_to_num(used) for name, used in beside.items() if name not in (ITSELF, OTHERS)), np.zeros_like(own)
    )
    alone = _threads_alone(job, cores)
    short = np.isfinite(threads) & (threads < alone) & (there >= _AWAY)
    if not short.any():
        return Fewer(np.zeros_like(own), 0.0)
    if (power := _power(job, threads, own, edges)) is None:
        return Fewer(np.zeros_like(own), 0.0)
    part = np.where(short, 1.0 - np.power(np.where(short, threads, alone) / alone, power), 0.0)
    return Fewer(part, _COMPARED_ERROR)


def _jobs(beside: Mapping[str, Array]) -> dict[str, Array]:
    """Of the neighbours the other jobs: these alone are why a job is given fewer threads."""
    return {name: np.nan_to_num(cores) for name, cores in beside.items() if name not in (ITSELF, OTHERS)}


def _threads_alone(job: RecordedJob, cores: float) -> float:
    limit = (job.spec.get("limits") or {}).get("cores")
    most = min(cores, float(limit)) if isinstance(limit, int | float) else cores
    return max(float(np.ceil(most - 1e-9)), 1.0) if np.isfinite(most) else 1.0


def _threads(job: RecordedJob, edges: Array) -> Array:
    """Compute threads of its first task in each bucket; NaN where it was told none. A script that never connected keeps
    those that it began with."""
    told = job.tasks[0].threads
    if not len(told):
        return np.full(len(edges) - 1, np.nan)
    threads = told.buckets(edges).mean
    if job.division is None:
        threads = np.where(np.isfinite(threads), told.value[0], np.nan)
    return np.round(threads)


def _power(job: RecordedJob, threads: Array, own: Array, edges: Array) -> float | None:
    """The power of the number of threads that its speed follows; None where it was not seen with two numbers."""
    known = np.isfinite(job.progress.step)
    if known.any():
        at = np.interp(edges, job.progress.t[known], np.maximum.accumulate(job.progress.step[known]))
        steps = np.diff(at)
        speeds = {}
        for count in np.unique(threads[np.isfinite(threads)]):
            seconds, done = float(np.sum(own[threads == count])), float(np.sum(steps[threads == count]))
            if seconds >= _SEEN_SECONDS and done >= _SEEN_STEPS:
                speeds[float(count)] = done / seconds
        few, many = min(speeds, default=0.0), max(speeds, default=0.0)
        if few < many:
            power = np.log(speeds[many] / speeds[few]) / np.log(many / few)
            return float(np.clip(power, 0.0, 1.0))
    return None
