"""The one record of a live job: losses, epochs, core-seconds, steps, divergence and stall.

The controller keeps a `JobTracker` of each job and feeds it; policies, forecast, hang detection
and proofs read it. Times are given, so a simulation drives the same object. A report costs
microseconds.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from headgate.forecast.loss_history import Course, EpochSteps, Estimate, Losses
from headgate.forecast.remaining import Question, step_seconds
from headgate.forecast.step_time import ReportTime, step_time
from headgate.model.events import Progress, Usage
from headgate.model.identifiers import JobId

_GROWTH = 1.1
"""A fit is due when a job has done so many times the steps of the last one."""
_APART_SECONDS = 2.0
_EVIDENCE = 3
"""Reports, each with a tenth more steps than the one before, until something is said: the first
tell next to nothing of what a step costs.
"""
_SAID_ERROR = 0.2
"""Of the time that a script says is left."""
_REPORTS = 256
"""Of the latest steps, that tell how long one takes."""
_KEPT_STEPS = 4096
_STALL_REPORTS = 6.0
_STALL_SECONDS = 30.0
_JUMP = 10.0
"""Times the usual gap between two readings of what a job uses, more than which no gap counts for:
the clock jumped.
"""
_READ_SECONDS = 1.0
"""The usual gap at the least: what is read once a second comes seconds late on a busy machine."""
_FOLLOWING = 0.2
"""How far what is usual moves towards what is new."""
_BUSY_CORES, _BUSY_BYTES = 0.05, 50e3
"""What a task does that is not idle: cores in use, and bytes a second on disks and networks."""
LEAST_STEPS = 3
"""Steps before what is usual is known. Until then a job is late that does nothing at all."""
_TIMES = 10.0
"""A job is late after so many times its longest step so far, which an evaluation or a checkpoint
may have been.
"""


class StepTimes:
    """The latest steps of a job, and when (s) each was reported. A step that comes again is none; a
    step before the last one begins anew.
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
        """Time and step of the latest reports, at most so many, none before a time."""
        first = max(bisect_left(self.times, at), len(self.times) - most)
        return list(zip(self.times[first:], self.steps[first:], strict=True))

    def mean_seconds(self) -> float:
        """Mean seconds of a step; 0: not known."""
        if len(self.steps) < 2:
            return 0.0
        return (self.times[-1] - self.times[0]) / (self.steps[-1] - self.steps[0])


@dataclass(slots=True)
class StepClock:
    """How long an attempt usually takes from one step to the next, and since when it made none.

    Args:
        at: When it made its latest step, or began (s); without the time it stood still.
        gap: Seconds that the latest step took.
        longest: Seconds that the longest took.
        worked_at: When it was last seen to do anything; None: what it does is not read.
    """

    at: float
    step: float = -1
    reports: int = 0
    gap: float = 0.0
    longest: float = 0.0
    worked_at: float | None = None

    def worked(self, now: float, busy: bool) -> None:
        """What it does was read: whether it did anything."""
        if busy or self.worked_at is None:
            self.worked_at = now

    def idle_for(self, now: float) -> float:
        """Seconds without a step and without any work; 0 if that is not known."""
        return now - max(self.at, self.worked_at) if self.worked_at is not None else 0.0

    def reported(self, now: float, step: float) -> None:
        """It has come to this step."""
        if step <= self.step:
            return
        self.gap = now - self.at
        if self.reports and self.gap > self.longest:  # the first one has its start in it
            self.longest = self.gap
        self.step, self.at = step, now
        self.reports += 1

    def is_late(self, now: float, least: float) -> bool:
        """Whether it made no step for far longer than usual, and for `least` seconds. Before
        anything is usual: whether it did nothing at all for so long.
        """
        if self.reports < LEAST_STEPS:
            return self.idle_for(now) > least
        return now - self.at > max(least, _TIMES * self.longest)

    def stood_still(self, seconds: float) -> None:
        """The machine or the hub stood still for so long: nobody made a step then."""
        self.at += seconds
        if self.worked_at is not None:
            self.worked_at += seconds


class ResourceTotals(NamedTuple):
    """Totals of what a job used: core-seconds, byte-seconds of memory, and bytes."""

    seconds: float = 0.0
    cpu: float = 0.0
    memory: float = 0.0
    disk: float = 0.0
    network: float = 0.0


class JobTracker:
    """What is known of a live job. Those who are handed one read it, and leave feeding it to its
    owner.

    What a step costs and how long it takes are measured since a phase began. One begins with the
    first report, with a jump of the loss, with steps that are done again, and where `other_tasks`
    says so. Losses and epochs stay.

    Attributes:
        losses: Those of the metric that the job is judged by.
        course: Its losses as they were reported, over all attempts, to be shown.
        steps: The latest steps; reports, where it tells no steps.
        clock: The steps of this attempt, without pauses.
        used: Totals over all attempts.
        jumps: How often its loss came to another level, or its steps were done again from the
            beginning.
        stalled: It has ceased to report: no loss for 6 times its usual interval, and 30 s at least,
            though it used the CPU time that it takes for as many reports.
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
        """Another attempt begins, which goes on from a checkpoint or does all again."""
        if not resumes:
            self.losses = Losses(rising=self._rising)
            self._epochs = EpochSteps()
            # a step, and the seconds that the script said are left at it
            self._said: tuple[float, float] | None = None
        self.clock = StepClock(now)
        self.steps = StepTimes()
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
        self._gap: float | None = None  # usual, between two losses: seconds
        self._effort = 0.0  # and core-seconds
        self._stalls_no_sooner = 0.0
        self._step: float | None = None  # None: a phase begins with the next report
        # Since the phase began: the step that it began with, the core-seconds until then, and when.
        self._begin = self._spent = 0.0
        self._phase_at = self._latest = now
        # Steps done since the phase began, each a tenth more than the one before, and the
        # core-seconds they took.
        self._marks = [(0.0, 0.0)]
        self._asked_step = 0.0
        self._asked_left: float | None = None

    def began(self, now: float) -> None:
        """Its script was started; of several tasks the first one counts."""
        if self._begun:
            return
        self._begun, self.clock.at = True, now
        if not self.losses.seen:  # those of a checkpoint tell where epochs begin
            self._epochs = EpochSteps(now)

    def other_tasks(self) -> None:
        """Other tasks train it from now on, as after a resize: a step may cost something else."""
        self._step = None

    # --- what it uses -----------------------------------------------------------------------------

    def use(
        self,
        now: float,
        cpu_cores: float,
        memory_bytes: float = 0.0,
        disk_bytes_per_second: float = 0.0,
        network_bytes_per_second: float = 0.0,
        seconds: float | None = None,
    ) -> None:
        """Take in what all of it used on average since the last time, which may be a moment ago: of
        several tasks each is told.

        Args:
            seconds: Since the last time, where that is known for sure: no jump of a clock then.
        """
        gap, usual = now - self._used_at, self._used_every
        if seconds is not None:
            gap = min(gap, seconds)
        elif usual is not None:
            if gap > _JUMP * usual:  # nor was anything heard of it meanwhile
                self._stalls_no_sooner = now + _STALL_SECONDS
                gap = _JUMP * usual
            # By time, or else the many short gaps within a burst of tasks would pass for the usual
            # ones.
            part = _FOLLOWING * min(gap / usual, 1.0)
            self._used_every = max(usual + part * (gap - usual), _READ_SECONDS)
        elif gap > 0.0:
            # it may have come long after its arrival, as a container does
            gap = min(gap, _JUMP * _READ_SECONDS)
            self._used_every = max(gap, _READ_SECONDS)
        if self._phase_at > self._used_at:  # what it used until then was a guess
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

    def core_seconds(self, now: float) -> float:
        """CPU time until now: since the last reading it is taken to use what it used then."""
        longest = _JUMP * (self._used_every or _READ_SECONDS)
        return self.used.cpu + self._cores * min(now - self._used_at, longest)

    # --- what it tells ----------------------------------------------------------------------------

    def report(
        self, now: float, loss: float | None, progress: Progress, adversarial: bool = False
    ) -> None:
        """Take in a report; one with neither a loss nor a step tells nothing.

        Args:
            now: Seconds, when it came.
            loss: The value of the job's metric; None: it has none.
            progress: All else of it.
            adversarial: Its losses rise and fall with each other, and tell nothing of how far it
                is.
        """
        if progress.loss is not None:
            self.course.add(progress.loss)
        if loss is None and progress.step is None:
            return
        jumped = loss is not None and self._take_loss(now, loss, progress, adversarial)
        self.tells_steps = progress.step is not None
        if progress.step is not None:
            self.clock.reported(now, progress.step)
        at = float(progress.step if progress.step is not None else self.losses.seen)
        self.steps.add(now, at)
        if jumped or self._step is None or at < self._step:  # what a step costs may be another now
            self._begin, self._spent, self._phase_at = at, self.core_seconds(now), now
            self._marks = [(0.0, 0.0)]
            self._asked_step, self._asked_left = 0.0, None
        self._step, self._latest = at, now
        if at - self._begin > _GROWTH * self._marks[-1][0]:
            self._marks.append((at - self._begin, self.core_seconds(now) - self._spent))
        # Where a job tells no steps, reports are counted.
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
        """Take in a loss; whether a new phase begins with it."""
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
        """Whether its loss rises beyond its noise, or is no number any more."""
        if self._diverging is None:
            losses = self.losses
            self._diverging = losses.is_no_number if self._adversarial else losses.diverging
        return self._diverging

    def stalls_at(self) -> float | None:
        """When it is taken for stalled if it does not report before; None where that cannot be
        told.
        """
        if self._reported_at is None or self._gap is None or self.stalled:
            return None
        return max(
            self._reported_at + max(_STALL_REPORTS * self._gap, _STALL_SECONDS),
            self._stalls_no_sooner,
        )

    def judge_stall(self, now: float) -> bool:
        """Take it for stalled if its time has come, unless it had too little of the CPU to
        report. Whether it has stalled now; the tracker's owner calls this.
        """
        stalls_at = self.stalls_at()
        if stalls_at is None or now < stalls_at:
            return False
        self.stalled = self.used.cpu - self._reported_with >= _STALL_REPORTS * self._effort
        self._stalls_no_sooner = now + max(self._gap or 0.0, _STALL_SECONDS)
        return self.stalled

    # --- what follows -----------------------------------------------------------------------------

    def due(self) -> Question | None:
        """A question as of the latest report, where an answer is worth its time: after the first
        epoch and then with each tenth more steps. To be asked if anybody would go by an answer.
        """
        step, now = self._step, self._latest
        if step is None or not self._calls_for_answer(now, step):
            return None
        question = self.question(now)
        self._asked_at, self._asked_step = now, step
        self._asked_left = question.epochs.steps if question.epochs is not None else None
        return question

    def question(self, now: float) -> Question:
        """What a forecast follows from as of now, whether or not it is worth its time."""
        step, work = self._step or 0.0, self.core_seconds(now) - self._spent
        done = step - self._begin
        # The later half of the steps tells what one costs: the first ones compile, fill caches,
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

    def _left(self, step: float) -> Estimate | None:
        """Steps left, by what is told of its epochs and steps, or else by the time that its script
        says is left.
        """
        seconds = self.step_seconds()
        if (left := self._epochs.left()) is not None or self._said is None or seconds is None:
            return left
        at, remaining = self._said
        steps = max(at + remaining / seconds - step, 0.0)
        return Estimate(steps, steps * (1 - _SAID_ERROR), steps * (1 + _SAID_ERROR))

    def step_seconds(self, fewest: float = 1.0) -> float | None:
        """How long a step takes, by at least so many: `step_seconds`."""
        return step_seconds(self._recent(), fewest)

    def step_time(self) -> ReportTime | None:
        """How long a step takes, and how that varies; None: not known."""
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
"""What the controller knows of a job; None: nothing yet."""


def is_busy(usage: Usage) -> bool:
    """Whether a task does anything."""
    moved = usage.disk_bytes_per_second + usage.network_bytes_per_second
    return usage.cpu_cores > _BUSY_CORES or moved > _BUSY_BYTES or usage.gpu_memory_bytes > 0.0
