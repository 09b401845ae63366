"""Loss to neighbours beyond waiting for cores: longer steps.

Waiting times do not show everything. A neighbour that evicts cache lines, takes memory bandwidth or
runs on an SMT sibling makes each step cost more CPU time. Threads that meet at a barrier all wait
for the one without a core. Threads that slow each other lose less by waiting than the core time
that they missed. So steps with and without the neighbour are compared: over windows of the run, the
logarithm of the step time, as neighbours come and go (`headgate.diagnosis.switching`). The same
comparison of CPU time shows whether steps became dearer. CPU time is read only once a second. A job
with one always-busy thread shows it more exactly: when it did not wait, it ran. If the machine
counts cycles and instructions, cycles per instruction are compared instead. A neighbour changes
them, and no phase of the job changes them as much as it changes the CPU time of a step (CPI²,
EuroSys 2013).

A neighbour that came only once may have come just when the job itself changed. If the job's threads
waited for cores meanwhile, it lost something to that neighbour. The comparison then gives the loss,
up to what threads lose that all stop while one waits. Any excess, or a single thread's loss beyond
its waiting, may be the job's own course: a possible loss, from 0 on.
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
"""Length of a window; shorter ones are mostly rounding, because CPU time is read once a second.
Readings jitter by this factor.
"""
_MOST_WINDOWS = 400
_SETTLE_SECONDS, _SETTLE_STEPS = 0.5, 3
"""Start of a job that is ignored: its first steps fill caches and allocate."""
_OFTEN = 0.2
"""Fraction of a window. Reports at least this dense give the steps of windows that begin at any
time.
"""
_VARIES = 0.2
"""Cores by which a neighbour has to vary for a comparison."""
_LEAST_WINDOWS = 3
_MOST_COMPARED = 6
"""Most neighbours that one run can tell apart."""
_ONE_THREAD = 1.1
"""Up to this many running or waiting threads, the job is one thread."""
_AWAY = 0.3
"""A neighbour is away below this fraction of the cores that it uses while present."""
_TELLS = 0.2
"""Least weight of the comparison beside the counted loss for it to be used."""
_STAYED = 2
"""Switches of a neighbour that came and left once: more than chance, less than proof."""
_ERROR = 0.15
"""Relative error of a comparison besides chance: a neighbour uses its cores unevenly."""
_LONGEST = 20.0
"""Steps longer than this, as a logarithm of the factor, count as standing still."""
_APART = 0.5
"""Least loss of independent threads, as a fraction of the loss of synchronized threads."""
_CLEARLY = 0.1
"""A smaller fraction of a loss is attributed to memory only through rounding."""


class Slower(NamedTuple):
    """Effect of a neighbour on the steps of a job.

    Args:
        steps: On the logarithm of a step's seconds.
        dearer: On the logarithm of CPU seconds for each step, or of cycles per instruction if
            counted.
        least: Cores that it used even while away; their cost cannot be compared.
        usual: Cores that it used beyond that while present.
    """

    steps: SwitchEffect
    dearer: SwitchEffect | None
    least: float
    usual: float

    @property
    def is_dearer(self) -> bool:
        """Whether steps became longer and took more CPU, beyond their usual variation."""
        return self.steps.low > 0.0 and self.dearer is not None and self.dearer.low > 0.0


def slower(
    job: RecordedJob, neighbours: Mapping[str, Signal], own: Signal, one_thread: bool
) -> dict[str, Slower]:
    """Effect of each neighbour on a step, without neighbours that cannot be compared.

    Args:
        neighbours: Cores that each used on the job's node.
        own: The fraction of its time that it lost to nobody but neighbours.
        one_thread: Whether it is one always-busy thread.
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
    """Loss to one neighbour, from comparing steps.

    Args:
        parts: Lost fraction of each bucket.
        seconds: Lost seconds of the job's steps.
        sure: Whether nothing else explains the loss; else only what waiting for cores can explain
            counts.
        dearer: Whether steps took more CPU time.
        by_waiting: Most seconds that threads can lose by waiting for cores.
    """

    parts: Array
    seconds: TimeEstimate
    sure: bool
    dearer: bool
    by_waiting: float

    def with_counted(self, waits: Array, counted: float, error: float) -> Compared | None:
        """Mean of this and the counted loss, weighted by accuracy. None: the counted loss is so
        much more accurate that it stands alone.

        Args:
            waits: The counted loss of each bucket.
            counted: Its seconds.
            error: Its relative error, to one side of a 90 % band.
        """
        seconds, low, high = self.seconds
        # more than waiting explains
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
    """Longer steps due to neighbours, beyond the counted loss.

    Args:
        parts: By neighbour, for each bucket, beyond the counted loss; negative if too much was
            counted.
        compared: Result of the comparison, by neighbour.
        one_thread: Whether it is one always-busy thread, whose waiting is known exactly.
    """

    parts: Mapping[str, Array]
    compared: Mapping[str, Compared]
    one_thread: bool = False

    def losses(self, counted: Sequence[LostTime], inside: Array, elapsed: float) -> list[LostTime]:
        """All losses to neighbours. For a neighbour that can be compared, steps with and without it
        correct the counted loss.
        """
        losses = [loss for loss in counted if loss.to not in self.compared]
        for to, compared in self.compared.items():
            known = next(
                (loss.lost for loss in counted if loss.to == to), TimeEstimate(0.0, 0.0, 0.0)
            )
            # except for rounding
            total_loss = max(known.seconds + float(np.sum(self.parts[to] * inside)), 0.0)
            # its start is not compared
            before = max(total_loss - float(np.sum(compared.parts * inside)), 0.0)
            low, high = before + compared.seconds.low, before + compared.seconds.high
            low, high = min(low, total_loss), min(max(high, total_loss), elapsed)
            memory = self._memory(total_loss, before + compared.by_waiting, compared)
            if compared.sure:
                share = memory / total_loss if total_loss > 0.0 else 1.0
                of_memory = TimeEstimate(memory, low * share, high * share)
                of_cores = TimeEstimate(
                    total_loss - memory, low * (1.0 - share), high * (1.0 - share)
                )
            else:
                cores = total_loss - memory
                if self.one_thread:  # its waiting is known as accurately as counted
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
        """The part not explained by waiting for cores. Threads may spin while another waits for a
        core, so CPU time says nothing about memory as far as that explains the loss.
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
    """Losses to neighbours beyond the counted ones; negative if too much was counted.

    Args:
        beside: Cores that each neighbour used in each bucket.
        own: The fraction of each bucket that it lost to nobody, as counted.
        edges: Edges of the buckets.
        counted: The fraction of each bucket lost to each neighbour by waiting for cores.
        most: The same if all of its threads stopped whenever one waited.
        stepping: Seconds of each bucket within its steps.
    """
    if len(job.nodes) > 1:
        # with several nodes it is unknown whose neighbours made a step longer
        return SlowerSteps({}, {})
    signals = {name: _signal(cores, edges) for name, cores in beside.items() if name != ITSELF}
    waits = {name: counted.get(name, np.zeros_like(own)) for name in signals}
    own_part = np.minimum(own + sum(waits.values(), np.zeros_like(own)), 1.0)
    one_thread = _is_one_thread(job, edges)
    effects_of = slower(job, signals, _signal(own_part, edges), one_thread)
    waited = {name: float(np.sum(waits[name] * stepping)) > LEAST_SECONDS for name in effects_of}
    # Without a counted loss, only an effect at every switch is surely the neighbour's.
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
    # Losses that cannot be compared stay as counted: those to other neighbours, and the constant
    # part of a neighbour.
    stays = {
        name: _stays(waits[name], beside[name], effect, stepping)
        for name, effect in effects_of.items()
    }
    counted_only = sum(
        (waits[name] for name in waits.keys() - effects_of.keys()), np.zeros_like(own)
    )
    left = np.maximum(own_part - counted_only - sum(stays.values(), np.zeros_like(own)), 0.0)
    compared = {}
    for name, effect in effects_of.items():
        other_sizes = sum(
            (size[0] for other, size in sizes.items() if other != name), np.zeros_like(own)
        )
        errors = (1.0, 1.0 - COUNTED_ERROR, 1.0 + COUNTED_ERROR)
        parts = [
            error * stays[name]
            + left * (1.0 - np.exp(-size - other_sizes)) * ratio(size, size + other_sizes)
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
        error = _ERROR if one_thread else COUNTED_ERROR  # one thread loses exactly what it waits
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
    """The counted loss of each bucket for cores that a neighbour uses even while away."""
    away = (stepping > 0.0) & (np.nan_to_num(cores) <= effect.least + _AWAY * effect.usual)
    usual = float(np.median(waits[away])) if away.any() else 0.0
    return np.minimum(waits, usual)


def _unsure(
    parts: Sequence[Array], waits: Array, least: Array, by_waiting: Array | None, effect: Slower
) -> list[Array]:
    """Loss to a neighbour that came or left too seldom: estimate, low and high.

    Args:
        parts: The same, from the steps.
        waits: The counted loss.
        least: The least loss by counting.
        by_waiting: The most that threads lose by waiting, if several waited.
    """
    point, low, high = parts
    if by_waiting is not None:  # by the steps, or by counting if the job changed at that time
        point, low, high = (np.clip(part, least, by_waiting) for part in parts)
        return [point, np.minimum(low, waits), np.maximum(high, waits)]
    changed = effect.steps.switches >= _STAYED and effect.is_dearer
    return [np.maximum(point, waits) if changed else waits, waits, np.maximum(high, waits)]


def _size(effect: Slower, sure: bool, waited: bool, one_thread: bool) -> tuple[float, float, float]:
    """Effect of one core of a neighbour, with its band. If the job never waited for a core, only
    additional CPU time of its steps counts, and nothing if that may be zero.
    """
    steps, dearer = effect.steps, effect.dearer
    if dearer is None:
        return steps.each, steps.low, steps.high
    if waited:
        # The waiting of one thread is known: it cannot have lost much more unless its steps took
        # more CPU.
        doubtful = one_thread and not sure and not effect.is_dearer
        return steps.each, steps.low, min(steps.high, dearer.high) if doubtful else steps.high
    if not effect.is_dearer:
        return 0.0, 0.0, min(steps.high, dearer.high)
    if dearer.each >= steps.each:
        return steps.each, steps.low, steps.high
    return dearer.each, min(dearer.low, steps.low), max(dearer.high, steps.high)


def _longer(size: float, cores: Array, slower: Slower) -> Array:
    """Increase of the step time in each bucket, as a logarithm. A neighbour below its usual cores
    was present for a part of the bucket.
    """
    used = np.maximum(np.nan_to_num(cores) - slower.least, 0.0)
    increase, part = (
        min(max(size, 0.0) * slower.usual, _LONGEST),
        np.minimum(used / slower.usual, 1.0),
    )
    longer: Array = -np.log(1.0 - part * (1.0 - math.exp(-increase))) + max(size, 0.0) * np.maximum(
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
    """Edges of windows within one attempt, at least `_WINDOW_SECONDS` apart except the first and
    last. They lie at readings if reports are dense, else at reports.
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
    """Times at least this far apart, within the jitter of readings."""
    kept: list[float] = []
    for t in times.tolist():
        if not kept or t - kept[-1] >= _JITTER * least:
            kept.append(t)
    return kept


def steps_between(job: RecordedJob, times: Array) -> Array:
    """Steps between each of these times and the next."""
    known = np.isfinite(job.progress.step)
    at = np.interp(times, job.progress.t[known], np.maximum.accumulate(job.progress.step[known]))
    return np.asarray(np.diff(at))


def _is_one_thread(job: RecordedJob, edges: Array) -> bool:
    """Whether the job is one thread that always runs or waits for a core."""
    signals = (job.signal(column) for column in ("cpu_cores", "cpu_waiting", "cpu_ready"))
    ran, waited, ready = (signal.within(edges[0], edges[-1]).mean or 0.0 for signal in signals)
    return ran + waited <= _ONE_THREAD and ready >= 1.0 / _ONE_THREAD


def _work(
    job: RecordedJob, windows: Array, steps: Array, own: Array, one_thread: bool
) -> tuple[Array, Array]:
    """Work and its CPU cost in each window: instructions and cycles, or steps and CPU seconds if
    those are not counted.

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
