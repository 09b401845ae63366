"""Keep a running job's losses in few points, however many arrive, without spikes and NaN.

Standard library only: the controller feeds it, with up to 10,000 losses a second.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from statistics import median

MOST_POINTS = 256
"""Most points kept. Beyond it, neighbouring points are merged."""

_MOST_MEANS = 128
_RECENT = 15
_CLIP = 6.0
_WINDOW = 5
_SURE = 5.0
_NOT_NUMBERS = 3
_TICKS = 2.5
"""Multiple of the least difference between successive losses: smaller differences of levels may be
rounding.
"""
_SLIGHT = 1e-5
"""Fraction of the total drop of the loss: levels closer than this are equal, such as a zero with
rounding errors.
"""


@dataclass(slots=True)
class Point:
    """Mean loss of `count` reports, at their mean step."""

    step: float
    loss: float
    count: float

    def add(self, other: Point) -> None:
        """Merge another point into this one."""
        count = self.count + other.count
        self.step += (other.step - self.step) * other.count / count
        self.loss += (other.loss - self.loss) * other.count / count
        self.count = count


class Losses:
    """The losses of one job, in at most `MOST_POINTS` points over stretches of equal length.

    A loss further than 6 standard deviations (by quartiles) from the median of the last 15 is
    clipped. Steps repeated after a restart replace the earlier ones.

    A new phase begins when the level jumps, for example after a restart without optimizer state or
    a change of the learning rate. It also begins when the job repeats everything from the first
    step. The points before are dropped. Quantization by few printed digits is not a jump, nor is a
    change much smaller than the total drop.

    Args:
        rising: Whether a greater value is better, as for accuracy or reward; such a metric is
            negated.

    Attributes:
        phase: Number of phases that have begun.
        not_numbers: Reports that were NaN or infinite.
        seen: Number of reported losses.
    """

    def __init__(self, *, rising: bool = False) -> None:
        self.rising = rising
        self.phase = 0
        self.not_numbers = 0
        self.seen = 0
        self._points: list[Point] = []
        self._width = 1.0
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._in_a_row = 0
        self._last = math.nan
        self._tick = math.inf  # least difference between successive losses
        self._least, self._most = math.inf, -math.inf
        self._fresh = 0  # points since the phase began, or since the last check for a jump
        self._began = -math.inf  # highest initial level of an earlier phase

    @property
    def step(self) -> float:
        """The latest step with a loss; 0 before the first."""
        return self._points[-1].step if self._points else 0.0

    @property
    def diverging(self) -> bool:
        """Whether the loss rises beyond its noise and above the initial level of all its phases, or
        is no longer finite. A printed running mean falls at each new epoch, and may rise within it.
        """
        if self.is_no_number:
            return True
        levels = self._levels()
        if levels is None:
            return False
        first, second, third, noise = levels
        began = max(self._began, self._beginning())
        return (
            first <= second <= third and third - first > _SURE * noise and third > max(first, began)
        )

    @property
    def is_no_number(self) -> bool:
        """Whether the loss is no longer finite."""
        return self._in_a_row >= _NOT_NUMBERS

    def add(self, step: float | None, loss: float, count: int = 1) -> bool:
        """Add a report: the mean of `count` losses.

        Args:
            step: The job's step; None: it counts none, so losses are counted.
            loss: Any number, including NaN.
            count: Number of losses in the mean.

        Returns:
            Whether a new phase begins.
        """
        self.seen += count
        at = float(self.seen if step is None else step)
        if not math.isfinite(loss):
            self.not_numbers += 1
            self._in_a_row += 1
            return False
        self._in_a_row = 0
        self._look_at_digits(loss)
        began_again = self._rewind(at)
        value = self._clipped(-loss if self.rising else loss)
        self._least, self._most = min(self._least, value), max(self._most, value)
        point = Point(at, value, count)
        last = self._points[-1] if self._points else None
        if last is not None and math.floor(at / self._width) <= math.floor(last.step / self._width):
            last.add(point)
            return False
        jumped = self._jumped()
        self._points.append(point)
        self._fresh += 1
        while len(self._points) > MOST_POINTS:
            self._halve()
        return jumped or began_again

    def points(self) -> list[tuple[float, float, float]]:
        """Step, loss (less is better) and count of each point of this phase, in order."""
        return [(point.step, point.loss, point.count) for point in self._points]

    def level(self) -> float:
        """Mean of the last points: the present loss; NaN before the first."""
        last = self._points[-_WINDOW:]
        return sum(point.loss for point in last) / len(last) if last else math.nan

    def _clipped(self, value: float) -> float:
        ordered = self._sorted
        result = value
        if len(ordered) >= _WINDOW:
            quarter = len(ordered) // 4
            far = _CLIP * (ordered[-1 - quarter] - ordered[quarter]) / 1.349
            middle = ordered[len(ordered) // 2]
            result = min(max(value, middle - far), middle + far)
        insort(ordered, value)
        self._recent.append(value)
        if len(self._recent) > _RECENT:
            del ordered[bisect_left(ordered, self._recent.popleft())]
        return result

    def _look_at_digits(self, loss: float) -> None:
        if loss != self._last and math.isfinite(self._last):
            self._tick = min(self._tick, abs(loss - self._last))
        self._last = loss

    def _rewind(self, step: float) -> bool:
        """Drop the points of repeated steps, after a restart or if the script counts from the
        beginning. Returns whether none are left.
        """
        if not self._points or step >= self._points[-1].step - self._width:
            return False
        while self._points and self._points[-1].step >= step:
            self._points.pop()
        if self._points:
            return False
        self._recent.clear()
        self._sorted.clear()
        self._width = 1.0
        self.phase += 1
        self._fresh = 0
        self._began = -math.inf
        return True

    def _halve(self) -> None:
        self._width *= 2.0
        merged: list[Point] = []
        for point in self._points:
            same = merged and math.floor(point.step / self._width) == math.floor(
                merged[-1].step / self._width
            )
            if same:
                merged[-1].add(point)
            else:
                merged.append(point)
        self._points = merged

    def _beginning(self) -> float:
        """The initial level of this phase."""
        return median(point.loss for point in self._points[:_WINDOW])

    def _levels(self) -> tuple[float, float, float, float] | None:
        """Medians of the last three groups of five points, and the standard deviation without the
        trend. It is at least the rounding and a fraction of the total drop.
        """
        last = [point.loss for point in self._points[-3 * _WINDOW :]]
        if len(last) < 3 * _WINDOW:
            return None
        first, second, third = (
            median(last[i : i + _WINDOW]) for i in range(0, 3 * _WINDOW, _WINDOW)
        )
        # Second differences are free of a trend, and have sqrt(6) times the deviation.
        bends = [abs(a - 2 * b + c) for a, b, c in zip(last, last[1:], last[2:], strict=False)]
        rounded = _TICKS / _SURE * self._tick if math.isfinite(self._tick) else 0.0
        slight = _SLIGHT / _SURE * (self._most - self._least)
        return first, second, third, max(median(bends) / 0.6745 / math.sqrt(6.0), rounded, slight)

    def _jumped(self) -> bool:
        """Whether the last five points are on another level than those before. If so, only these
        five are kept.
        """
        if self._fresh < 3 * _WINDOW:
            return False
        levels = self._levels()
        if levels is None:
            return False
        first, second, third, noise = levels
        if abs(third - second) <= 4.0 * abs(second - first) + _SURE * noise or third == second:
            return False
        self._began = max(self._began, self._beginning())
        del self._points[:-_WINDOW]
        self.phase += 1
        self._fresh = 0
        return True


class Course:
    """The finite losses of a job from its beginning, in fewer than 128 means over equal numbers of
    losses.

    Attributes:
        means: Those means, oldest first.
    """

    def __init__(self) -> None:
        self.means: list[float] = []
        self._each = 1  # losses that a mean is of
        self._open: list[float] = []

    def add(self, loss: float) -> None:
        """Add a loss; NaN and infinity are ignored."""
        if not math.isfinite(loss):
            return
        self._open.append(loss)
        if len(self._open) < self._each:
            return
        self.means.append(sum(self._open) / len(self._open))
        self._open.clear()
        if len(self.means) == _MOST_MEANS:
            pairs = zip(self.means[::2], self.means[1::2], strict=True)
            self.means = [(first + second) / 2 for first, second in pairs]
            self._each *= 2
