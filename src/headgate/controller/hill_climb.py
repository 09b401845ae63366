"""Find how many jobs of a run at once bring the most steps a second together: add one, and look.

While jobs are few, one more makes the next level; while it costs the others little, a quarter more.
Later it looks again, around the number that was best: first at one more, then at one fewer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from headgate.controller import side_by_side
from headgate.controller.records import JobRecord
from headgate.model.identifiers import JobId

SETTLE_SECONDS = 3.0
"""Time from the first step of the job that came last to the measurement of a level."""
ON_GPU_SECONDS = side_by_side.SETTLE_SECONDS + len(side_by_side.SIDE_BY_SIDE) * (
    side_by_side.WARM_SECONDS + side_by_side.WINDOW_SECONDS
)
"""The same on GPUs, where it is first measured whether jobs take turns."""
WINDOW_SECONDS, LONGEST_SECONDS = 10.0, 60.0
LEAST_STEPS = 5
"""Least steps, or ends of jobs that tell no step, for each running job in a window."""
_MORE, _PART, _NOISE = 0.05, 0.2, 0.03
"""Least gain of a higher level: this much, or this part of what jobs that slow nobody would bring,
if that is less; but more than the noise.
"""
_LITTLE_LOST = 0.8
AGAIN_SECONDS, SOON_SECONDS = 600.0, 60.0
"""When it looks again: at any rate, and if what runs beside the jobs has changed."""


@dataclass(frozen=True, slots=True)
class MeasuredLevel:
    """A number of jobs at once, and the steps a second that they made together."""

    jobs: int
    rate: float


class HillClimb:
    """How many jobs of a run may run at once, and the measurement of that.

    Args:
        best: How many were best in an earlier run; None: not measured.

    Attributes:
        most: How many may run now. None: neither steps nor ends tell, so that any number may that
            the cores are for.
        settled: Whether it is measured.
        decided: How many were best when it last settled; None: it has not settled, or as `most`.
        best, next: What was measured at the best level, and at the first that brought no more.
    """

    def __init__(self, best: int | None) -> None:
        self.most: int | None = best or 1
        self.settled = best is not None
        self.decided = best
        self.best: MeasuredLevel | None = None
        self.next: MeasuredLevel | None = None
        self._running: dict[JobId, JobRecord] = {}
        self._left: list[tuple[float, JobRecord]] = []
        self._since = 0.0  # of this level
        self._began: float | None = None
        self._settled_at: float | None = None
        self._beside: object = None
        self._again = self._fewer = False

    def started(self, now: float, job: JobRecord) -> None:
        """A job of the run has started."""
        self._running[job.id] = job
        if self._began is None:
            self._since = now

    def ended(self, now: float, job: JobRecord) -> None:
        """A job of the run has ended."""
        if self._running.pop(job.id, None) is not None:
            self._left.append((now, job))

    def look(self, now: float, beside: object = None) -> bool:
        """Go on with the measurement. Returns whether another number of jobs may run.

        Args:
            now: Seconds on the run's clock.
            beside: What runs on which cores; another value may mean another best number.
        """
        if self.settled:
            self._look_again(now, beside)
            return False
        self._beside = beside
        if len(self._running) != self.most:
            self._began = None  # too few fit, or none is left, or one too many ends soon
            self._left.clear()
            return False
        if self._began is None:
            return self._begin(now)
        seconds = now - self._began
        if seconds < WINDOW_SECONDS:
            return False
        rate, least = self._rate(self._began, now)
        if least >= LEAST_STEPS:
            return self._conclude(now, MeasuredLevel(len(self._running), rate))
        return seconds >= LONGEST_SECONDS and self._give_up(now)

    def _look_again(self, now: float, beside: object) -> None:
        if self._settled_at is None:  # it is known from an earlier run
            self._settled_at, self._beside = now, beside
        seconds = now - self._settled_at
        changed = beside != self._beside and seconds >= SOON_SECONDS
        if self.most is not None and (changed or seconds >= AGAIN_SECONDS):
            self.settled, self.best, self.next = False, None, None
            self._again, self._fewer = True, False
            self._began, self._since = None, now
            self._left.clear()

    def _begin(self, now: float) -> bool:
        steps = [job for job in self._running.values() if job.worked]
        if len(steps) < len(self._running) and not self._left:
            return now - self._since >= LONGEST_SECONDS and self._give_up(now)
        on_gpu = any(job.slots for job in self._running.values())
        self._began = now + (ON_GPU_SECONDS if on_gpu else SETTLE_SECONDS)
        return False

    def _rate(self, begin: float, end: float) -> tuple[float, float]:
        """The rate in a window, and the steps of the job that made fewest."""
        jobs = [*self._running.values()]
        ended = [job for at, job in self._left if at >= begin]
        if not any(job.worked for job in [*jobs, *ended]):
            ends = len(ended)
            return ends / (end - begin), ends / len(jobs)
        rates = [_steps_a_second(job, begin, end) for job in jobs]
        total = sum(rates) + sum(_steps_a_second(job, begin, end) for job in ended)
        least = min(rates) if not ended else total / len(jobs)
        return total, least * (end - begin)

    def _conclude(self, now: float, level: MeasuredLevel) -> bool:
        before, step = self.best, 1
        if self._fewer and before is not None:
            if _brings_more(level, before):
                return self._settle(now, before.jobs)
            self.next = before
            return self._try(now, level, level.jobs - 1)
        if before is not None and not _brings_more(before, level):
            self.next, self._fewer = level, self._again
            return self._try(now, before, before.jobs - 1 if self._again else 0)
        if before is not None:
            self._again = False
            if level.rate / before.rate - 1 >= _LITTLE_LOST * (level.jobs / before.jobs - 1):
                step = max(level.jobs // 4, 1)
        return self._try(now, level, level.jobs + step)

    def _try(self, now: float, best: MeasuredLevel, jobs: int) -> bool:
        """Measure so many jobs next; 0: the best is found."""
        self.best = best
        if not jobs:
            return self._settle(now, best.jobs)
        self.most, self._began, self._since = jobs, None, now
        self._left.clear()
        return True

    def _settle(self, now: float, most: int | None) -> bool:
        self.most = self.decided = most
        self.settled, self._settled_at = True, now
        return True

    def _give_up(self, now: float) -> bool:
        return self._settle(now, self.best.jobs if self.best is not None else self.decided)


def _brings_more(fewer: MeasuredLevel, more: MeasuredLevel) -> bool:
    gain = more.rate / fewer.rate - 1
    return gain >= max(min(_MORE, _PART * (more.jobs / fewer.jobs - 1)), _NOISE)


def _steps_a_second(job: JobRecord, begin: float, end: float) -> float:
    """The rate of a job in a window, between its reports if it ran all the time."""
    if job.tracker is None:
        return 0.0
    times, steps = job.tracker.steps.times, job.tracker.steps.steps
    first, last = bisect_left(times, begin), bisect_right(times, end) - 1
    if last <= first:
        return 0.0
    came_or_left = first == 0 or not job.tasks
    seconds = end - begin if came_or_left else times[last] - times[first]
    return (steps[last] - steps[first]) / seconds
