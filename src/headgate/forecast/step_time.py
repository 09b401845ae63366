"""Predict the duration of the remaining steps with a band, from the past variation of step times.

The time of a report equals that of the one before plus noise, a slow drift (as from a new
neighbour), and a trend (as from growing sequences). The sizes of these are unknown. Several sizes
are weighted by their likelihood so far (a Kalman filter for each), and the band is that of the
mixture. So it is wide while little is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from statistics import median
from typing import NamedTuple

from headgate.forecast.epoch_steps import Estimate

WARM = 5
"""First reports that are ignored: caches fill, and FLOPs are counted."""
_STRETCHES = 32
_MOST = 3.0  # times the median of all stretches: one pause of an hour is no pattern
_NOISES = (0.004, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32)  # relative deviation of a report's time
# fraction of the noise that persists, and its prior
_DRIFTS = ((0.0, 0.3), (0.1, 0.25), (0.3, 0.25), (0.8, 0.2))
# relative gain or loss with each report, and its prior
_TRENDS = ((0.0, 0.8), (0.003, 0.05), (-0.003, 0.05), (0.01, 0.05), (-0.01, 0.05))
_LEAST_LEFT = 0.1  # least fraction of a report's time at the end of a trend
_AT_ONCE = 0.1  # fraction of the mean time between two reports
_HALVINGS = 48
_FAR = 30.0  # deviations beyond which an exponential tail replaces the normal one


class _Model(NamedTuple):
    """Sizes of noise, drift and trend.

    It has the probability of these, the predicted time of a report, and variances relative to the
    usual time: of one report, of the present knowledge, and of its growth with each report. The
    trend is the steady gain.
    """

    weight: float
    level: float
    noise: float
    known: float
    drift: float
    trend: float

    def mean(self, reports: float) -> float:
        """Mean time of this many reports."""
        return reports * max(self.level + self.trend * reports / 2.0, _LEAST_LEFT * self.level)

    def variance(self, reports: float) -> float:
        """Variance of the time of this many reports."""
        return self.noise * reports + reports**2 * (self.known + self.drift * reports / 3.0)


@dataclass(frozen=True, slots=True)
class ReportTime:
    """Duration of steps, and its variation.

    Args:
        seconds: Usual time of a report.
        gap: Steps of a report.
        models: Models of these times.
    """

    seconds: float
    gap: float
    models: tuple[_Model, ...]

    def of(self, left: Estimate, waited: float = 0.0) -> Estimate:
        """Seconds of the remaining steps from now on.

        Args:
            left: These steps, with a band.
            waited: Seconds since the last report, without a new one.
        """
        if left.high <= 0.0:
            return Estimate(0.0, 0.0, 0.0, left.likely)
        reports, passed = left.steps / self.gap, waited / self.seconds
        parts = [_ahead(model, reports, passed) for model in self.models]
        low, middle, high = (_quantile(parts, part) for part in (0.05, 0.5, 0.95))
        steps_below, steps_above = (
            (left.steps - left.low) / self.gap,
            (left.high - left.steps) / self.gap,
        )
        low, high = (
            middle - math.hypot(middle - low, steps_below),
            middle + math.hypot(high - middle, steps_above),
        )
        seconds, least, most = (
            self.seconds * max(seconds_of_band - passed, 0.0)
            for seconds_of_band in (middle, low, high)
        )
        return Estimate(seconds, least, most, left.likely)


def rising(reports: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Reports (time, step) without the first ones and without repeated steps."""
    kept: list[tuple[float, float]] = []
    for at, step in reports:
        if not kept or step > kept[-1][1]:
            kept.append((at, step))
    return kept[min(WARM, len(kept) // 3) :]


def step_time(reports: Iterable[tuple[float, float]]) -> ReportTime | None:
    """Duration of a step and its variation, from reports (time in s, step); None: too few."""
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
    """The last of each group of simultaneous reports."""
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
    """The log-likelihood of given sizes for the times and lengths of some stretches, and the
    resulting model.
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
    """Weight, mean and deviation of the time of these reports, given that the first did not come
    within the time passed.
    """
    if passed <= 0.0:
        return model.weight, model.mean(reports), math.sqrt(model.variance(reports))
    first = min(reports, 1.0)
    deviation = math.sqrt(model.variance(first))
    usual = model.mean(first)
    mean, off, gone = _truncated(usual, deviation, passed)
    later_variance = max(model.variance(reports) - deviation**2, 0.0)
    return (
        model.weight * gone,
        mean + model.mean(reports) - usual,
        math.sqrt(off**2 + later_variance),
    )


def _truncated(mean: float, deviation: float, least: float) -> tuple[float, float, float]:
    """Mean and deviation of a normal variable given a lower bound, and the probability of exceeding
    the bound.
    """
    z = (least - mean) / deviation
    if z > _FAR:
        return least + deviation / z, deviation / z, 1e-300 / z
    above = 0.5 * math.erfc(z / math.sqrt(2.0))
    rate = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi) / above
    return mean + deviation * rate, deviation * math.sqrt(max(1.0 - rate * (rate - z), 1e-6)), above


def _quantile(parts: Sequence[tuple[float, float, float]], part: float) -> float:
    """A quantile of a mixture of normal variables (weight, mean, deviation)."""
    total_weight = sum(weight for weight, _, _ in parts)
    low = min(mean - 6.0 * deviation for _, mean, deviation in parts)
    high = max(mean + 6.0 * deviation for _, mean, deviation in parts)
    for _ in range(_HALVINGS):
        at = (low + high) / 2.0
        weight_below = sum(
            weight * 0.5 * math.erfc((mean - at) / (deviation * math.sqrt(2.0)))
            for weight, mean, deviation in parts
        )
        low, high = (at, high) if weight_below < part * total_weight else (low, at)
    return (low + high) / 2.0
