"""What neighbours cost a job beyond the time that its threads waited: longer steps.

Waiting for cores does not tell all. A neighbour that evicts cache lines, takes memory bandwidth or runs on the SMT
sibling of a core makes each step dearer: it takes more CPU time. Threads that meet at a barrier all wait for the one
that waits for a core. And threads that slow each other lose less by waiting than the core time that they missed. So
steps with and without the neighbour are compared: over windows of the run, the logarithm of the seconds that a step
took, as neighbours come and go (`headgate.analysis.switching`). The same of its CPU time tells whether steps became
dearer. CPU time is read once a second only. A job of one thread that always computes tells it more exactly: when it
did not wait, it ran. Where the machine counts cycles and instructions, cycles over instructions are compared instead: a
neighbour changes how many cycles an instruction takes, and no phase of the job changes that as much as it changes the
CPU time of a step (CPI², EuroSys 2013).

A neighbour that came once may have come just as the job changed by itself. If the job waited for cores meanwhile, it
lost something to that neighbour, and the comparison tells how much, up to what threads can lose that all wait for the
one without a core. If it did not wait, the neighbour may have cost it nothing, and the band begins at 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headgate.analysis.jobs import RecordedJob, running
from headgate.analysis.losing import (
    COUNTED_ERROR,
    ITSELF,
    LEAST_SECONDS,
    Evidence,
    Loss,
    Resource,
    TimeEstimate,
)
from headgate.analysis.switching import SwitchEffect, effects
from headgate.analysis.usage import Array, Signal, ratio
from headgate.telemetry.columns import Column

_WINDOW_SECONDS = 1.0
"""CPU time is read once a second: shorter windows are mostly rounding."""
_MOST_WINDOWS = 400
_SETTLE_SECONDS = 2.0
"""Its first steps fill caches and allocate."""
_VARIES = 0.2
"""Cores by which a neighbour has to vary to be compared."""
_LEAST_WINDOWS = 3
_MOST_COMPARED = 6
"""Neighbours: more than these cannot be told apart within one run."""
_ONE_THREAD = 1.1
"""Threads that ran or waited, up to which they are one that was always there."""
_STAYED = 2
"""Switches of a neighbour that came and went once: more than chance, less than proof."""
_ERROR = 0.1
"""Relative error of what is compared, besides that by chance: a neighbour does not use its cores evenly."""
_LONGEST = 20.0
"""As a logarithm: steps that are longer than so many times stand."""
_CLEARLY = 0.1
"""Part of a loss: less of it is due to memory only by rounding."""


class Slower(NamedTuple):
    """What a neighbour made of the steps of a job.

    Args:
        steps: Of the logarithm of the seconds that a step takes.
        dearer: The same of CPU seconds a step, or of cycles an instruction where these are counted.
        least: Cores that it used even in the window in which it used least; what these cost cannot be compared.
        usual: Cores that it used beyond that while it was there.
    """

    steps: SwitchEffect
    dearer: SwitchEffect | None
    least: float
    usual: float

    @property
    def is_dearer(self) -> bool:
        """Whether steps took longer, and more of the CPU, beyond what changes anyway."""
        return self.steps.low > 0.0 and self.dearer is not None and self.dearer.low > 0.0


def slower(job: RecordedJob, neighbours: Mapping[str, Signal], own: Signal, one_thread: bool) -> dict[str, Slower]:
    """What each neighbour made of a step; those that cannot be compared are left out.

    Args:
        neighbours: Cores that each used on the job's node.
        own: The part of its time that it lost to nobody but neighbours.
        one_thread: Whether it is one thread that always computes.
    """
    windows = windows_of(job)
    if len(windows) <= _LEAST_WINDOWS:
        return {}
    steps, taken = steps_between(job, windows), np.diff(own.cumulative(windows))
    used = {name: np.diff(signal.cumulative(windows)) / np.diff(windows) for name, signal in neighbours.items()}
    kept = (steps > 0) & (taken > 0)
    varying = [name for name, cores in used.items() if kept.any() and np.ptp(cores[kept]) >= _VARIES]
    told = sorted(varying, key=lambda name: -float(used[name].sum()))[:_MOST_COMPARED]
    if not told or np.count_nonzero(kept) <= _LEAST_WINDOWS:
        return {}
    least = [float(np.min(used[name][kept])) for name in told]
    cores = np.array([used[name][kept] for name in told]) - np.array(least)[:, None]
    longer = effects(np.log(taken[kept] / steps[kept]), cores)
    work, spent = _work(job, windows, steps, taken, one_thread)
    counted = (work[kept] > 0.0) & (spent[kept] > 0.0)
    dearer: Sequence[SwitchEffect | None] = [None] * len(told)
    if np.count_nonzero(counted) > _LEAST_WINDOWS:
        dearer = effects(np.log(spent[kept][counted] / work[kept][counted]), cores[:, counted])
    usual = [float(np.mean(used[used >= np.max(used) / 2.0])) for used in cores]
    compared = zip(told, longer, dearer, least, usual, strict=True)
    return {name: Slower(steps, cpu, away, there) for name, steps, cpu, away, there in compared if steps is not None}


class Compared(NamedTuple):
    """What the steps tell of one neighbour.

    Args:
        parts: Lost to it, of each bucket.
        seconds: Of the job's steps that were lost to it.
        sure: Whether it was lost to nothing else: else it is lost only as far as it was counted.
        dearer: Whether steps took more CPU time.
    """

    parts: Array
    seconds: TimeEstimate
    sure: bool
    dearer: bool

    def known_worse(self, counted: float) -> bool:
        """Whether so many seconds that were counted are known better than these, and agree with them."""
        low, high = self.seconds.low, self.seconds.high
        return self.sure and low <= counted <= high and high - low > 2.0 * COUNTED_ERROR * counted > 0.0


@dataclass(frozen=True, slots=True)
class SlowerSteps:
    """By how much neighbours made the steps of a job longer beyond what was counted.

    Args:
        parts: Of each bucket, by neighbour, beyond what was counted; below 0 where too much was.
        compared: What the steps tell, by neighbour.
        one_thread: Whether it is one thread that always computes: then it is known what it waited for a core.
    """

    parts: Mapping[str, Array]
    compared: Mapping[str, Compared]
    one_thread: bool = False

    def losses(self, counted: Sequence[Loss], inside: Array, elapsed: float) -> list[Loss]:
        """All that it lost to neighbours. If a neighbour can be compared, that corrects what was counted: the job's
        steps with and without the neighbour tell more."""
        losses = [loss for loss in counted if loss.to not in self.compared]
        for to, told in self.compared.items():
            known = next((loss.lost for loss in counted if loss.to == to), TimeEstimate(0.0, 0.0, 0.0))
            whole = max(known.seconds + float(np.sum(self.parts[to] * inside)), 0.0)  # but for rounding
            before = max(whole - float(np.sum(told.parts * inside)), 0.0)  # of its start, nothing is compared
            low, high = before + told.seconds.low, before + told.seconds.high
            if not told.sure:
                low, high = known.low, max(high, known.high)
            low, high = min(low, whole), min(max(high, whole), elapsed)
            memory = self._memory(whole, known, told)
            evidence: Evidence = "compared" if told.sure or not known.seconds or self.parts[to].any() else "counted"
            through: Mapping[Resource, float] = {"memory": memory, "cores": whole - memory}
            for resource, seconds in through.items():
                share = seconds / whole if whole > 0.0 else float(resource == "memory")
                lost = TimeEstimate(seconds, low * share, high * share)
                losses.append(Loss(to, resource, lost, evidence, told.dearer and low <= 0.0 < lost.high))
        return losses

    def _memory(self, whole: float, counted: TimeEstimate, told: Compared) -> float:
        """The part that is not due to waiting for cores. Threads may spin while another one waits for a core, so their
        CPU time tells nothing of memory as far as that explains what was lost."""
        if not told.dearer and not self.one_thread:
            return 0.0
        memory = max(whole - (counted.seconds if self.one_thread else counted.high), 0.0)
        return memory if memory > _CLEARLY * whole else 0.0


def slower_steps(
    job: RecordedJob,
    beside: Mapping[str, Array],
    own: Array,
    edges: Array,
    counted: Mapping[str, Array],
    most: Mapping[str, Array],
    stepping: Array,
) -> SlowerSteps:
    """What a job lost to neighbours beyond what was counted. Below 0 if too much was counted.

    Args:
        beside: Cores that each neighbour used in each bucket.
        own: The part of each bucket that it lost to nobody, as far as that was counted.
        edges: Of the buckets.
        counted: The part of each bucket that it lost to each neighbour by waiting for cores.
        most: The same if all of its threads stood whenever one waited.
        stepping: Seconds of each bucket that belong to its steps.
    """
    if len(job.nodes) > 1:
        return SlowerSteps({}, {})  # which node's neighbours made a step longer cannot be told
    signals = {name: _signal(cores, edges) for name, cores in beside.items() if name != ITSELF}
    waits = {name: counted.get(name, np.zeros_like(own)) for name in signals}
    whole = np.minimum(own + sum(waits.values(), np.zeros_like(own)), 1.0)
    one_thread = _is_one_thread(job, edges)
    told = slower(job, signals, _signal(whole, edges), one_thread)
    waited = {name: float(np.sum(waits[name] * stepping)) for name in told}
    # What a neighbour changed surely is lost to it only if steps took more of the CPU, where it never waited for one.
    told = {
        name: each
        for name, each in told.items()
        if waited[name] > LEAST_SECONDS or each.is_dearer or not each.steps.sure
    }
    sizes = {
        name: [_longer(size, beside[name], each) for size in _size(each, waited[name] > LEAST_SECONDS)]
        for name, each in told.items()
    }
    compared = {}
    for name, each in told.items():
        rest = sum((size[0] for other, size in sizes.items() if other != name), np.zeros_like(own))
        point, low, high = (whole * (1.0 - np.exp(-size - rest)) * ratio(size, size + rest) for size in sizes[name])
        if not each.steps.sure:
            low = waits[name]
            if waited[name] > LEAST_SECONDS and not one_thread:
                point = np.clip(point, 0.0, np.maximum(most.get(name, low), low))
            elif waited[name] > LEAST_SECONDS or each.steps.switches < _STAYED or not each.is_dearer:
                point = low
        seconds = TimeEstimate(*(float(np.sum(part * stepping)) for part in (point, low, high)))
        found = Compared(point, _widened(seconds), each.steps.sure, each.is_dearer)
        if not found.known_worse(waited[name]):
            compared[name] = found
    return SlowerSteps({name: found.parts - waits[name] for name, found in compared.items()}, compared, one_thread)


def _size(each: Slower, waited: bool) -> tuple[float, float, float]:
    """The effect of a core of a neighbour, with its band. If the job never waited for a core, only what its steps took
    more of CPU time was this neighbour's doing."""
    if waited or each.dearer is None or each.dearer.each >= each.steps.each:
        return each.steps.each, each.steps.low, each.steps.high
    return each.dearer.each, min(each.dearer.low, each.steps.low), max(each.dearer.high, each.steps.high)


def _longer(size: float, cores: Array, each: Slower) -> Array:
    """By how much steps are longer in each bucket, as a logarithm. A neighbour that used less of the cores than it does
    while it is there, was there for a part of the bucket."""
    used = np.maximum(np.nan_to_num(cores) - each.least, 0.0)
    whole, part = min(max(size, 0.0) * each.usual, _LONGEST), np.minimum(used / each.usual, 1.0)
    longer: Array = -np.log(1.0 - part * (1.0 - math.exp(-whole))) + max(size, 0.0) * np.maximum(used - each.usual, 0.0)
    return longer


def _widened(told: TimeEstimate) -> TimeEstimate:
    error = _ERROR * told.seconds
    down, up = (math.hypot(max(side, 0.0), error) for side in (told.seconds - told.low, told.high - told.seconds))
    return TimeEstimate(told.seconds, max(told.seconds - down, 0.0), told.seconds + up)


def _signal(values: Array, edges: Array) -> Signal:
    kept = np.isfinite(values)
    return Signal(edges[:-1][kept], edges[1:][kept], values[kept])


def windows_of(job: RecordedJob) -> Array:
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


def steps_between(job: RecordedJob, times: Array) -> Array:
    """Steps that it made from each of these times to the next."""
    known = np.isfinite(job.progress.step)
    at = np.interp(times, job.progress.t[known], np.maximum.accumulate(job.progress.step[known]))
    return np.asarray(np.diff(at))


def _is_one_thread(job: RecordedJob, edges: Array) -> bool:
    """Whether it is one thread that always runs or waits for a core."""
    signals = (job.signal(column) for column in ("cpu_cores", "cpu_waiting", "cpu_ready"))
    ran, waited, ready = (signal.within(edges[0], edges[-1]).mean or 0.0 for signal in signals)
    return ran + waited <= _ONE_THREAD and ready >= 1.0 / _ONE_THREAD


def _work(job: RecordedJob, windows: Array, steps: Array, own: Array, one_thread: bool) -> tuple[Array, Array]:
    """What it did in each window, and what that took of the CPU: cycles of its instructions, or CPU seconds of its
    steps where the machine does not count these.

    Args:
        own: Seconds of each window that it lost to nobody but neighbours.
    """
    columns: tuple[Column, ...] = ("cpu_instructions", "cpu_cycles", "cpu_cores", "cpu_waiting")
    instructions, cycles, seconds, waited = (np.diff(job.signal(column).cumulative(windows)) for column in columns)
    if np.all(instructions[steps > 0] > 0.0) and np.all(cycles[steps > 0] > 0.0):
        return instructions, cycles
    return steps, np.maximum(own - waited, 0.0) if one_thread else seconds
