"""What is left of a job, kept up to date while it runs: from its losses, its epochs and what it used.

`Outlook` is fed as reports come, and costs microseconds. It says when a fit is worth its time. It hands out a
`Question` that can be answered anywhere, in another thread as well. Only `answer` imports numpy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from headgate.analysis.losses import EpochSteps, Estimate, Losses

if TYPE_CHECKING:
    from headgate.analysis.curves import Fit

_GROWTH = 1.1
"""A fit is due when a job has done so many times the steps of the last one."""
_APART_SECONDS = 2.0
LONGEST_SECONDS = 10.0
"""Longest that what was used last is taken to have gone on for: many times what lies between two readings. A longer gap
is a hub or a machine that stood still, and no work."""
_AHEAD = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""How far ahead drops are told, in parts of the steps done so far."""
_EVIDENCE = 3
"""Reports, each with a tenth more steps than the one before, until something is said: the first tell next to nothing of
what a step costs."""
PATIENCE = 0.2
"""A job that says neither its epochs nor a goal is taken to end where its loss has come to rest for so long: a part of
the steps done so far."""


class Remaining(NamedTuple):
    """The answer: the fields of `headgate.policies.Predicted` but for the job and its cores."""

    work: float
    low: float
    high: float
    asymptote: float | None
    drops: tuple[tuple[float, float], ...]
    ends: bool = True


@dataclass(frozen=True, slots=True)
class Question:
    """All that a forecast follows from.

    Args:
        points: Step, loss and number of reports of each.
        step: The job's last step.
        cost: Core-seconds of a step.
        epochs: Steps left by the epochs that it is to do.
        goal: The loss at which it ends.
        rest: Steps after which it ends by itself if the loss has got no better by so much; None: it does not.
    """

    points: tuple[tuple[float, float, float], ...]
    step: float
    cost: float
    epochs: Estimate | None
    goal: float | None
    rest: tuple[float, float] | None = None


class Outlook:
    """A job's losses, epochs and use of cores.

    Attributes:
        stopping: Epochs (steps, where it tells no epochs) after which it ends by itself if its loss has got no better
            by so much; None: it does not, or nobody knows.

    Args:
        now: Seconds, when it starts.
        goal: The value of its metric at which it ends; None: it has none.
        rising: Whether more of that metric is better.
    """

    def __init__(self, now: float, *, goal: float | None = None, rising: bool = False) -> None:
        self.losses = Losses(rising=rising)
        self.stopping: tuple[int, float] | None = None
        self._epochs = EpochSteps()
        self._goal = -goal if goal is not None and rising else goal
        self._used_at = self._asked_at = now
        self._cores = 0.0
        # Core-seconds since the phase began, and the step that it began with; None before the first report.
        self._work = 0.0
        self._step: float | None = None
        self._begin: float | None = None
        # Steps done since the phase began, each a tenth more than the one before, and the core-seconds they took.
        self._marks: list[tuple[float, float]] = []
        self._asked_step = 0.0
        self._asked_left: float | None = None

    def used(self, now: float, cpu_cores: float) -> None:
        """Take in what it used on average since the last time."""
        self._work += cpu_cores * self._since(now)
        self._used_at, self._cores = now, cpu_cores

    def reported(
        self,
        now: float,
        loss: float,
        *,
        step: int | None,
        epoch: int | None,
        epochs: int | None,
        count: int,
        within: float | None = None,
        steps: int | None = None,
        asks: bool = True,
    ) -> Question | None:
        """Take in a report; `asks` is whether anybody would go by an answer.

        Returns:
            A question, where an answer is worth its time: after the first epoch and then with each tenth more steps.
        """
        jumped = self.losses.add(step, loss, count)
        at = float(step if step is not None else self.losses.seen)
        if jumped or self._step is None or at < self._step:  # what a step costs may be another now
            self._begin, self._work, self._used_at = at, 0.0, now
            self._marks = [(0.0, 0.0)]
            self._asked_step, self._asked_left = 0.0, None
        self._step = at
        if at - (self._begin or 0.0) > _GROWTH * self._marks[-1][0]:
            self._marks.append((at - (self._begin or 0.0), self._work + self._cores * self._since(now)))
        # Who tells no steps is counted in reports.
        self._epochs.add(round(at), epoch, epochs, within, steps, reports=count if step is None else None)
        return self._question(now, at) if asks else None

    def _since(self, now: float) -> float:
        """Seconds since the last time that count."""
        return min(now - self._used_at, LONGEST_SECONDS)

    def _question(self, now: float, step: float) -> Question | None:
        done = step - (self._begin or 0.0)
        if len(self._marks) < _EVIDENCE or now - self._asked_at < _APART_SECONDS:
            return None
        left = self._epochs.left()
        news = left is not None and self._asked_left is None
        if step < _GROWTH * self._asked_step and not news:
            return None
        # The last use was told a while ago; what came since is taken to be like it.
        work = self._work + self._cores * self._since(now)
        if work <= 0.0:
            return None
        self._asked_at, self._asked_step = now, step
        self._asked_left = left.steps if left is not None else None
        # The later half of the steps tells what one costs: the first ones compile, fill caches, read data.
        steps, cost = next(mark for mark in reversed(self._marks) if mark[0] <= done / 2)
        if work <= cost:
            steps, cost = self._marks[0]
        points, rest = tuple(self.losses.points()), self._epochs.rest(self.stopping)
        return Question(points, step, (work - cost) / (done - steps), left, self._goal, rest)


def answer(question: Question) -> Remaining | None:
    """Fit, and say what is left; None where nothing can be said. Takes milliseconds."""
    from headgate.analysis import curves

    fitted = curves.fit(question.points)
    steps, _ = first_end(fitted, question.step, question.epochs, question.goal, question.rest)
    if steps is None:
        return None
    asymptote, drops = None, []
    if fitted is not None:
        asymptote = fitted.asymptote
        ahead = [part * max(question.step, 1.0) for part in _AHEAD]
        middle = fitted.at([question.step, *(question.step + each for each in ahead)]).middle
        drops = [
            (each * question.cost, float(middle[0] - value)) for each, value in zip(ahead, middle[1:], strict=True)
        ]
    work, low, high = (each * question.cost for each in steps[:3])
    if not math.isfinite(high):
        return None
    ends = question.epochs is not None or question.goal is not None or question.rest is not None
    return Remaining(work, low, high, asymptote, tuple(drops), ends)


def _after(steps: float, estimate: Estimate) -> Estimate:
    """What is left so many steps later."""
    low, middle, high = (max(each - steps, 0.0) for each in (estimate.low, estimate.steps, estimate.high))
    return Estimate(middle, low, high, estimate.likely)


def first_end(
    fitted: Fit | None, step: float, epochs: Estimate | None, goal: float | None, rest: tuple[float, float] | None
) -> tuple[Estimate | None, str]:
    """Steps that are left after `step`, and what ends the job then: `epochs`, `goal` or `rest`.

    It is the first of its epochs, its goal and its own early stopping, as `Question` has them. An end that is hardly
    ever reached does not come before one that is. A job without any of them ends where its loss levels off.
    """
    ends = [(epochs, "epochs")] if epochs is not None else []
    if fitted is not None:
        since = max(step - fitted.step, 0.0)  # steps since the last loss that is known
        if goal is not None:
            ends.append((_after(since, fitted.to(goal)), "goal"))
        if rest is not None:
            ends.append((_after(since, fitted.to_plateau(*rest, passed=rest[0])), "rest"))
        if not ends:
            ends.append((_after(since, fitted.to_plateau(PATIENCE * step)), "rest"))
    return min(ends, key=lambda end: (end[0].likely < 0.5, end[0].steps), default=(None, "epochs"))
