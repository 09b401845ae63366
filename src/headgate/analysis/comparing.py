"""What neighbours cost a job beyond the time that its threads waited: longer steps, and fewer threads.

Waiting for cores does not tell all. A neighbour that evicts cache lines, takes memory bandwidth or runs on the SMT
sibling of a core makes each step dearer: it takes more CPU time. Threads that meet at a barrier all wait for the one
that waits for a core. And threads that slow each other lose less by waiting than the core time that they missed. So
steps with and without the neighbour are compared. Over windows of the run with s steps and x_j cores used by neighbour
j, the job's own time c, which is what was not counted as lost, is fitted as

    c = s (c0 + sum_j b_j x_j)

by least squares, with a bootstrap over the windows for the band. The same fit of its CPU time tells which part of that
are dearer steps. CPU time is read once a second only. A job of one thread that always computes tells it by c, more
exactly: when it did not wait, it ran. Where the machine counts cycles and instructions, the fit is of cycles over
instructions instead: a neighbour changes how many cycles an instruction takes, and no phase of the job changes that as
much as it changes the CPU time of a step (CPI², EuroSys 2013). A neighbour that was always there, or never, cannot be
compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headgate.analysis.jobs import RecordedJob, running
from headgate.analysis.losing import ITSELF, LEAST_SECONDS, OTHERS, Loss, Resource, TimeEstimate, within
from headgate.analysis.usage import Array, Signal, ratio
from headgate.telemetry.columns import Column

_WINDOW_SECONDS = 1.0
"""CPU time is read once a second: shorter windows are mostly rounding."""
_MOST_WINDOWS = 400
_SETTLE_SECONDS = 2.0
"""Its first steps fill caches and allocate."""
_THERE, _AWAY = 0.2, 0.05
"""Cores that a neighbour used in a window, from which it counts as there, and below which as away."""
_MOST_AWAY = 0.15
"""Programs outside Headgate are never all away: the least that a neighbour used in a window may be as much."""
_LEAST_WINDOWS = 3
_MOST_COMPARED = 6
"""Neighbours: more than these cannot be told apart within one run."""
_DRAWS = 200
_ONE_THREAD = 1.1
"""Threads that ran or waited, up to which they are one that was always there."""
_SEEN_SECONDS, _SEEN_STEPS = 3.0, 5.0
"""Of one number of threads, for its speed to be known."""
_COMPARED_ERROR = 0.25
_LOW, _HIGH = 5.0, 95.0


class Slower(NamedTuple):
    """By how much a neighbour made a step longer than what was counted explains: own seconds a step for each core that
    it used, over those of a step without any. Below 0 where too much was counted.

    Args:
        least: Cores that it used even in the window in which it used least; what these cost cannot be compared.
        dearer: The same of CPU seconds a step, or of cycles an instruction where these are counted; 0 where that is not
            beyond the noise.
    """

    ratio: float
    low: float
    high: float
    dearer: float
    least: float


def slower(job: RecordedJob, neighbours: Mapping[str, Signal], own: Signal) -> dict[str, Slower]:
    """What each neighbour made a step longer by; those that cannot be compared are left out.

    Args:
        neighbours: Cores that each used on the job's node.
        own: The part of its time that it lost to nobody, as far as that was counted.
    """
    windows = _windows(job)
    if len(windows) <= _LEAST_WINDOWS:
        return {}
    steps = np.diff(np.interp(windows, job.progress.t, np.maximum.accumulate(np.nan_to_num(job.progress.step))))
    seconds = np.diff(windows)
    used = {name: np.diff(signal.cumulative(windows)) / seconds for name, signal in neighbours.items()}
    varying = sorted((name for name in used if _varies(used[name])), key=lambda name: -float(used[name].sum()))
    told = {name: used[name] for name in varying[:_MOST_COMPARED]}
    kept = steps > 0
    if not told or np.count_nonzero(kept) <= _LEAST_WINDOWS + len(told):
        return {}
    least = [float(np.min(cores)) for cores in told.values()]
    cores = np.array(list(told.values()))[:, kept] - np.array(least)[:, None]
    seconds = np.diff(own.cumulative(windows))
    work, taken = _work(job, windows, steps, seconds)
    ours = _ratios(steps[kept], cores, seconds[kept])
    if ours is None:
        return {}
    spent = _ratios(work[kept], cores, taken[kept])
    if spent is None:
        dearer = np.zeros(len(told))
    else:
        dearer = np.where(np.percentile(spent, _LOW, axis=0) > 0.0, spent[0], 0.0)
    lows, highs = np.percentile(ours[1:], [_LOW, _HIGH], axis=0)
    found = zip(told, ours[0], lows, highs, dearer, least, strict=True)
    return {name: Slower(*map(float, numbers)) for name, *numbers in found}


class SlowerSteps(NamedTuple):
    """By how much neighbours made the steps of a job longer beyond what was counted.

    Args:
        parts: Of each bucket, by neighbour.
    """

    parts: Mapping[str, Array]
    found: Mapping[str, Slower]

    def losses(self, counted: Sequence[Loss], inside: Array, elapsed: float) -> list[Loss]:
        """All that it lost to neighbours. If a neighbour can be compared, that corrects what was counted: the job's
        steps with and without the neighbour tell more."""
        losses = [loss for loss in counted if loss.to not in self.parts]
        for to, part in self.parts.items():
            told, beyond = self.found[to], float(np.sum(part * inside))
            whole = max(sum(loss.lost.seconds for loss in counted if loss.to == to) + beyond, 0.0)  # but for rounding
            each = beyond / told.ratio if told.ratio else 0.0
            low, high = (min(max(whole + each * (end - told.ratio), 0.0), elapsed) for end in (told.low, told.high))
            memory = min(each * told.dearer, whole)
            through: Mapping[Resource, float] = {"memory": memory, "cores": whole - memory}
            for resource, seconds in through.items():
                share = seconds / whole if whole > 0.0 else 0.0
                losses.append(Loss(to, resource, TimeEstimate(seconds, low * share, high * share), "compared"))
        return losses


def slower_steps(
    job: RecordedJob, beside: Mapping[str, Array], own: Array, edges: Array, counted: Mapping[str, Array]
) -> SlowerSteps:
    """What a job lost to neighbours beyond what was counted. Below 0 if too much was counted.

    Args:
        beside: Cores that each neighbour used in each bucket.
        own: The part of each bucket that it lost to nobody, as far as that was counted.
        edges: Of the buckets.
        counted: The part of each bucket that it lost to each neighbour by waiting for cores.
    """
    if len(job.nodes) > 1:
        return SlowerSteps({}, {})  # which node's neighbours made a step longer cannot be told
    signals = {name: _signal(cores, edges) for name, cores in beside.items() if name != ITSELF}
    found = {}
    for name, told in slower(job, signals, _signal(own, edges)).items():
        waited = float(np.sum(counted.get(name, own[:0])))
        if waited > LEAST_SECONDS:
            found[name] = told
        elif told.dearer > 0.0 and told.low > 0.0:
            # It never waited for a core: only what its steps took more of CPU time was this neighbour's doing.
            found[name] = told._replace(ratio=min(told.ratio, told.dearer))
    longer = {
        name: np.maximum(np.nan_to_num(beside[name]) - told.least, 0.0) * told.ratio for name, told in found.items()
    }
    whole = 1.0 + sum((np.maximum(each, 0.0) for each in longer.values()), np.zeros_like(own))
    parts = {}
    for name, each in longer.items():
        back = own * each / np.maximum(1.0 + each, 1e-9)  # at the most what was counted in the same bucket
        parts[name] = np.where(
            each >= 0.0, own * each / whole, np.maximum(back, -counted.get(name, np.zeros_like(own)))
        )
    return SlowerSteps(parts, found)


def _signal(values: Array, edges: Array) -> Signal:
    kept = np.isfinite(values)
    return Signal(edges[:-1][kept], edges[1:][kept], values[kept])


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
    least = float(np.min(cores, initial=_MOST_AWAY))
    if least >= _MOST_AWAY:
        return False
    there, away = np.count_nonzero(cores >= least + _THERE), np.count_nonzero(cores < least + _AWAY)
    return bool(there >= _LEAST_WINDOWS and away >= _LEAST_WINDOWS)


def _work(job: RecordedJob, windows: Array, steps: Array, own: Array) -> tuple[Array, Array]:
    """What it did in each window, and what that took of the CPU: cycles of its instructions, or CPU seconds of its
    steps where the machine does not count these.

    Args:
        own: Seconds of each window in which it did not wait for a core.
    """
    columns: tuple[Column, ...] = ("cpu_instructions", "cpu_cycles", "cpu_cores")
    instructions, cycles, seconds = (np.diff(job.signal(column).cumulative(windows)) for column in columns)
    if np.all(instructions[steps > 0] > 0.0) and np.all(cycles[steps > 0] > 0.0):
        return instructions, cycles
    waited, ready = (job.signal(column).within(windows[0], windows[-1]) for column in ("cpu_waiting", "cpu_ready"))
    threads = float(np.sum(seconds)) / (windows[-1] - windows[0]) + (waited.mean or 0.0)
    always = threads <= _ONE_THREAD and (ready.mean or 0.0) >= 1.0 / _ONE_THREAD
    return steps, own if always else seconds


def _ratios(work: Array, cores: Array, spent: Array) -> Array | None:
    """By which part of itself each core of each neighbour raises what a unit of work takes: fitted to all windows, then
    to each draw of as many with replacement. None if what it takes without neighbours is not surely more than nothing:
    then all of it would be put down to them.

    Args:
        work: Done in each window, above 0.
        cores: That each neighbour used; a row for each.
        spent: On the work of each window.
    """
    weight = 1.0 / np.sqrt(work)
    columns, spent = (np.vstack([np.ones_like(work), cores]) * work * weight).T, spent * weight
    draw = np.random.default_rng(0)
    rows = [np.arange(len(spent)), *(draw.integers(0, len(spent), len(spent)) for _ in range(_DRAWS))]
    fits = np.array([np.linalg.lstsq(columns[chosen], spent[chosen], rcond=None)[0] for chosen in rows])
    if fits[0, 0] <= 0.0 or np.percentile(fits[1:, 0], _LOW) <= 0.0:
        return None
    return np.asarray(fits[:, 1:] / np.maximum(fits[:, :1], 1e-12))


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
