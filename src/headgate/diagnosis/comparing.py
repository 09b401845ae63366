"""What neighbours cost a job beyond the time that its threads waited: longer steps.

Waiting for cores does not tell all. A neighbour that evicts cache lines, takes memory bandwidth or
runs on the SMT sibling of a core makes each step dearer: it takes more CPU time. Threads that meet
at a barrier all wait for the one that waits for a core. And threads that slow each other lose less
by waiting than the core time that they missed. So steps with and without the neighbour are
compared: over windows of the run, the logarithm of the seconds that a step took, as neighbours come
and go (`headgate.diagnosis.switching`). The same of its CPU time tells whether steps became dearer.
CPU time is read once a second only. A job of one thread that always computes tells it more exactly:
when it did not wait, it ran. Where the machine counts cycles and instructions, cycles over
instructions are compared instead: a neighbour changes how many cycles an instruction takes, and no
phase of the job changes that as much as it changes the CPU time of a step (CPI², EuroSys 2013).

A neighbour that came once may have come just as the job changed by itself. If threads of the job
waited for cores meanwhile, it lost something to that neighbour, and the comparison tells how much,
up to what threads lose that all stand while one waits. What goes beyond that, or what the one
thread of a job lost beyond its waiting, may be the job's own course: it is lost perhaps, from 0 on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from headgate.diagnosis.attribution import (
    COUNTED_ERROR,
    ITSELF,
    LEAST_SECONDS,
    Evidence,
    LostTime,
    TimeEstimate,
)
from headgate.diagnosis.switching import SwitchEffect, effects, least_of, usual_of
from headgate.recorded.jobs import RecordedJob, running
from headgate.recorded.usage import Array, Signal, ratio
from headgate.sampling.columns import Column

_WINDOW_SECONDS, _JITTER = 1.0, 0.9
"""CPU time is read once a second: shorter windows are mostly rounding. Readings come a little early
or late.
"""
_MOST_WINDOWS = 400
_SETTLE_SECONDS, _SETTLE_STEPS = 0.5, 3
"""Its first steps fill caches and allocate."""
_OFTEN = 0.2
"""Part of a window: reports that are as close together tell the steps of windows that begin at any
time.
"""
_VARIES = 0.2
"""Cores by which a neighbour has to vary to be compared."""
_LEAST_WINDOWS = 3
_MOST_COMPARED = 6
"""Neighbours: more than these cannot be told apart within one run."""
_ONE_THREAD = 1.1
"""Threads that ran or waited, up to which they are one that was always there."""
_AWAY = 0.3
"""Part of the cores that a neighbour uses while it is there, up to which it is away."""
_TELLS = 0.2
"""Weight of what the steps tell beside what was counted, from which on it is looked at."""
_STAYED = 2
"""Switches of a neighbour that came and went once: more than chance, less than proof."""
_ERROR = 0.15
"""Relative error of what is compared, besides that by chance: a neighbour does not use its cores
evenly.
"""
_LONGEST = 20.0
"""As a logarithm: steps that are longer than so many times stand."""
_APART = 0.5
"""Part of what threads lose that meet, which those lose at the least that go on without each
other.
"""
_CLEARLY = 0.1
"""Part of a loss: less of it is due to memory only by rounding."""


class Slower(NamedTuple):
    """What a neighbour made of the steps of a job.

    Args:
        steps: Of the logarithm of the seconds that a step takes.
        dearer: The same of CPU seconds a step, or of cycles an instruction where these are counted.
        least: Cores that it used even while it was away; what these cost cannot be compared.
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


def slower(
    job: RecordedJob, neighbours: Mapping[str, Signal], own: Signal, one_thread: bool
) -> dict[str, Slower]:
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
    used = {
        name: np.diff(signal.cumulative(windows)) / np.diff(windows)
        for name, signal in neighbours.items()
    }
    kept = (steps > 0) & (taken > 0)
    varying = [
        name for name, cores in used.items() if kept.any() and np.ptp(cores[kept]) >= _VARIES
    ]
    most_used = sorted(varying, key=lambda name: -float(used[name].sum()))[:_MOST_COMPARED]
    if not most_used or np.count_nonzero(kept) <= _LEAST_WINDOWS:
        return {}
    least = [least_of(used[name][kept]) for name in most_used]
    cores = np.array([used[name][kept] for name in most_used])
    longer = effects(np.log(taken[kept] / steps[kept]), cores)
    work, spent = _work(job, windows, steps, taken, one_thread)
    counted = (work[kept] > 0.0) & (spent[kept] > 0.0)
    dearer: Sequence[SwitchEffect | None] = [None] * len(most_used)
    if np.count_nonzero(counted) > _LEAST_WINDOWS:
        dearer = effects(np.log(spent[kept][counted] / work[kept][counted]), cores[:, counted])
    usual = [usual_of(used) - away for used, away in zip(cores, least, strict=True)]
    compared = zip(most_used, longer, dearer, least, usual, strict=True)
    return {
        name: Slower(steps, cpu, away, is_present)
        for name, steps, cpu, away, is_present in compared
        if steps is not None
    }


class Compared(NamedTuple):
    """What the steps tell of one neighbour.

    Args:
        parts: Lost to it, of each bucket.
        seconds: Of the job's steps that were lost to it.
        sure: Whether it was lost to nothing else: else only that is which threads can lose by
            waiting for cores.
        dearer: Whether steps took more CPU time.
        by_waiting: Seconds of its steps that threads can lose at the most by waiting for cores.
    """

    parts: Array
    seconds: TimeEstimate
    sure: bool
    dearer: bool
    by_waiting: float

    def with_counted(self, waits: Array, counted: float, error: float) -> Compared | None:
        """The mean of these and of what was counted, each by how well it is known. None if what was
        counted is known so much better that it stands alone.

        Args:
            waits: What was counted, of each bucket.
            counted: Seconds of it.
            error: Relative, to one side of a band of 90 %.
        """
        seconds, low, high = self.seconds
        # that is more than waiting explains
        if counted <= LEAST_SECONDS or seconds > self.by_waiting:
            return self
        of_steps, of_counted = max(high - seconds, seconds - low), error * counted
        weight = of_counted**2 / (of_counted**2 + of_steps**2)
        if weight < _TELLS:
            return None
        mean, half = weight * seconds + (1.0 - weight) * counted, of_steps * math.sqrt(weight)
        estimate = TimeEstimate(mean, max(mean - half, 0.0), mean + half)
        return self._replace(parts=weight * self.parts + (1.0 - weight) * waits, seconds=estimate)


@dataclass(frozen=True, slots=True)
class SlowerSteps:
    """By how much neighbours made the steps of a job longer beyond what was counted.

    Args:
        parts: Of each bucket, by neighbour, beyond what was counted; below 0 where too much was.
        compared: What the steps tell, by neighbour.
        one_thread: Whether it is one thread that always computes: then it is known what it waited
            for a core.
    """

    parts: Mapping[str, Array]
    compared: Mapping[str, Compared]
    one_thread: bool = False

    def losses(self, counted: Sequence[LostTime], inside: Array, elapsed: float) -> list[LostTime]:
        """All that it lost to neighbours. If a neighbour can be compared, that corrects what was
        counted: the job's steps with and without the neighbour tell more.
        """
        losses = [loss for loss in counted if loss.to not in self.compared]
        for to, compared in self.compared.items():
            known = next(
                (loss.lost for loss in counted if loss.to == to), TimeEstimate(0.0, 0.0, 0.0)
            )
            # but for rounding
            whole = max(known.seconds + float(np.sum(self.parts[to] * inside)), 0.0)
            # of its start, nothing is compared
            before = max(whole - float(np.sum(compared.parts * inside)), 0.0)
            low, high = before + compared.seconds.low, before + compared.seconds.high
            low, high = min(low, whole), min(max(high, whole), elapsed)
            memory = self._memory(whole, before + compared.by_waiting, compared)
            if compared.sure:
                share = memory / whole if whole > 0.0 else 1.0
                of_memory = TimeEstimate(memory, low * share, high * share)
                of_cores = TimeEstimate(whole - memory, low * (1.0 - share), high * (1.0 - share))
            else:
                cores = whole - memory
                if self.one_thread:  # what it waited is known as well as it was counted
                    low, of_waiting = known.low, known.high
                else:
                    of_waiting = high
                of_cores = TimeEstimate(
                    cores, min(low, cores), min(max(of_waiting, cores), elapsed)
                )
                doubtful = self.one_thread or compared.by_waiting <= LEAST_SECONDS
                beyond = max(high - cores, memory) if doubtful else memory
                of_memory = TimeEstimate(memory, 0.0, beyond)
            corrected = compared.sure or not known.seconds or bool(self.parts[to].any())
            evidence: Evidence = "compared" if corrected else "counted"
            perhaps = compared.dearer and of_memory.low <= 0.0 < of_memory.high
            losses += [
                LostTime(to, "memory", of_memory, evidence, perhaps),
                LostTime(to, "cores", of_cores, evidence),
            ]
        return losses

    def _memory(self, whole: float, by_waiting: float, compared: Compared) -> float:
        """The part that is not due to waiting for cores. Threads may spin while another one waits
        for a core, so their CPU time tells nothing of memory as far as that explains what was
        lost.
        """
        if not compared.dearer and not self.one_thread:
            return 0.0
        memory = max(whole - by_waiting, 0.0)
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
    effects_of = slower(job, signals, _signal(whole, edges), one_thread)
    waited = {name: float(np.sum(waits[name] * stepping)) > LEAST_SECONDS for name in effects_of}
    # Where nothing was counted, only what it changed each time is surely its own doing.
    sure = {
        name: effect.steps.sure and (waited[name] or effect.steps.agrees)
        for name, effect in effects_of.items()
    }
    sizes = {
        name: [
            _longer(size, beside[name], effect)
            for size in _size(effect, sure[name], waited[name], one_thread)
        ]
        for name, effect in effects_of.items()
    }
    # What cannot be compared stays as it was counted: what others cost, and what a neighbour does
    # that never goes.
    stays = {
        name: _stays(waits[name], beside[name], effect, stepping)
        for name, effect in effects_of.items()
    }
    counted_only = sum(
        (waits[name] for name in waits.keys() - effects_of.keys()), np.zeros_like(own)
    )
    left = np.maximum(whole - counted_only - sum(stays.values(), np.zeros_like(own)), 0.0)
    compared = {}
    for name, effect in effects_of.items():
        rest = sum((size[0] for other, size in sizes.items() if other != name), np.zeros_like(own))
        errors = (1.0, 1.0 - COUNTED_ERROR, 1.0 + COUNTED_ERROR)
        parts = [
            error * stays[name] + left * (1.0 - np.exp(-size - rest)) * ratio(size, size + rest)
            for error, size in zip(errors, sizes[name], strict=True)
        ]
        by_waiting = np.maximum(most.get(name, waits[name]), waits[name])
        least = waits[name] if one_thread else _APART * waits[name]
        if not sure[name]:
            several = waited[name] and not one_thread
            parts = _unsure(parts, waits[name], least, by_waiting if several else None, effect)
        seconds = TimeEstimate(*(float(np.sum(part * stepping)) for part in parts))
        stands = float(np.sum(by_waiting * stepping))
        of_steps = Compared(parts[0], _widened(seconds), sure[name], effect.is_dearer, stands)
        counted_seconds = float(np.sum(waits[name] * stepping))
        error = _ERROR if one_thread else COUNTED_ERROR  # what one thread waited, it lost
        result = (
            of_steps.with_counted(waits[name], counted_seconds, error)
            if of_steps.sure
            else of_steps
        )
        if result is not None:
            compared[name] = result
    differences = {name: result.parts - waits[name] for name, result in compared.items()}
    return SlowerSteps(differences, compared, one_thread)


def _stays(waits: Array, cores: Array, effect: Slower, stepping: Array) -> Array:
    """What was counted of a neighbour in each bucket as far as it costs that even while it is
    away.
    """
    away = (stepping > 0.0) & (np.nan_to_num(cores) <= effect.least + _AWAY * effect.usual)
    usual = float(np.median(waits[away])) if away.any() else 0.0
    return np.minimum(waits, usual)


def _unsure(
    parts: Sequence[Array], waits: Array, least: Array, by_waiting: Array | None, effect: Slower
) -> list[Array]:
    """What a neighbour cost that came or went too seldom: its point, low and high.

    Args:
        parts: The same, as far as the steps tell.
        waits: What was counted.
        least: What it cost at the least, by that.
        by_waiting: The most that threads lose by waiting, if several waited: then they lost no
            more.
    """
    point, low, high = parts
    if by_waiting is not None:  # by the steps, or by what was counted if the job changed just then
        point, low, high = (np.clip(part, least, by_waiting) for part in parts)
        return [point, np.minimum(low, waits), np.maximum(high, waits)]
    changed = effect.steps.switches >= _STAYED and effect.is_dearer
    return [np.maximum(point, waits) if changed else waits, waits, np.maximum(high, waits)]


def _size(effect: Slower, sure: bool, waited: bool, one_thread: bool) -> tuple[float, float, float]:
    """The effect of a core of a neighbour, with its band. If the job never waited for a core, only
    what its steps took more of CPU time was this neighbour's doing, and if that may be nothing,
    nothing was.
    """
    steps, dearer = effect.steps, effect.dearer
    if dearer is None:
        return steps.each, steps.low, steps.high
    if waited:
        # What one thread waited is known: it cannot have lost much more where its steps took no
        # more of the CPU.
        doubtful = one_thread and not sure and not effect.is_dearer
        return steps.each, steps.low, min(steps.high, dearer.high) if doubtful else steps.high
    if not effect.is_dearer:
        return 0.0, 0.0, min(steps.high, dearer.high)
    if dearer.each >= steps.each:
        return steps.each, steps.low, steps.high
    return dearer.each, min(dearer.low, steps.low), max(dearer.high, steps.high)


def _longer(size: float, cores: Array, slower: Slower) -> Array:
    """By how much steps are longer in each bucket, as a logarithm. A neighbour that used less of
    the cores than it does while it is there, was there for a part of the bucket.
    """
    used = np.maximum(np.nan_to_num(cores) - slower.least, 0.0)
    whole, part = min(max(size, 0.0) * slower.usual, _LONGEST), np.minimum(used / slower.usual, 1.0)
    longer: Array = -np.log(1.0 - part * (1.0 - math.exp(-whole))) + max(size, 0.0) * np.maximum(
        used - slower.usual, 0.0
    )
    return longer


def _widened(estimate: TimeEstimate) -> TimeEstimate:
    error = _ERROR * estimate.seconds
    down, up = (
        math.hypot(max(side, 0.0), error)
        for side in (estimate.seconds - estimate.low, estimate.high - estimate.seconds)
    )
    return TimeEstimate(estimate.seconds, max(estimate.seconds - down, 0.0), estimate.seconds + up)


def _signal(values: Array, edges: Array) -> Signal:
    kept = np.isfinite(values)
    return Signal(edges[:-1][kept], edges[1:][kept], values[kept])


def windows_of(job: RecordedJob) -> Array:
    """Edges of windows within one attempt, at least `_WINDOW_SECONDS` apart but for the first and
    the last: from one reading to another where reports are close together, else from one report to
    another.
    """
    ran, progress = running(job.phases), job.progress
    if not ran:
        return np.empty(0)
    start, end = ran[-1]
    times = progress.t[np.isfinite(progress.step) & (progress.t >= start) & (progress.t <= end)]
    if len(times) <= _SETTLE_STEPS:
        return np.empty(0)
    times = times[times >= max(times[0] + _SETTLE_SECONDS, times[_SETTLE_STEPS])]
    if not len(times):
        return np.empty(0)
    least = max(_WINDOW_SECONDS, (end - start) / _MOST_WINDOWS)
    if len(times) > 1 and float(np.median(np.diff(times))) <= _OFTEN * least:
        read = job.signal("cpu_cores").end
        inside = read[(read >= times[0] + least / 2.0) & (read <= times[-1] - least / 2.0)]
        return np.array([times[0], *_apart(inside, least), times[-1]])
    return np.array(_apart(times, least))


def _apart(times: Array, least: float) -> list[float]:
    """Times of these that are so far apart, or but for the jitter of readings."""
    kept: list[float] = []
    for t in times.tolist():
        if not kept or t - kept[-1] >= _JITTER * least:
            kept.append(t)
    return kept


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


def _work(
    job: RecordedJob, windows: Array, steps: Array, own: Array, one_thread: bool
) -> tuple[Array, Array]:
    """What it did in each window, and what that took of the CPU: cycles of its instructions, or CPU
    seconds of its steps where the machine does not count these.

    Args:
        own: Seconds of each window that it lost to nobody but neighbours.
    """
    columns: tuple[Column, ...] = ("cpu_instructions", "cpu_cycles", "cpu_cores", "cpu_waiting")
    instructions, cycles, seconds, waited = (
        np.diff(job.signal(column).cumulative(windows)) for column in columns
    )
    if np.all(instructions[steps > 0] > 0.0) and np.all(cycles[steps > 0] > 0.0):
        return instructions, cycles
    return steps, np.maximum(own - waited, 0.0) if one_thread else seconds
