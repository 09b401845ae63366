"""How many steps an epoch has, and how many are left of it."""

from __future__ import annotations

from typing import Literal, NamedTuple


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
