"""Decide which jobs of a sweep end before their time, by one of three rules.

| rule | a job ends when | source |
|---|---|---|
| `asha` | it is not in the best quarter of those at a 64th, a 16th or a quarter of the way | Li et al., «A System for Massively Parallel Hyperparameter Tuning», MLSys 2020 |
| `median` | its best value is worse than the median of the ended jobs' means up to its step | Golovin et al., «Google Vizier», KDD 2017 |
| `predicted` | the band of its predicted end does not reach the best of the ended jobs | `curves` |

`asha` has the reduction factor 4 of Li et al. A job is compared with those that came to its rung
before it. It waits for no others, so the first three of a rung go on. The band of `predicted` is
widened by what the bands of ended jobs of the sweep missed: a schedule may bring a late drop.
"""  # noqa: E501  # a table

from __future__ import annotations

import math
from array import array
from bisect import bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from headgate.forecast.loss_history import Losses
from headgate.model.sweeps import StopEarly

_REDUCTION: Final = 4
_RUNGS: Final = (1 / 64, 1 / 16, 1 / 4)
_FEWEST_VALUES: Final = 5
"""Fewest values of a job that is judged: the level is the mean of as many."""
_FEWEST_ENDED: Final = 3
"""Fewest ended jobs with which another is compared."""
_GROWTH: Final = 1.1
"""A job is judged again after this many times its steps."""
_LEAST_WAY: Final = 0.1
"""Fraction of the way before which no end is predicted."""
_IN_A_ROW: Final = 3
"""Predictions in a row after which a job ends."""
_WAYS: Final = tuple(_LEAST_WAY * _GROWTH**power for power in range(25))
"""Fractions of the way. At each it is known how far ended jobs missed their bands."""


class Verdict(NamedTuple):
    """Why a job ends early. Values are those of the metric.

    Args:
        value: The best that it has, or can reach by its band; NaN: its values are no numbers.
        best: What it would have had to reach.
        step: Its step.
        compared: Number of jobs with which it was compared.
    """

    value: float
    best: float
    step: float
    compared: int


class EndQuestion(NamedTuple):
    """What the end of a job is predicted from: points as of `curves.fit`, and its steps in all."""

    points: tuple[tuple[float, float, float], ...]
    length: float


def best_end(question: EndQuestion) -> float | None:
    """The best last value of a job by its 90 % band, noise included. Takes milliseconds.

    Returns:
        None: there are too few values.
    """
    from headgate.forecast import curves

    fitted = curves.fit(question.points)
    if fitted is None:
        return None
    return float(fitted.at([question.length]).low[0]) - fitted.noise


class _Mark(NamedTuple):
    """The best end predicted at a fraction of the way."""

    way: float
    end: float


@dataclass(frozen=True, slots=True)
class PastTrial:
    """What the others of a sweep are compared with, of a job that has ended; of values, less is
    better.

    Args:
        step: Its last step.
        level: Its last level; None: it did not come to its own end.
        rungs: Number of each rung that it was judged at, and its level then.
        means: Steps, and the means of its values up to them.
        marks: Fractions of its way, and the ends predicted there.
    """

    step: float
    level: float | None
    rungs: tuple[tuple[int, float], ...] = ()
    means: tuple[tuple[float, float], ...] = ()
    marks: tuple[tuple[float, float], ...] = ()


class _Means:
    """The mean of a job's values up to each of some steps."""

    def __init__(self, means: tuple[tuple[float, float], ...] = ()) -> None:
        self._steps = array("d", (step for step, _ in means))
        self._means = array("d", (mean for _, mean in means))

    def all(self) -> tuple[tuple[float, float], ...]:
        """Steps and means."""
        return tuple(zip(self._steps, self._means))

    def add(self, step: float, mean: float) -> None:
        self._steps.append(step)
        self._means.append(mean)

    def at(self, step: float) -> float | None:
        """The mean up to a step; None: before the first."""
        place = bisect_right(self._steps, step)
        return self._means[place - 1] if place else None


@dataclass(slots=True)
class _RunningTrial:
    """What is known of a job that runs; of values, less is better.

    Args:
        losses: Its values.
        length: Steps that it makes in all.
        best: The best level so far.
        judged_at: Step of the last judgement.
        rungs: Number of each rung that it was judged at, and its level then.
        means: Means of all values up to the steps at which it was judged.
        marks: Its predictions.
        hopeless: Predictions in a row that did not reach the best.
    """

    losses: Losses
    length: float | None = None
    best: float = math.inf
    total: float = 0.0
    count: int = 0
    judged_at: float = 0.0
    rungs: list[tuple[int, float]] = field(default_factory=list)
    means: _Means = field(default_factory=_Means)
    marks: list[_Mark] = field(default_factory=list)
    hopeless: int = 0


class SweepStopper:
    """Follows the jobs of a sweep. Each report costs microseconds.

    Args:
        stop_early: The rule.
        rising: Whether a greater value is better.
    """

    def __init__(self, stop_early: StopEarly, *, rising: bool = False) -> None:
        self._rule = stop_early.rule
        self._keep = stop_early.keep
        self._rising = rising
        self._trials: dict[str, _RunningTrial] = {}
        # levels in order, of jobs that ended and of those that came to each rung
        self._ended: list[float] = []
        self._rungs: tuple[list[float], ...] = tuple([] for _ in _RUNGS)
        self._means: list[_Means] = []
        self._longest: float | None = None
        # of ended jobs, from each of `_WAYS` on: those with predictions, and the greatest miss
        self._predicted = [0] * len(_WAYS)
        self._misses = [0.0] * len(_WAYS)

    def report(
        self,
        job: str,
        step: float | None,
        value: float,
        count: int = 1,
        length: float | None = None,
    ) -> bool:
        """Add a value of a job.

        Args:
            job: Its name.
            step: Its step; None: it counts none, so values are counted.
            value: Any number, including NaN.
            count: Number of values in this mean.
            length: Steps that it makes in all; None: unknown.

        Returns:
            Whether it is time to judge the job.
        """
        trial = self._trials.get(job)
        if trial is None:
            trial = self._trials[job] = _RunningTrial(Losses(rising=self._rising))
        trial.length = length if length is not None else trial.length
        losses = trial.losses
        losses.add(step, value, count)
        if losses.is_no_number:
            return True
        if not math.isfinite(value):
            return False
        trial.best = min(trial.best, losses.level())
        trial.total += (-value if self._rising else value) * count
        trial.count += count
        if losses.seen < _FEWEST_VALUES or losses.step < _GROWTH * trial.judged_at:
            return False
        trial.judged_at = losses.step
        if self._rule == "median":
            trial.means.add(losses.step, trial.total / trial.count)
        return True

    def end(self, job: str) -> PastTrial | None:
        """A job came to its own end: others are compared with it.

        Returns:
            What `restore` of another stopper needs; None: nothing is known of it.
        """
        trial = self._trials.pop(job, None)
        if trial is None or trial.losses.is_no_number or not trial.count:
            return None
        past = PastTrial(
            trial.losses.step,
            trial.losses.level(),
            tuple(trial.rungs),
            trial.means.all(),
            tuple((mark.way, mark.end) for mark in trial.marks),
        )
        self._compare(past)
        return past

    def forget(self, job: str) -> PastTrial | None:
        """A job failed or was ended: its end is unknown. Returns as `end`."""
        trial = self._trials.pop(job, None)
        if trial is None or not trial.rungs:
            return None
        return PastTrial(trial.losses.step, None, tuple(trial.rungs))

    def restore(self, past: PastTrial) -> None:
        """Compare others with a job that ended under another stopper."""
        for rung, level in past.rungs:
            if rung <= len(self._rungs):
                insort(self._rungs[rung - 1], level)
        self._compare(past)

    def _compare(self, past: PastTrial) -> None:
        level = past.level
        if level is None:
            return
        insort(self._ended, level)
        self._longest = max(self._longest or 0.0, past.step)
        if self._rule == "median":
            self._means.append(_Means(past.means))
        for place, way in enumerate(_WAYS):
            end = next((end for marked, end in past.marks if marked * _GROWTH >= way), None)
            if end is not None:
                self._predicted[place] += 1
                self._misses[place] = max(self._misses[place], end - level)

    def question(self, job: str) -> EndQuestion | None:
        """What is to be predicted before `judge`; None: nothing."""
        trial = self._trials.get(job)
        if self._rule != "predicted" or trial is None or trial.losses.is_no_number:
            return None
        length = self._length(trial)
        if length is None or not _LEAST_WAY <= trial.losses.step / length < 1.0:
            return None
        return EndQuestion(tuple(trial.losses.points()), length)

    def judge(self, job: str, end: float | None = None) -> Verdict | None:
        """Why a job ends now; None: it goes on.

        Args:
            job: Its name.
            end: The `best_end` of its `question`, if there is one.
        """
        trial = self._trials.get(job)
        if trial is None:
            return None
        if trial.losses.is_no_number:
            return self._verdict(trial, math.nan, sorted([*self._levels(trial), *self._ended]))
        if self._rule == "asha":
            return self._judge_rung(trial)
        if self._rule == "median":
            return self._judge_median(trial)
        return self._judge_end(trial, end) if end is not None else None

    def _levels(self, trial: _RunningTrial) -> Iterator[float]:
        """The levels of the other jobs that run."""
        for other in self._trials.values():
            if other is not trial and other.count and not other.losses.is_no_number:
                yield other.losses.level()

    def _length(self, trial: _RunningTrial) -> float | None:
        """Steps of a job; if it does not say, those of the longest that has ended."""
        return trial.length or self._longest or None

    def _judge_rung(self, trial: _RunningTrial) -> Verdict | None:
        length = self._length(trial)
        rung = bisect_right(_RUNGS, trial.losses.step / length) if length is not None else 0
        if rung <= (trial.rungs[-1][0] if trial.rungs else 0):
            return None
        level, at_rung = trial.losses.level(), self._rungs[rung - 1]
        trial.rungs.append((rung, level))
        insort(at_rung, level)
        go_on = len(at_rung) // _REDUCTION
        return self._verdict(trial, level, at_rung, go_on) if go_on else None

    def _judge_median(self, trial: _RunningTrial) -> Verdict | None:
        step = trial.losses.step
        means = sorted(mean for ended in self._means if (mean := ended.at(step)) is not None)
        if len(means) < _FEWEST_ENDED:
            return None
        return self._verdict(trial, trial.best, means, len(means) // 2 + 1)

    def _judge_end(self, trial: _RunningTrial, end: float) -> Verdict | None:
        length = self._length(trial)
        if length is None:
            return None
        way = trial.losses.step / length
        trial.marks.append(_Mark(way, end))
        place = bisect_right(_WAYS, way) - 1
        if self._predicted[place] < _FEWEST_ENDED:
            return None
        verdict = self._verdict(trial, end - self._misses[place], self._ended)
        trial.hopeless = trial.hopeless + 1 if verdict is not None else 0
        return verdict if trial.hopeless >= _IN_A_ROW else None

    def _verdict(
        self, trial: _RunningTrial, value: float, others: list[float], best: int = 0
    ) -> Verdict | None:
        """The verdict on a value, which is to be among the `best` of others, or those to keep.

        Args:
            others: Values of other jobs, in order.
        """
        best = max(best, self._keep)
        if len(others) < best:
            return None
        reached = others[best - 1]
        if value <= reached:
            return None
        sign = -1.0 if self._rising else 1.0
        return Verdict(sign * value, sign * reached, trial.losses.step, len(others))
