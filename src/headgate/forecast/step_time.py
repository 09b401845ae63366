"""How long the steps that are left will take, with a band: by how much the time of a step has
varied so far.

A report's steps take as long as those of the one before, but for noise, for a slow drift as of a
neighbour that comes, and for a trend as of sequences that get longer. How large these are is not
known: several sizes are weighed by how well they fit the times so far (Kalman's filter for each),
and the band is that of all together. So it is wide while little is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import median
from typing import NamedTuple

from headgate.forecast.loss_history import Estimate

WARM = 5
"""Reports in which caches fill and FLOPs are counted."""
_STRETCHES = 32
_MOST = 3.0  # times the median of all stretches: a job that was held for an hour is not held again
_NOISES = (0.004, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)  # deviation of a report's time, a part of it
# part of that which stays, and how likely that is
_DRIFTS = ((0.0, 0.3), (0.1, 0.25), (0.3, 0.25), (0.8, 0.2))
# that it gains, or loses
_TRENDS = ((0.0, 0.8), (0.003, 0.05), (-0.003, 0.05), (0.01, 0.05), (-0.01, 0.05))
_LEAST_LEFT = 0.1  # of a report's time, at the end of a trend
_AT_ONCE = 0.1  # of the mean time between two reports
_HALVINGS = 48
_FAR = 30.0  # deviations from which on an exponential tail stands for the normal one


class _Model(NamedTuple):
    """A size of noise, drift and trend: how likely it is, how long a report takes by it, and the
    variances, relative to the usual time, of one report, of what is known of its time, and of what
    that gains with each report; and the trend, what it gains steadily.
    """

    weight: float
    level: float
    noise: float
    known: float
    drift: float
    trend: float

    def mean(self, reports: float) -> float:
        """Of the time of so many reports."""
        return reports * max(self.level + self.trend * reports / 2.0, _LEAST_LEFT * self.level)

    def variance(self, reports: float) -> float:
        """Of the time of so many reports."""
        return self.noise * reports + reports**2 * (self.known + self.drift * reports / 3.0)


@dataclass(frozen=True, slots=True)
class ReportTime:
    """How long a step takes, and how that varies.

    Args:
        seconds: What a report usually takes.
        gap: Steps that are reported at once.
        models: What may be said of these times.
    """

    seconds: float
    gap: float
    models: tuple[_Model, ...]

    def of(self, left: Estimate, waited: float = 0.0) -> Estimate:
        """Seconds that the steps which are left take, from now on.

        Args:
            left: These steps, with a band.
            waited: Seconds since the last report: the next one did not come so far.
        """
        if left.high <= 0.0:
            return Estimate(0.0, 0.0, 0.0, left.likely)
        reports, passed = left.steps / self.gap, waited / self.seconds
        parts = [_ahead(model, reports, passed) for model in self.models]
        low, middle, high = (_quantile(parts, part) for part in (0.05, 0.5, 0.95))
        below, above = ((left.steps - left.low) / self.gap, (left.high - left.steps) / self.gap)
        low, high = (
            middle - math.hypot(middle - low, below),
            middle + math.hypot(high - middle, above),
        )
        whole, least, most = (
            self.seconds * max(seconds_of_band - passed, 0.0)
            for seconds_of_band in (middle, low, high)
        )
        return Estimate(whole, least, most, left.likely)


def rising(reports: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Reports (when, step) without the first ones, and without steps that are done again."""
    kept: list[tuple[float, float]] = []
    for at, step in reports:
        if not kept or step > kept[-1][1]:
            kept.append((at, step))
    return kept[min(WARM, len(kept) // 3) :]


def step_time(reports: Iterable[tuple[float, float]]) -> ReportTime | None:
    """How long a step takes, and how that varies, by when (s) which step was reported; None: too
    few were.
    """
    kept = _apart(rising(reports))
    if len(kept) < 2:
        return None
    gap = median(after[1] - before[1] for before, after in pairwise(kept))
    count = min(_STRETCHES, len(kept) - 1)
    ends = [kept[i * (len(kept) - 1) // count] for i in range(count + 1)]
    lengths = [(after[1] - before[1]) / gap for before, after in pairwise(ends)]  # in usual reports
    seconds = [
        (after[0] - before[0]) / length
        for (before, after), length in zip(pairwise(ends), lengths, strict=True)
    ]
    usual = median(seconds)
    if usual <= 0.0:
        return None
    stretches = [
        (min(seconds_of_band / usual, _MOST), length)
        for seconds_of_band, length in zip(seconds, lengths, strict=True)
    ]
    fits = [
        _fit(stretches, size, size * part, trend, likely * common)
        for size, (part, likely), (trend, common) in product(_NOISES, _DRIFTS, _TRENDS)
    ]
    best = max(likelihood for likelihood, _ in fits)
    weights = [math.exp(likelihood - best) for likelihood, _ in fits]
    models = (
        model._replace(weight=weight / sum(weights))
        for weight, (_, model) in zip(weights, fits, strict=True)
    )
    return ReportTime(usual, gap, tuple(model for model in models if model.weight > 1e-6))


def _apart(reports: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Of reports that are made at once the last."""
    if len(reports) < 2:
        return list(reports)
    moment = _AT_ONCE * (reports[-1][0] - reports[0][0]) / (len(reports) - 1)
    return [report for report, after in pairwise(reports) if after[0] - report[0] > moment] + [
        reports[-1]
    ]


def _fit(
    stretches: Sequence[tuple[float, float]],
    noise: float,
    drift: float,
    trend: float,
    likely: float,
) -> tuple[float, _Model]:
    """The logarithm of how likely a size is by the time and length of some stretches, and what it
    then says.
    """
    noise, drift = noise * noise, drift * drift
    (level, before), *others = stretches
    known, likelihood = noise / before, math.log(likely)
    for value, length in others:
        known += drift * length
        level += trend * (before + length) / 2.0
        before = length
        spread = known + noise / length
        likelihood -= 0.5 * (math.log(spread) + (value - level) ** 2 / spread)
        gain = known / spread
        level += gain * (value - level)
        known *= 1.0 - gain
    level = max(level + trend * before / 2.0, 1e-3)
    return likelihood, _Model(0.0, level, noise * level**2, known, drift * level**2, trend)


def _ahead(model: _Model, reports: float, passed: float) -> tuple[float, float, float]:
    """Weight, mean and deviation of the time of these reports; the first did not come in the time
    passed.
    """
    if passed <= 0.0:
        return model.weight, model.mean(reports), math.sqrt(model.variance(reports))
    first = min(reports, 1.0)
    deviation = math.sqrt(model.variance(first))
    usual = model.mean(first)
    mean, off, gone = _truncated(usual, deviation, passed)
    rest = max(model.variance(reports) - deviation**2, 0.0)
    return model.weight * gone, mean + model.mean(reports) - usual, math.sqrt(off**2 + rest)


def _truncated(mean: float, deviation: float, least: float) -> tuple[float, float, float]:
    """Mean and deviation of a normal variable that is at least so large, and the probability of
    that.
    """
    z = (least - mean) / deviation
    if z > _FAR:
        return least + deviation / z, deviation / z, 1e-300 / z
    above = 0.5 * math.erfc(z / math.sqrt(2.0))
    rate = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / above
    return mean + deviation * rate, deviation * math.sqrt(max(1.0 - rate * (rate - z), 1e-6)), above


def _quantile(parts: Sequence[tuple[float, float, float]], part: float) -> float:
    """The value that so much of a mixture of normal variables (weight, mean, deviation) is
    below.
    """
    whole = sum(weight for weight, _, _ in parts)
    low = min(mean - 6.0 * deviation for _, mean, deviation in parts)
    high = max(mean + 6.0 * deviation for _, mean, deviation in parts)
    for _ in range(_HALVINGS):
        at = (low + high) / 2.0
        below = sum(
            weight * 0.5 * math.erfc((mean - at) / (deviation * math.sqrt(2.0)))
            for weight, mean, deviation in parts
        )
        low, high = (at, high) if below < part * whole else (low, at)
    return (low + high) / 2.0
