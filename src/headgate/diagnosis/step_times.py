"""Compare how long the steps of one job take with those of another, from their reports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from headgate.recorded.jobs import RecordedJob
from headgate.recorded.usage import Array

FEWEST_STEPS = 20
"""Fewest steps, after the first ones, for their time to be known."""
_BLOCKS, _FEWEST_BLOCKS = 20, 6
_LEAST_SECONDS = 1.0
_SETTLE_SECONDS, _SETTLE_STEPS = 1.0, 3
"""The first steps fill caches and allocate."""
_LEAST_ERROR = 0.01
"""Least error of the logarithm of a time: blocks of one run do not show how runs differ."""
_OF_MEDIAN, _OF_DEVIATION = 1.2533, 1.4826
"""Standard error of a median over that of a mean; standard deviation over the median deviation."""
_SPREAD = 1.645
"""Deviations on each side of a 90 % band."""
_SAME_SAMPLES = 0.01


class UsualStep(NamedTuple):
    """The usual time of a step.

    Args:
        seconds: Median over parts of the run.
        error: Standard error of its logarithm.
        samples: Samples of a step; None: unknown.
    """

    seconds: float
    error: float
    samples: float | None


class TimeRatio(NamedTuple):
    """How many times as long a step takes as another, with a 90 % band.

    Args:
        per_sample: Whether the time of a sample is compared, as the steps have other sizes.
    """

    times: float
    low: float
    high: float
    per_sample: bool = False


def step_time(job: RecordedJob) -> UsualStep | None:
    """The time of a job's steps; None: it reported too few."""
    progress = job.progress
    return of_reports(progress.t, progress.step, progress.samples)


def of_reports(t: Array, steps: Array, samples: Array) -> UsualStep | None:
    """The time of steps from reports in the order of time; None: too few steps. Steps that were
    done again do not count, and a pause is no more than one of several parts.
    """
    known = np.isfinite(steps)
    if not known.any():
        return None
    t, samples, steps = t[known], samples[known], np.maximum.accumulate(steps[known])
    settled = (t >= t[0] + _SETTLE_SECONDS) & (steps >= steps[0] + _SETTLE_STEPS)
    t, samples, steps = t[settled], samples[settled], steps[settled]
    if len(t) < 2 or steps[-1] - steps[0] < FEWEST_STEPS or t[-1] - t[0] < _LEAST_SECONDS:
        return None
    edges = np.unique(np.round(np.linspace(0, len(t) - 1, _BLOCKS + 1)).astype(int))
    seconds, made = np.diff(t[edges]), np.diff(steps[edges])
    kept = (seconds > 0.0) & (made > 0.0)
    if np.count_nonzero(kept) < _FEWEST_BLOCKS:
        return None
    blocks = np.log(seconds[kept] / made[kept])
    middle = float(np.median(blocks))
    deviation = _OF_DEVIATION * float(np.median(np.abs(blocks - middle)))
    error = _OF_MEDIAN * deviation / math.sqrt(len(blocks))
    return UsualStep(math.exp(middle), max(error, _LEAST_ERROR), _samples(steps, samples))


def _samples(steps: Array, samples: Array) -> float | None:
    known = np.isfinite(samples)
    if np.count_nonzero(known) < 2:
        return None
    made = steps[known][-1] - steps[known][0]
    return float((samples[known][-1] - samples[known][0]) / made) if made > 0.0 else None


def ratio(first: UsualStep, second: UsualStep) -> TimeRatio:
    """The time of a step of the second over that of the first. If the steps have other numbers of
    samples, the time of a sample.
    """
    return ratio_to_runs([first], second, 0.0)


def ratio_to_runs(earlier: Sequence[UsualStep], now: UsualStep, between: float) -> TimeRatio:
    """The time of a step over the usual one of other runs.

    Args:
        earlier: Their steps, one of each run.
        now: The step that is compared.
        between: Deviation of the logarithm from run to run.
    """
    usual = float(np.median([math.log(step.seconds) for step in earlier]))
    usual_error = math.sqrt(float(np.mean([step.error**2 for step in earlier])) / len(earlier))
    difference = math.log(now.seconds) - usual
    sizes = [step.samples for step in (*earlier, now) if step.samples]
    per_sample = len(sizes) == len(earlier) + 1 and (
        max(sizes) - min(sizes) > _SAME_SAMPLES * max(sizes)
    )
    if per_sample:
        difference -= math.log(sizes[-1] / float(np.median(sizes[:-1])))
    error = math.hypot(now.error, usual_error, between * math.sqrt(1.0 + 1.0 / len(earlier)))
    low, high = (math.exp(difference + side * _SPREAD * error) for side in (-1.0, 1.0))
    return TimeRatio(math.exp(difference), low, high, per_sample)
