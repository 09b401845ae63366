"""Keep a running job's losses in few points, however many arrive, without spikes and NaN.

Standard library only: the controller feeds it, with up to 10,000 losses a second.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Literal, NamedTuple

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


class Estimate(NamedTuple):
    """Steps left: the median and a 90 % band. `likely` is the probability that the goal is ever
    reached; the other figures hold if it is.
    """

    steps: float
    low: float
    high: float
    likely: float = 1.0

    def times(self, time: float) -> Estimate:
        """The seconds or core-seconds of these steps, at `time` for each."""
        return Estimate(self.steps * time, self.low * time, self.high * time, self.likely)


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


_PART = 0.02
"""Fraction of an epoch after which its number of steps can be estimated."""
_PART_ERROR = 0.1
"""Relative error of that: an epoch's last batches may not complete a step, as in gradient
accumulation.
"""


_MOMENT = 0.1
"""Fraction of the time between epochs up to which reports count as simultaneous."""
_SOON = 0.5
"""Fraction of the time between epochs: an earlier first report comes from the beginning of the
epoch.
"""


class EpochSteps:
    """Steps left of a job's epochs, from the steps at which epochs began.

    A script with one report or one burst of reports in each epoch usually makes it at the end. If
    the first came sooner than the others, it makes it at the beginning.

    Args:
        began: When the script was started (s); None: unknown.
    """

    def __init__(self, began: float | None = None) -> None:
        # An epoch and its approximate first step, between two reports.
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None
        self._slack = 0.0
        self._start = (1, 0.0)  # epoch and step of the first report
        self._in_steps = True
        self._none_before = 0.0  # the count before the first report, if reports are counted
        self._epoch: int | None = None
        self._step = 0.0
        self._epochs: int | None = None
        self._from_zero = False
        self._of: tuple[float, int] | None = None  # the latest step, and the total number of steps
        # Step and number of finished epochs, at the first report and the latest.
        self._began: tuple[float, float] | None = None
        self._now: tuple[float, float] | None = None
        self._moments = _Moments(began)

    def add(
        self,
        step: int | None,
        epoch: int | None,
        epochs: int | None,
        within: float | None = None,
        steps: int | None = None,
        *,
        reports: int | None = None,
        at: float | None = None,
    ) -> None:
        """Add a report; one without step or epoch has no effect.

        Args:
            step: The job's step.
            epoch: Counted from 1, or from 0 as some scripts print it.
            epochs: Number of epochs. A script that counts from 0 may print 0/9 up to 9/9, or 0/10
                up to 9/10. A number one below a usual choice is taken for the last epoch's.
            within: Fraction of the epoch that is done.
            steps: Total number of steps.
            reports: Number of this report, if reports are counted instead of steps. This count does
                not include epochs before a resume. None: steps are counted.
            at: When it came (s); None: unknown.
        """
        if step is not None and reports is None and (steps is not None or self._of is not None):
            self._of = float(step), steps or (self._of[1] if self._of is not None else 0)
        if epoch is not None and (self._epoch is None or epoch == 0):
            self._from_zero = epoch == 0
        if epochs is not None:
            self._epochs = _counted_from_zero(epochs) if self._from_zero else epochs
        if step is None or epoch is None:
            return
        epoch += int(self._from_zero)
        # started, or started again
        if self._epoch is None or epoch < self._epoch or step < self._step:
            self._first = self._last = self._began = self._now = None
            self._moments.start(at)
            self._in_steps = reports is None
            self._none_before = float(step - (reports or 0))
            self._start = (epoch, step - reports / 2 if reports is not None else float(step))
        elif epoch > self._epoch:
            moment = self._moments.next(at)
            self._slack = (step - self._step) / 2 if moment is None else 0.0
            last_step: float
            if moment == "begins":
                last_step = step
            elif moment == "ends":
                last_step = self._step
            else:
                last_step = step - self._slack
            self._last = (epoch, last_step)
            self._first = self._first or self._last
        else:
            self._moments.again(at)
        self._step, self._epoch = float(step), epoch
        if within is not None:
            self._now = (self._step, epoch - 1 + within)
            self._began = self._began or self._now

    def length(self) -> float | None:
        """Steps of an epoch; None until an epoch, or a known part of one, has ended. 1 without
        epochs: epochs then mean steps.
        """
        if self._epoch is None:
            return 1.0
        if self._first is None or self._last is None:
            return self._length_by_parts()
        (first, began), (last, at) = self._first, self._last
        if last != first:
            return (at - began) / (last - first)
        first, began = self._start
        if self._moments.told == "ends" and not self._in_steps:
            began = self._none_before
        seen = (at - began) / (last - first)
        # Steps may count from the job's first epoch or from this process's start: what it did in
        # its first epoch is at most a whole epoch.
        return max(seen, at / (last - min(first, 1))) if self._in_steps else seen

    def rest(self, stopping: tuple[int, float] | None) -> tuple[float, float] | None:
        """Early stopping (epochs without an improvement, least improvement) in steps; None: the
        length of an epoch is unknown.
        """
        length = self.length()
        return (
            (stopping[0] * length, stopping[1])
            if stopping is not None and length is not None
            else None
        )

    def left(self) -> Estimate | None:
        """Steps left; None: no epoch or known part has ended, or the number of epochs is
        unknown.
        """
        if self._of is not None and self._of[0] <= self._of[1]:
            steps_left = self._of[1] - self._of[0]
            return Estimate(steps_left, steps_left, steps_left)
        if self._epochs is None or self._epoch is None or self._epoch > self._epochs:
            return None
        if self._first is None or self._last is None:
            return self._left_by_parts(self._epochs)
        length, (last, at) = self.length(), self._last
        if not length:
            return None
        if self._moments.told == "ends":
            steps = (self._epochs - self._epoch) * length
            return Estimate(steps, steps, steps)
        slack = self._slack / max(last - self._first[0], 1)
        passed = self._step - at
        ahead = self._epochs - last + 1
        low, middle, high = (
            max(ahead * max(length_of_phase, 0.0) - passed, 0.0)
            for length_of_phase in (length - slack, length, length + slack)
        )
        return Estimate(middle, low, high)

    def _left_by_parts(self, epochs: int) -> Estimate | None:
        length = self._length_by_parts()
        if length is None or self._now is None:
            return None
        steps = max(epochs - self._now[1], 0.0) * length
        return Estimate(steps, steps * (1 - _PART_ERROR), steps * (1 + _PART_ERROR))

    def _length_by_parts(self) -> float | None:
        if self._began is None or self._now is None or self._now[1] - self._began[1] < _PART:
            return None
        (first, done_first), (step, done) = self._began, self._now
        return (step - first) / (done - done_first)


class _Moments:
    """Detects when within an epoch reports come, from the time between them.

    Attributes:
        told: At which end of an epoch: `ends` or `begins`; None: throughout, or unknown yet.
    """

    def __init__(self, began: float | None) -> None:
        self.told: Literal["ends", "begins"] | None = None
        self._before = began
        self._gap: float | None = None  # before the first report
        self._first = self._latest = 0.0  # first and latest report of this epoch
        self._at_once = False

    def start(self, at: float | None) -> None:
        """The very first report."""
        self.told, self._at_once = None, at is not None
        if at is not None:
            self._gap = at - self._before if self._before is not None else None
            self._first = self._latest = self._before = at

    def again(self, at: float | None) -> None:
        """A further report of an epoch."""
        self._latest = at if at is not None else self._latest

    def next(self, at: float | None) -> Literal["ends", "begins"] | None:
        """The first report of a new epoch. Returns at which end of an epoch it comes."""
        if at is None or not self._at_once:
            self._at_once, self.told = False, None
            return None
        gap = at - self._latest
        self._at_once = self._latest - self._first <= _MOMENT * gap
        if not self._at_once:
            self.told = None
        elif self.told is None:
            self.told = "begins" if self._gap is not None and self._gap < _SOON * gap else "ends"
        self._first = self._latest = at
        return self.told


def _counted_from_zero(epochs: int) -> int:
    """The number of epochs, from the number behind the slash of a script that counts from 0."""
    return epochs + 1 if epochs % 5 == 4 or epochs == 0 else epochs
