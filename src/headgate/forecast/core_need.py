"""Estimate what a core more or less does to a job's steps, from what they wait for.

A step is as long as the longer of two paths. One is that of the training process, without its waits
for input. The other is that of the threads and processes that prepare input. With enough cores,
both lose the time in which they wait for a core. The CPU time of a step stays the same. So a job is
as fast as it can be on as many cores as that CPU time over the time of such a step. On fewer, it
makes fewer steps in proportion. Synergy (OSDI 2022) measures the same curve by profiles.

The estimate is made at whatever cores the job has. Where it is wrong, it differs between grants and
its spread grows. Where no thread waits for a core, it is what the job uses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from headgate.model.events import StepPace, Usage

_SECONDS = 10.0
"""Time constant of averages."""
_LEAST_SECONDS = 5.0
"""Least observation for an estimate."""
_HARDLY, _RATHER = 0.25, 0.4
"""A job waits for other things than cores below the first fraction of its own computing in a step,
and until it is above the second.
"""
_OTHER = 0.2
"""A need that differs by less than this fraction, or by less than twice its spread, is noise."""
_MOST_SPREAD = 0.5
"""Estimates that differ more than this say nothing yet."""
_FOLLOWING = 0.05
"""Weight of a new step in the averages of spans."""


@dataclass(frozen=True, slots=True)
class Need:
    """What cores do to a job's steps.

    Args:
        cores: Cores with which it is as fast as it can be with its present threads.
        spread: Relative deviation of single estimates.
        times: Its steps a second with these cores, over those now.
        waits: Its steps then wait for other things: its GPU, NIC or loader. More threads than now
            would bring hardly anything.
    """

    cores: float
    spread: float
    times: float
    waits: bool


class CoreNeed:
    """Averages of a job's use and pace, and the need for cores that follows from them.

    Attributes:
        need: The need; None: too little was seen. Its cores change only beyond noise.
    """

    def __init__(self) -> None:
        self.need: Need | None = None
        self._seconds = 0.0
        self._cores = 0.0
        self._pace = StepPace(0.0, 0.0, 0.0)
        self._log = self._variance = 0.0

    def used(self, seconds: float, cores: float, pace: StepPace) -> None:
        """Add the mean cores and the pace of some seconds."""
        single = _uncontended(cores, pace)
        if seconds <= 0.0 or single is None:
            return
        # the first seconds count alike
        part = seconds / (min(self._seconds, _SECONDS) + seconds)
        self._cores += part * (cores - self._cores)
        self._pace = self._pace.toward(pace, part)
        off = math.log(cores / single[0]) - self._log
        self._log += part * off
        self._variance = (1.0 - part) * (self._variance + part * off * off)
        self._seconds += seconds
        now = _uncontended(self._cores, self._pace)
        spread = math.sqrt(self._variance)
        if self._seconds >= _LEAST_SECONDS and now is not None and spread <= _MOST_SPREAD:
            self._estimate(*now, spread)

    def _estimate(self, seconds: float, computes: float, spread: float) -> None:
        before = self.need
        waits = computes < (_RATHER if before is not None and before.waits else _HARDLY)
        need = Need(self._cores / seconds, spread, 1.0 / seconds, waits)
        if before is not None and before.waits == waits:
            apart = abs(need.cores / before.cores - 1.0)
            if apart <= max(_OTHER, 2.0 * spread):
                need = replace(need, cores=before.cores)
        self.need = need


def _uncontended(cores: float, pace: StepPace) -> tuple[float, float] | None:
    """The time of a step with enough cores, over that now, and the fraction of it in which its main
    thread computes. None: it used no core.
    """
    ready = cores + pace.waiting
    if cores <= 0.0:
        return None
    runs = cores / ready
    # Its steps wait for cores only as far as others than its main thread are ready.
    own = 1.0 - min(pace.input, max(ready - pace.main_ready, 0.0))
    computes = min(pace.main_ready, own)
    seconds = min(max(own - computes * (1.0 - runs), runs, pace.gpu_busy), 1.0)
    return seconds, computes * runs / seconds


class InputPart:
    """The fraction of a task's steps that it waits for input, by its spans.

    Attributes:
        value: The fraction; None: no spans tell it.
    """

    def __init__(self) -> None:
        self._input = self._all = 0.0
        self.value: float | None = None

    def add(self, spans: Mapping[str, float]) -> None:
        """Add a step by its spans (s)."""
        seconds = sum(spans.values())
        if spans.keys() <= {"step"} or seconds <= 0.0:
            return  # nothing tells its parts
        self._input += _FOLLOWING * (spans.get("input", 0.0) - self._input)
        self._all += _FOLLOWING * (seconds - self._all)
        self.value = self._input / self._all


def pace_of(usages: Sequence[Usage], all_of_them: float) -> StepPace | None:
    """What the steps of a job wait for, from the last readings of its tasks: all threads that wait
    for a core, and the mean of the rest. None: unknown.
    """
    known = [usage.pace for usage in usages if usage.pace is not None]
    if not known:
        return None
    waiting = all_of_them * sum(pace.waiting for pace in known) * len(usages) / len(known)
    return StepPace(
        waiting,
        fmean(pace.main_ready for pace in known),
        fmean(pace.input for pace in known),
        fmean(pace.gpu_busy for pace in known),
    )
