"""Quantities over time: integrals, means, maxima and buckets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

GAP_SECONDS = 0.1
"""Shorter gaps between readings may come from clocks alone. Spreading a remainder over them would
look like a peak.
"""


@dataclass(frozen=True, slots=True)
class TimeBuckets:
    """For each bucket of time: lowest value, time-weighted mean and highest value; NaN: unknown."""

    low: Array
    mean: Array
    high: Array


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """A quantity that held `value[i]` from `start[i]` to `end[i]` (seconds), in order and without
    overlap.

    It is unknown in the gaps. Gaps count neither as zero nor in a mean.
    """

    start: Array
    end: Array
    value: Array

    def __len__(self) -> int:
        return len(self.value)

    @property
    def seconds(self) -> float:
        """Seconds for which it is known."""
        return float(np.sum(self.end - self.start))

    @property
    def integral(self) -> float:
        """Sum of value times seconds: CPU seconds from cores, bytes from bytes a second."""
        return float(np.sum(self.value * (self.end - self.start)))

    @property
    def mean(self) -> float | None:
        """Time-weighted mean; None: unknown."""
        return self.integral / self.seconds if len(self) else None

    @property
    def minimum(self) -> float | None:
        return float(np.min(self.value)) if len(self) else None

    @property
    def maximum(self) -> float | None:
        return float(np.max(self.value)) if len(self) else None

    @property
    def last(self) -> float | None:
        return float(self.value[-1]) if len(self) else None

    def cumulative(self, at: Array) -> Array:
        """The integral up to each time in `at`."""
        if not len(self):
            return np.zeros_like(at)
        length = self.end - self.start
        edges = np.column_stack([self.start, self.end]).ravel()
        sums = np.repeat(np.cumsum(self.value * length), 2)
        sums[0::2] -= self.value * length
        return np.interp(at, edges, sums)

    def around(self, start: float, end: float) -> Signal:
        """The stretches that overlap a time range, uncut; found by bisection."""
        first = int(np.searchsorted(self.end, start, side="right"))
        last = int(np.searchsorted(self.start, end, side="left"))
        return Signal(self.start[first:last], self.end[first:last], self.value[first:last])

    def within(self, start: float, end: float) -> Signal:
        """The part between two times."""
        kept = (self.end > start) & (self.start < end)
        return Signal(
            np.maximum(self.start[kept], start), np.minimum(self.end[kept], end), self.value[kept]
        )

    def during(self, stretches: Sequence[tuple[float, float]]) -> Signal:
        """The parts within any of several stretches, which are ordered and do not overlap."""
        parts = [self.within(start, end) for start, end in stretches]
        if not parts:
            return EMPTY
        return Signal(
            np.concatenate([part.start for part in parts]),
            np.concatenate([part.end for part in parts]),
            np.concatenate([part.value for part in parts]),
        )

    def buckets(self, edges: Array) -> TimeBuckets:
        """Lowest, mean and highest value between neighbours of the evenly spaced `edges`."""
        count = len(edges) - 1
        low, high = np.full(count, np.inf), np.full(count, -np.inf)
        if not len(self):
            empty = np.full(count, np.nan)
            return TimeBuckets(empty, empty, empty)
        known = Signal(self.start, self.end, np.ones_like(self.value)).cumulative(edges)
        seconds = np.diff(known)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.diff(self.cumulative(edges)) / seconds
        # Less than a thousandth of a bucket is rounding of its edges, not data.
        width = edges[1] - edges[0]
        mean[seconds < width / 1000] = np.nan
        first = np.clip(np.floor((self.start - edges[0]) / width + 1e-9).astype(int), 0, count - 1)
        last = np.clip(
            np.ceil((self.end - edges[0]) / width - 1e-9).astype(int) - 1, first, count - 1
        )
        touched = last - first + 1
        offsets = np.arange(touched.sum()) - np.repeat(np.cumsum(touched) - touched, touched)
        index = np.repeat(first, touched) + offsets
        values = np.repeat(self.value, touched)
        np.minimum.at(low, index, values)
        np.maximum.at(high, index, values)
        unknown = np.isnan(mean)
        low[unknown] = high[unknown] = np.nan
        # The mean of equal values may differ from them in the last bit.
        return TimeBuckets(low, np.clip(mean, low, high), high)


EMPTY = Signal(np.empty(0), np.empty(0), np.empty(0))


def readings(times: Array, values: Array) -> Signal:
    """A quantity from readings at `times`; each reading covers the time since the one before.

    A sampler's rate is the mean since its last reading, so a first reading has none (NaN). If the
    first has a value, it covers one usual interval.
    """
    if not len(times):
        return EMPTY
    usual = float(np.median(np.diff(times))) if len(times) > 1 else 1.0
    starts = np.concatenate([[times[0] - usual], times[:-1]])
    kept = np.isfinite(values) & (times > starts)
    return Signal(starts[kept], times[kept], values[kept])


def completed(signal: Signal, start: float, end: float, integral: float) -> Signal:
    """Add the part of a known `integral` from `start` to `end` that the readings missed. It is
    spread evenly over gaps of at least `GAP_SECONDS`.
    """
    inside = signal.within(start, end)
    missed = integral - inside.integral
    starts, ends = np.concatenate([[start], inside.end]), np.concatenate([inside.start, [end]])
    gaps = ends - starts >= GAP_SECONDS
    if missed <= 0 or not gaps.any():
        return signal
    starts, ends = starts[gaps], ends[gaps]
    values = np.full(len(starts), missed / float(np.sum(ends - starts)))
    order = np.argsort(np.concatenate([signal.start, starts]), kind="stable")
    return Signal(
        np.concatenate([signal.start, starts])[order],
        np.concatenate([signal.end, ends])[order],
        np.concatenate([signal.value, values])[order],
    )


def settings(times: Array, values: Array, until: float) -> Signal:
    """A quantity that was set at `times`: each setting holds until the next, the last until `until`
    seconds.
    """
    if not len(times):
        return EMPTY
    ends = np.concatenate([times[1:], [max(until, times[-1])]])
    kept = np.isfinite(values) & (ends > times)
    return Signal(times[kept], ends[kept], values[kept])


def total(signals: Sequence[Signal]) -> Signal:
    """The sum of quantities wherever at least one is known."""
    return _merged(signals, highest=False)


def sum_of_many(signals: Sequence[Signal]) -> Signal:
    """The sum of very many non-negative quantities; an unknown one counts as 0."""
    given = [signal for signal in signals if len(signal)]
    if not given:
        return EMPTY
    times = np.concatenate([*(signal.start for signal in given), *(signal.end for signal in given)])
    changes = np.concatenate(
        [*(signal.value for signal in given), *(-signal.value for signal in given)]
    )
    order = np.argsort(times, kind="stable")
    edges, first = np.unique(times[order], return_index=True)
    sums = np.cumsum(np.add.reduceat(changes[order], first))
    return Signal(edges[:-1], edges[1:], np.maximum(sums[:-1], 0.0))


def highest(signals: Sequence[Signal]) -> Signal:
    """The largest of several quantities wherever at least one is known."""
    return _merged(signals, highest=True)


def _merged(signals: Sequence[Signal], *, highest: bool) -> Signal:
    given = [signal for signal in signals if len(signal)]
    if len(given) < 2:
        return given[0] if given else EMPTY
    edges = np.unique(
        np.concatenate([edge for signal in given for edge in (signal.start, signal.end)])
    )
    start, end = edges[:-1], edges[1:]
    value = np.zeros(len(start))
    known = np.zeros(len(start), dtype=bool)
    for signal in given:
        index = np.searchsorted(signal.start, start, side="right") - 1
        inside = (index >= 0) & (start < signal.end[np.maximum(index, 0)])
        held = signal.value[index[inside]]
        value[inside] = np.maximum(value[inside], held) if highest else value[inside] + held
        known |= inside
    return Signal(start[known], end[known], value[known])


def rate(times: Array, counter: Array) -> float | None:
    """Mean growth a second of a counter read at `times`, without stretches in which it shrank.

    A counter that starts again (a new attempt) does not count as a loss. None: fewer than two
    readings.
    """
    kept = np.isfinite(counter)
    steps, seconds = np.diff(counter[kept]), np.diff(times[kept])
    grown = (steps >= 0) & (seconds > 0)
    return float(np.sum(steps[grown]) / np.sum(seconds[grown])) if grown.any() else None


def means(at: Array, values: Array, weights: Array, edges: Array) -> TimeBuckets:
    """Buckets of weighted single points, such as reported losses; `at` may be seconds or CPU
    seconds.
    """
    count = len(edges) - 1
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    kept = np.isfinite(values) & np.isfinite(at)
    at, values, weights = at[kept], values[kept], weights[kept]
    index = np.clip(((at - edges[0]) / (edges[1] - edges[0])).astype(int), 0, count - 1)
    weight = np.bincount(index, weights, count)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(index, weights * values, count) / weight
    np.minimum.at(low, index, values)
    np.maximum.at(high, index, values)
    unknown = weight == 0
    low[unknown] = high[unknown] = np.nan
    return TimeBuckets(low, np.clip(mean, low, high), high)


def ratio(part: Array, whole: Array) -> Array:
    """A part divided by the whole; 0 if the whole is 0."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0.0)


def around(values: Array, count: int) -> Array:
    """Means of each value and those around it, `count` in all."""
    if len(values) < count:
        return np.full_like(values, np.mean(values))
    window = np.ones(count)
    smoothed = np.convolve(values, window, "same")
    return smoothed / np.convolve(np.ones_like(values), window, "same")
