"""What is left of a job, kept up to date while it runs: from its losses, its epochs, what it used
and how fast it is.

The steps that are left are the same for all who ask. What one of them costs makes core-seconds of
them, and how long one takes makes seconds. `Outlook` is fed as reports come, and costs
microseconds. It says when a fit is worth its time. It hands out a `Question` that can be answered
anywhere, in another thread as well. Only `answer` imports numpy.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING

from headgate.forecast.loss_history import EpochSteps, Estimate, Losses
from headgate.forecast.step_time import ReportTime, rising, step_time
from headgate.model.events import Predicted, Progress
from headgate.model.identifiers import JobId

if TYPE_CHECKING:
    from headgate.forecast.curves import Fit

_GROWTH = 1.1
"""A fit is due when a job has done so many times the steps of the last one."""
_APART_SECONDS = 2.0
LONGEST_SECONDS = 10.0
"""A job is taken to use what it used last for so long at most, many times the interval between two
readings. In a longer gap, the hub or the machine stood still.
"""
_AHEAD = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""How far ahead drops are told, in parts of the steps done so far."""
_EVIDENCE = 3
"""Reports, each with a tenth more steps than the one before, until something is said: the first
tell next to nothing of what a step costs.
"""
_PATIENCE = 0.2
"""A job that says neither its epochs nor a goal is taken to end where its loss has come to rest for
so long: a part of the steps done so far.
"""
_SAID_ERROR = 0.2
"""Of the time that a script says is left."""
_REPORTS = 256
"""Of the latest steps, that tell how long one takes."""
_WINDOWS = 8
"""Parts of the time after them; the median of these leaves out pauses."""


@dataclass(frozen=True, slots=True)
class Question:
    """All that a forecast follows from.

    Args:
        points: Step, loss and number of reports of each.
        step: The job's last step.
        cost: Core-seconds of a step; 0: not known.
        epochs: Steps left by the epochs that it is to do.
        goal: The loss at which it ends.
        rest: Steps after which it ends by itself if the loss has got no better by so much; None: it
            does not.
        step_seconds: How long a step takes; None: not known.
    """

    points: tuple[tuple[float, float, float], ...]
    step: float
    cost: float
    epochs: Estimate | None
    goal: float | None
    rest: tuple[float, float] | None = None
    step_seconds: float | None = None


class Outlook:
    """A job's losses, epochs, use of cores and speed.

    What a step costs and how long it takes are measured since a phase began. One begins with the
    first report, with a jump of the loss, with steps that are done again, and where `begins` says
    so. Losses and epochs stay.

    Attributes:
        stopping: Epochs (steps, where it tells no epochs) after which it ends by itself if its loss
            has got no better by so much; None: it does not, or nobody knows.

    Args:
        now: Seconds, when it starts.
        goal: The value of its metric at which it ends; None: it has none.
        rising: Whether more of that metric is better.
        began: Seconds, when its script was started; None: not known.
    """

    def __init__(
        self,
        now: float,
        *,
        goal: float | None = None,
        rising: bool = False,
        began: float | None = None,
    ) -> None:
        self.losses = Losses(rising=rising)
        self.stopping: tuple[int, float] | None = None
        self._epochs = EpochSteps(began)
        # a step, and the seconds that the script said are left at it
        self._said: tuple[float, float] | None = None
        self._goal = -goal if goal is not None and rising else goal
        self._used_at = self._asked_at = now
        self._cores = 0.0
        self._step: float | None = None  # None: a phase begins with the next report
        # Since the phase began: the step that it began with, core-seconds, and who was at which
        # step when.
        self._begin = 0.0
        self._work = 0.0
        self._reports: deque[tuple[float, float]] = deque(maxlen=_REPORTS)
        # Steps done since the phase began, each a tenth more than the one before, and the
        # core-seconds they took.
        self._marks = [(0.0, 0.0)]
        self._asked_step = 0.0
        self._asked_left: float | None = None

    def begins(self) -> None:
        """Other tasks train it from now on, as after a resize or in a new attempt: a step may cost
        something else.
        """
        self._step = None

    def used(self, now: float, cpu_cores: float) -> None:
        """Take in what it used on average since the last time."""
        self._work += cpu_cores * self._since(now)
        self._used_at, self._cores = now, cpu_cores

    def reported(
        self, now: float, loss: float | None, told: Progress, asks: bool = True
    ) -> Question | None:
        """Take in a report; one with neither a loss nor a step tells nothing.

        Args:
            now: Seconds, when it came.
            loss: The value of the job's metric; None: it has none.
            told: All else of it.
            asks: Whether anybody would go by an answer.

        Returns:
            A question, where an answer is worth its time: after the first epoch and then with each
            tenth more steps.
        """
        if loss is None and told.step is None:
            return None
        jumped = loss is not None and self.losses.add(told.step, loss, told.count)
        at = float(told.step if told.step is not None else self.losses.seen)
        if jumped or self._step is None or at < self._step:  # what a step costs may be another now
            self._begin, self._work, self._used_at = at, 0.0, now
            self._reports.clear()
            self._marks = [(0.0, 0.0)]
            self._asked_step, self._asked_left = 0.0, None
        self._step = at
        self._reports.append((now, at))
        if at - self._begin > _GROWTH * self._marks[-1][0]:
            self._marks.append((at - self._begin, self._work_by(now)))
        # Where a job tells no steps, reports are counted.
        reports = told.count if told.step is None else None
        self._epochs.add(
            round(at), told.epoch, told.epochs, told.within, told.steps, reports=reports, at=now
        )
        if told.remaining is not None:
            self._said = at, told.remaining
        if not asks or not self._calls_for_answer(now, at):
            return None
        question = self.question(now)
        self._asked_at, self._asked_step = now, at
        self._asked_left = question.epochs.steps if question.epochs is not None else None
        return question

    def question(self, now: float) -> Question:
        """What a forecast follows from as of now, whether or not it is worth its time."""
        step, work = self._step or 0.0, self._work_by(now)
        done = step - self._begin
        # The later half of the steps tells what one costs: the first ones compile, fill caches,
        # read data.
        steps, before = next(mark for mark in reversed(self._marks) if mark[0] <= done / 2)
        if work <= before:
            steps, before = self._marks[0]
        return Question(
            tuple(self.losses.points()),
            step,
            (work - before) / (done - steps) if done > steps else 0.0,
            self._left(step),
            self._goal,
            self._epochs.rest(self.stopping),
            self.step_seconds(),
        )

    def _left(self, step: float) -> Estimate | None:
        """Steps left, by what is told of its epochs and steps, or else by the time that its script
        says is left.
        """
        seconds = self.step_seconds()
        if (left := self._epochs.left()) is not None or self._said is None or seconds is None:
            return left
        at, said = self._said
        steps = max(at + said / seconds - step, 0.0)
        return Estimate(steps, steps * (1 - _SAID_ERROR), steps * (1 + _SAID_ERROR))

    def step_seconds(self, fewest: float = 1.0) -> float | None:
        """How long a step takes, by at least so many: `step_seconds`."""
        return step_seconds(self._reports, fewest)

    def step_time(self) -> ReportTime | None:
        """How long a step takes, and how that varies; None: not known."""
        return step_time(self._reports)

    def _work_by(self, now: float) -> float:
        """Core-seconds since the phase began: what came since the last use was told is taken to be
        like it.
        """
        return self._work + self._cores * self._since(now)

    def _since(self, now: float) -> float:
        """Seconds since the last time that count."""
        return min(now - self._used_at, LONGEST_SECONDS)

    def _calls_for_answer(self, now: float, step: float) -> bool:
        if (
            len(self._marks) < _EVIDENCE
            or now - self._asked_at < _APART_SECONDS
            or self._work_by(now) <= 0.0
        ):
            return False
        return step >= _GROWTH * self._asked_step or (
            self._asked_left is None and self._epochs.left() is not None
        )


def step_seconds(reports: Iterable[tuple[float, float]], fewest: float = 1.0) -> float | None:
    """Seconds of a step, by when (s) which step was reported: the median of several parts of the
    time, after the first reports. Steps that are done again do not count.

    Returns:
        None where the reports are too few, or of fewer than `fewest` steps.
    """
    kept = rising(reports)
    if len(kept) < 2 or kept[-1][1] - kept[0][1] < fewest:
        return None
    count = min(_WINDOWS, len(kept) - 1)
    ends = [kept[i * (len(kept) - 1) // count] for i in range(count + 1)]
    found = median(
        (after[0] - before[0]) / (after[1] - before[1]) for before, after in pairwise(ends)
    )
    return found if found > 0 else None


def answer(job: JobId, question: Question) -> Predicted | None:
    """Fit, and predict what is left of a job. Takes milliseconds.

    Returns:
        None where nothing can be said.
    """
    from headgate.forecast import curves

    fitted = curves.fit(question.points)
    steps, _ = first_end(fitted, question)
    if steps is None:
        return None
    asymptote, drops = None, []
    if fitted is not None:
        asymptote = fitted.asymptote
        ahead = [part * max(question.step, 1.0) for part in _AHEAD]
        middle = fitted.at([question.step, *(question.step + each for each in ahead)]).middle
        drops = [
            (each * question.cost, float(middle[0] - value))
            for each, value in zip(ahead, middle[1:], strict=True)
        ]
    work, low, high = (each * question.cost for each in steps[:3])
    if not math.isfinite(high):
        return None
    ends = question.epochs is not None or question.goal is not None or question.rest is not None
    seconds = steps.steps * question.step_seconds if question.step_seconds is not None else None
    return Predicted(job, work, low, high, asymptote, tuple(drops), ends, seconds=seconds)


def _after(steps: float, estimate: Estimate) -> Estimate:
    """What is left so many steps later."""
    low, middle, high = (
        max(each - steps, 0.0) for each in (estimate.low, estimate.steps, estimate.high)
    )
    return Estimate(middle, low, high, estimate.likely)


def first_end(fitted: Fit | None, question: Question) -> tuple[Estimate | None, str]:
    """Steps that are left after the last one, and what ends the job then: `epochs`, `goal` or
    `rest`.

    It is the first of its epochs, its goal and its own early stopping. An end that is hardly ever
    reached does not come before one that is. A job without any of them ends where its loss levels
    off.
    """
    step, epochs, goal, rest = question.step, question.epochs, question.goal, question.rest
    ends = [(epochs, "epochs")] if epochs is not None else []
    if fitted is not None:
        since = max(step - fitted.step, 0.0)  # steps since the last loss that is known
        if goal is not None:
            ends.append((_after(since, fitted.to(goal)), "goal"))
        if rest is not None:
            ends.append((_after(since, fitted.to_plateau(*rest, passed=rest[0])), "rest"))
        if not ends:
            ends.append((_after(since, fitted.to_plateau(_PATIENCE * step)), "rest"))
    return min(ends, key=lambda end: (end[0].likely < 0.5, end[0].steps), default=(None, "epochs"))
