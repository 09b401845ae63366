"""What a job lost by having fewer threads than it would have had alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headgate.analysis.jobs import RecordedJob
from headgate.analysis.losing import ITSELF, OTHERS, Loss, within
from headgate.analysis.usage import Array, ratio

_AWAY = 0.05
_SEEN_SECONDS, _SEEN_STEPS = 3.0, 5.0
"""Of one number of threads, for its speed to be known."""
_COMPARED_ERROR = 0.25


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
            share = ratio(cores, taken)
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
    most = min(cores, job.allowed_cores(job.tasks[0], cores))
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
