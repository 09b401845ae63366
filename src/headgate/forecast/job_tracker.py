"""The single record of a live job: losses, epochs, core-seconds, steps, divergence and stall.

The controller keeps and feeds a `JobTracker` for each job. Policies, forecast, hang detection and
proofs read it. Times are passed in, so a simulation drives the same object. A report costs
microseconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from headgate.forecast.core_need import CoreNeed
from headgate.forecast.epoch_steps import EpochSteps, Estimate
from headgate.forecast.loss_history import Course, Losses
from headgate.forecast.remaining import Question, step_seconds
from headgate.forecast.step_time import ReportTime, step_time
from headgate.model.events import StepPace, Usage
from headgate.model.identifiers import JobId
from headgate.model.progress import Progress

_GROWTH = 1.1
"""A fit is due after this many times the steps of the last fit."""
_APART_SECONDS = 2.0
_EVIDENCE = 3
"""Reports required before a prediction, each with a tenth more steps: the first say little about
the cost of a step.
"""
_SAID_ERROR = 0.2
"""Relative error of the remaining time stated by a script."""
_REPORTS = 256
"""Number of latest steps used for the duration of a step."""
_KEPT_STEPS = 4096
_STALL_REPORTS = 6.0
_STALL_SECONDS = 30.0
_JUMP = 10.0
"""A gap between use readings counts for at most this many usual gaps: beyond it the clock
jumped.
"""
_READ_SECONDS = 1.0
"""Least usual gap: on a busy machine, readings once a second come seconds late."""
_FOLLOWING = 0.2
"""Weight of a new value in a moving average."""
_BUSY_CORES, _BUSY_BYTES = 0.05, 50e3
"""Activity of a task above idle: cores in use, and bytes a second on disks and networks."""
LEAST_STEPS = 3
"""Steps before the usual duration is known. Until then a job is late only if it does nothing at
all.
"""
_TIMES = 10.0
"""A job is late after this many times its longest step, which may have included an evaluation or a
checkpoint.
"""


class StepTimes:
    """The latest steps of a job with their report times (s). A repeated step is ignored; an earlier
    step starts over.
    """

    def __init__(self) -> None:
        self.times = array("d")
        self.steps = array("d")

    def add(self, now: float, step: float) -> None:
        steps = self.steps
        if steps and step <= steps[-1]:
            if step == steps[-1]:
                return
            del steps[:], self.times[:]
        elif len(steps) >= 2 * _KEPT_STEPS:
            del steps[:_KEPT_STEPS], self.times[:_KEPT_STEPS]
        self.times.append(now)
        steps.append(step)

    def since(self, at: float, most: int) -> list[tuple[float, float]]:
        """Time and step of at most `most` latest reports since a time."""
        first = max(bisect_left(self.times, at), len(self.times) - most)
        return list(zip(self.times[first:], self.steps[first:], strict=True))

    def mean_seconds(self) -> float:
        """Mean seconds of a step; 0: unknown."""
        if len(self.steps) < 2:
            return 0.0
        return (self.times[-1] - self.times[0]) / (self.steps[-1] - self.steps[0])


@dataclass(slots=True)
class StepClock:
    """The usual time between steps of an attempt, and the time of the latest.

    Args:
        at: Time (s) of the latest step, or of the beginning, moved forward by standstills.
        gap: Seconds of the latest step.
        longest: Seconds of the longest step.
        worked_at: When it was last active; None: there are no readings.
    """

    at: float
    step: float = -1
    reports: int = 0
    gap: float = 0.0
    longest: float = 0.0
    worked_at: float | None = None

    def worked(self, now: float, busy: bool) -> None:
        """Record a use reading: whether the job was active."""
        if busy or self.worked_at is None:
            self.worked_at = now

    def idle_for(self, now: float) -> float:
        """Seconds without a step and without activity; 0: unknown."""
        return now - max(self.at, self.worked_at) if self.worked_at is not None else 0.0

    def reported(self, now: float, step: float) -> None:
        """Record a reported step."""
        if step <= self.step:
            return
        self.gap = now - self.at
        if self.reports and self.gap > self.longest:  # the first gap includes the start
            self.longest = self.gap
        self.step, self.at = step, now
        self.reports += 1

    def is_late(self, now: float, least: float) -> bool:
        """Whether it made no step for far longer than usual, and for at least `least` seconds.
        Before a usual duration is known: whether it was inactive that long.
        """
        if self.reports < LEAST_STEPS:
            return self.idle_for(now) > least
        return now - self.at > max(least, _TIMES * self.longest)

    def stood_still(self, seconds: float) -> None:
        """Ignore a time in which the machine or the hub stood still."""
        self.at += seconds
        if self.worked_at is not None:
            self.worked_at += seconds


class ResourceTotals(NamedTuple):
    """Total use of a job: core-seconds, byte-seconds of memory, and bytes."""

    seconds: float = 0.0
    cpu: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    network: float = 0.0


class JobTracker:
    """What is known of a live job. Its owner feeds it; all others only read it.

    Cost and duration of a step are measured within a phase. A phase begins with the first report, a
    jump of the loss, repeated steps, and `other_tasks`. Losses and epochs continue.

    Attributes:
        losses: Losses of the job's metric.
        steps: The latest steps; reports if it has no steps.
        clock: The steps of this attempt, without pauses.
        core_need: What cores do to the steps of its present tasks.
        used: Totals over all attempts.
        jumps: How often its loss jumped, or its steps started over.
        stalled: It stopped reporting: no loss for 6 times its usual interval, at least 30 s,
            although it used enough CPU time for as many reports.
        stopping: Early stopping: epochs (or steps) without an improvement, and the least
            improvement; None: none known.

    Args:
        now: When it starts (s).
        goal: The value of its metric at which it ends; None: no goal.
        rising: Whether a greater value of that metric is better.
        began: When its script was started (s); None: unknown.
    """

    def __init__(
        self,
        now: float,
        *,
        goal: float | None = None,
        rising: bool = False,
        began: float | None = None,
    ) -> None:
        self._rising = rising
        self._goal = -goal if goal is not None and rising else goal
        self.used = ResourceTotals()
        self.jumps = 0
        self.course = Course()
        self.stopping: tuple[int, float] | None = None
        self.begin_attempt(now, resumes=False)
        if began is not None:
            self.began(began)

    def begin_attempt(self, now: float, *, resumes: bool) -> None:
        """Start a new attempt, which resumes from a checkpoint or repeats everything."""
        if not resumes:
            self.losses = Losses(rising=self._rising)
            self._epochs = EpochSteps()
            # a step, and the remaining seconds stated there by the script
            self._said: tuple[float, float] | None = None
        self.clock = StepClock(now)
        self.steps = StepTimes()
        self.core_need = CoreNeed()
        self.tells_steps = False
        self.stalled = False
        self._adversarial = False
        self._diverging: bool | None = False  # None: not judged yet
        self._begun = False
        self._used_at = self._asked_at = now
        self._used_every: float | None = None
        self._cores = 0.0
        self._reported_at: float | None = None
        self._reported_with = self.used.cpu
        self._gap: float | None = None  # usual seconds between losses
        self._effort = 0.0  # usual core-seconds between losses
        self._stalls_no_sooner = 0.0
        self._step: float | None = None  # None: a phase begins with the next report
        # First step of the phase, core-seconds until then, and its time.
        self._begin = self._spent = 0.0
        self._phase_at = self._latest = now
        # Steps since the phase began, each entry a tenth more than the one before, with their
        # core-seconds.
        self._marks = [(0.0, 0.0)]
        self._asked_step = 0.0
        self._asked_left: float | None = None

    def began(self, now: float) -> None:
        """Its script was started; with several tasks, the first counts."""
        if self._begun:
            return
        self._begun, self.clock.at = True, now
        if not self.losses.seen:  # losses from a checkpoint show where epochs begin
            self._epochs = EpochSteps(now)

    def other_tasks(self) -> None:
        """Its set of tasks changed, for example by a resize: the cost of a step may differ."""
        self._step = None
        self.core_need = CoreNeed()

    def stood_still(self, seconds: float) -> None:
        """Ignore a time in which its tasks were frozen."""
        self.clock.stood_still(seconds)
        self.steps.times = array("d", [at + seconds for at in self.steps.times])
        self._used_at += seconds
        self._phase_at += seconds
        self._latest += seconds
        self._stalls_no_sooner += seconds
        if self._reported_at is not None:
            self._reported_at += seconds

    # --- use
    # ----------------------------------------------------------------------------------------

    def use(
        self,
        now: float,
        cpu_cores: float,
        memory_bytes: float = 0.0,
        disk_bytes_per_second: float = 0.0,
        network_bytes_per_second: float = 0.0,
        seconds: float | None = None,
        pace: StepPace | None = None,
    ) -> None:
        """Add the mean use of all its tasks since the last call, which may be a moment ago: each
        task is reported separately.

        Args:
            now: Seconds.
            seconds: Time since the last reading, if known for sure; then a long gap is not a clock
                jump.
            pace: What its steps wait for; None: unknown.
        """
        gap, usual = now - self._used_at, self._used_every
        if seconds is not None:
            gap = min(gap, seconds)
        elif usual is not None:
            if gap > _JUMP * usual:  # there were no reports meanwhile either
                self._stalls_no_sooner = now + _STALL_SECONDS
                gap = _JUMP * usual
            # Weighted by time; otherwise short gaps within a burst of tasks would dominate.
            part = _FOLLOWING * min(gap / usual, 1.0)
            self._used_every = max(usual + part * (gap - usual), _READ_SECONDS)
        elif gap > 0.0:
            # a first reading may come long after the start, as for a container
            gap = min(gap, _JUMP * _READ_SECONDS)
            self._used_every = max(gap, _READ_SECONDS)
        if self._phase_at > self._used_at:  # its use until then was a guess
            before = min(self._phase_at - self._used_at, gap)
            self._spent += (cpu_cores - self._cores) * before
        spent, cpu, memory, disk, network = self.used
        self.used = ResourceTotals(
            spent + gap,
            cpu + cpu_cores * gap,
            memory + memory_bytes * gap,
            disk + disk_bytes_per_second * gap,
            network + network_bytes_per_second * gap,
        )
        self._used_at, self._cores = now, cpu_cores
        if pace is not None:
            self.core_need.used(gap, cpu_cores, pace)

    def core_seconds(self, now: float) -> float:
        """CPU time until now, extrapolated from the last reading."""
        longest = _JUMP * (self._used_every or _READ_SECONDS)
        return self.used.cpu + self._cores * min(now - self._used_at, longest)

    # --- reports
    # -----------------------------------------------------------------------------------

    def report(
        self, now: float, loss: float | None, progress: Progress, adversarial: bool = False
    ) -> None:
        """Add a report; without a loss or a step only its epoch has an effect.

        Args:
            now: When it came (s).
            loss: The value of the job's metric; None: no value.
            progress: The whole report.
            adversarial: Whether its losses are adversarial and do not show progress.
        """
        if progress.loss is not None:
            self.course.add(progress.loss)
        step = progress.epoch if progress.step is None else progress.step
        if step is not None:
            self.clock.reported(now, step)
        if loss is None and progress.step is None:
            return
        jumped = loss is not None and self._take_loss(now, loss, progress, adversarial)
        self.tells_steps = progress.step is not None
        at = float(progress.step if progress.step is not None else self.losses.seen)
        self.steps.add(now, at)
        if jumped or self._step is None or at < self._step:  # the cost of a step may have changed
            self._begin, self._spent, self._phase_at = at, self.core_seconds(now), now
            self._marks = [(0.0, 0.0)]
            self._asked_step, self._asked_left = 0.0, None
        self._step, self._latest = at, now
        if at - self._begin > _GROWTH * self._marks[-1][0]:
            self._marks.append((at - self._begin, self.core_seconds(now) - self._spent))
        # Without steps, reports are counted.
        reports = progress.count if progress.step is None else None
        self._epochs.add(
            round(at),
            progress.epoch,
            progress.epochs,
            progress.within,
            progress.steps,
            reports=reports,
            at=now,
        )
        if progress.remaining is not None:
            self._said = at, progress.remaining

    def _take_loss(self, now: float, loss: float, progress: Progress, adversarial: bool) -> bool:
        """Add a loss. Returns whether a new phase begins."""
        if self._reported_at is not None and now > self._reported_at:
            gap, effort = now - self._reported_at, self.used.cpu - self._reported_with
            part = 1.0 if self._gap is None else _FOLLOWING
            self._gap = gap if self._gap is None else self._gap + part * (gap - self._gap)
            self._effort += part * (effort - self._effort)
        self._reported_at, self._reported_with = now, self.used.cpu
        self._adversarial, self._diverging, self.stalled = adversarial, None, False
        jumped = self.losses.add(progress.step, loss, progress.count) and not adversarial
        self.jumps += jumped
        return jumped

    @property
    def reports(self) -> bool:
        """Whether it has reported a loss in this attempt."""
        return self._reported_at is not None

    @property
    def diverging(self) -> bool:
        """Whether its loss rises beyond its noise, or is no longer finite."""
        if self._diverging is None:
            losses = self.losses
            self._diverging = losses.is_no_number if self._adversarial else losses.diverging
        return self._diverging

    def stalls_at(self) -> float | None:
        """When it counts as stalled unless it reports before; None: unknown."""
        if self._reported_at is None or self._gap is None or self.stalled:
            return None
        return max(
            self._reported_at + max(_STALL_REPORTS * self._gap, _STALL_SECONDS),
            self._stalls_no_sooner,
        )

    def judge_stall(self, now: float) -> bool:
        """Mark it as stalled if its time has come, unless it had too little CPU to report."""
        stalls_at = self.stalls_at()
        if stalls_at is None or now < stalls_at:
            return False
        self.stalled = self.used.cpu - self._reported_with >= _STALL_REPORTS * self._effort
        self._stalls_no_sooner = now + max(self._gap or 0.0, _STALL_SECONDS)
        return self.stalled

    # --- conclusions
    # -------------------------------------------------------------------------------

    def due(self) -> Question | None:
        """A question about the latest report if a new answer is worthwhile: after the first epoch
        and then with each tenth more steps. Ask only if somebody needs the answer.
        """
        step, now = self._step, self._latest
        if step is None or not self._calls_for_answer(now, step):
            return None
        question = self.question(now)
        self._asked_at, self._asked_step = now, step
        self._asked_left = question.epochs.steps if question.epochs is not None else None
        return question

    def question(self, now: float) -> Question:
        """The inputs of a forecast now, whether or not it is worthwhile."""
        step, work = self._step or 0.0, self.core_seconds(now) - self._spent
        done = step - self._begin
        # The later half of the steps shows their cost: the first ones compile, fill caches, and
        # read data.
        steps, before = next(mark for mark in reversed(self._marks) if mark[0] <= done / 2)
        if work <= before:
            steps, before = self._marks[0]
        return Question(
            () if self._adversarial else tuple(self.losses.points()),
            step,
            (work - before) / (done - steps) if done > steps else 0.0,
            self._left(step),
            self._goal,
            self._epochs.rest(self.stopping),
            self.step_seconds(),
        )

    def way(self) -> tuple[float, float | None]:
        """The last step, and the number of steps in all by its epochs and steps; None: unknown."""
        step, left = self._step or 0.0, self._epochs.left()
        return step, step + left.steps if left is not None else None

    def _left(self, step: float) -> Estimate | None:
        """Steps left by its epochs and steps, or else by the remaining time that its script
        states.
        """
        seconds = self.step_seconds()
        if (left := self._epochs.left()) is not None or self._said is None or seconds is None:
            return left
        at, remaining = self._said
        steps = max(at + remaining / seconds - step, 0.0)
        return Estimate(steps, steps * (1 - _SAID_ERROR), steps * (1 + _SAID_ERROR))

    def step_seconds(self, fewest: float = 1.0) -> float | None:
        """Seconds of a step, from at least `fewest` steps: `step_seconds`."""
        return step_seconds(self._recent(), fewest)

    def step_time(self) -> ReportTime | None:
        """Duration of a step and its variation; None: unknown."""
        return step_time(self._recent())

    def _recent(self) -> list[tuple[float, float]]:
        return self.steps.since(self._phase_at, _REPORTS) if self._step is not None else []

    def _calls_for_answer(self, now: float, step: float) -> bool:
        if (
            len(self._marks) < _EVIDENCE
            or now - self._asked_at < _APART_SECONDS
            or self.core_seconds(now) <= self._spent
        ):
            return False
        return step >= _GROWTH * self._asked_step or (
            self._asked_left is None and self._epochs.left() is not None
        )


Trackers = Callable[[JobId], JobTracker | None]
"""Gives the controller's tracker of a job; None: there is none yet."""


def is_busy(usage: Usage) -> bool:
    """Whether a task is active."""
    moved = usage.disk_bytes_per_second + usage.network_bytes_per_second
    return usage.cpu_cores > _BUSY_CORES or moved > _BUSY_BYTES or usage.gpu_memory_bytes > 0.0
