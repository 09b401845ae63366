"""What policies by weight have in common: what is known of each job, and when to look again."""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from headgate.analysis.losses import Losses
from headgate.errors import UsageError
from headgate.events import JobId
from headgate.policies.base import Arrived, Change, Decision, Left, Policy, Predicted, Reported, Used
from headgate.policies.granting import FLOOR, Grants
from headgate.shares import Share

ITVAL_SECONDS = 10.0
"""Between two rounds."""
_BACK_OFF = 8.0
"""Rounds that change nothing come further and further apart, up to so many times as far."""
_NEWS = 0.25
"""A prediction that differs from what was believed by more than this part is acted upon at once."""
_TYPICAL_WORK = 60.0
"""Core-seconds that a job is taken to need where nothing is known of it or any other."""
_REMEMBERED = 20
"""Jobs that ended of which it is remembered."""
_HANDED_ON = 1.0 / 8.0
"""Of what a job of an order may have, to those after it: seldom does one keep all cores busy all the time."""
_STALL_REPORTS = 6.0
_STALL_SECONDS = 30.0


@dataclass(slots=True, eq=False)
class Present:
    """A job that is there.

    Args:
        cores_limit: Most cores it may use.
        arrived: When it started.
        number: How many had arrived before it.
        attained: CPU time it was served with, core-seconds.
        used: The latest that it was said to use.
        diverging: Its loss rises beyond its noise, or is no number any more.
        stalled: It has ceased to report: no loss for 6 times its usual interval, and 30 s at least.
        prediction: The latest, and what had been attained when it came.
        typical: What jobs here need, core-seconds.
    """

    id: JobId
    priority: float
    cores_limit: float | None
    arrived: float
    number: int
    losses: Losses = field(default_factory=Losses)
    attained: float = 0.0
    used: Used | None = None
    diverging: bool = False
    stalled: bool = False
    prediction: tuple[Predicted, float] | None = None
    typical: float = _TYPICAL_WORK
    _used_at: float = 0.0
    _reported_at: float | None = None
    _gap: float | None = None

    def __post_init__(self) -> None:
        self._used_at = self.arrived

    @property
    def done_since(self) -> float:
        """Core-seconds attained since the latest prediction."""
        return self.attained - self.prediction[1] if self.prediction is not None else 0.0

    def remaining(self) -> float:
        """Core-seconds left, the likeliest.

        A job of which nothing was predicted is taken to need what is typical. Once it has had that, the likeliest is
        that it lasts as long again as it has (Gott, Nature 1993).
        """
        if self.prediction is None:
            return max(self.typical - self.attained, self.attained)
        return self._left(self.prediction[0].work)

    def _left(self, said: float) -> float:
        # What lasts longer than was predicted is about to end, or was predicted wrongly: not to be told, so not zero.
        return max(said - self.done_since, 0.05 * self.done_since)

    def remaining_in_words(self) -> str:
        """What is left of it, or what it has had where nothing was predicted."""
        if self.prediction is None:
            return f"nothing predicted yet, {self.attained:.3g} core-seconds had"
        said = self.prediction[0]
        left, low, high = (self._left(each) for each in (said.work, said.low, said.high))
        return f"{left:.3g} core-seconds left ({low:.3g} to {high:.3g})"

    def most_cores(self, cores: float) -> float:
        """That it may use of the cores there are."""
        return min(cores, self.cores_limit) if self.cores_limit is not None else cores

    def use(self, now: float, change: Used) -> None:
        """Take in what it used since the last time."""
        self.attained += change.cpu_cores * (now - self._used_at)
        self.used, self._used_at = change, now

    def report(self, now: float, change: Reported) -> bool:
        """Take in a report; whether it calls for acting at once: another phase, divergence or its end, an end of a
        stall."""
        if self._reported_at is not None and now > self._reported_at:
            gap = now - self._reported_at
            self._gap = gap if self._gap is None else self._gap + 0.2 * (gap - self._gap)
        self._reported_at = now
        jumped = self.losses.add(change.step, change.loss, change.count)
        before, self.diverging = (self.diverging, self.stalled), self.losses.diverging
        self.stalled = False
        if jumped:
            self.prediction = None
        return jumped or before != (self.diverging, self.stalled)

    def stalls_at(self) -> float | None:
        """When it is taken for stalled if it does not report before; None where that cannot be told."""
        if self._reported_at is None or self._gap is None or self.stalled:
            return None
        return self._reported_at + max(_STALL_REPORTS * self._gap, _STALL_SECONDS)


class WeighingPolicy(Policy):
    """A policy that divides the CPU by weights, in rounds; at once when a job arrives or leaves, begins to diverge or
    stalls, when its loss jumps, and when a prediction is news. Rounds that change nothing come further apart.

    Args:
        itval: Seconds between rounds.
        floor: Least part of an equal share that a job is left.

    Raises:
        UsageError: An option makes no sense.
    """

    predicts = True

    def __init__(self, *, itval: float = ITVAL_SECONDS, floor: float = FLOOR) -> None:
        check(self.name, "itval", itval, itval > 0, "a positive number of seconds")
        check(self.name, "floor", floor, 0 < floor <= 1, "above 0, at most 1: a part of an equal share")
        self.itval = itval
        self._floor = floor
        self._period = itval
        self._grants = Grants(floor)
        self._jobs: dict[JobId, Present] = {}
        self._number = 0
        self._round_at: float | None = None
        self._settle_at: float | None = None
        self._stall_at: float | None = None  # no job stalls before; reports only put it off
        self._wanted: dict[JobId, tuple[float, str]] = {}
        self._needed: deque[float] = deque(maxlen=_REMEMBERED)

    @abstractmethod
    def divide(self, now: float, cores: float, jobs: Sequence[Present]) -> Mapping[JobId, tuple[float, str]]:
        """What each job should have of the CPU, on any scale, and why.

        Args:
            jobs: Those that are there, by arrival; at least one.
        """

    def settled(self) -> bool:
        """Whether rounds that change nothing may come further apart."""
        return True

    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        acts = False
        for change in changes:
            acts |= self._take(now, change)
        if self._stall_at is not None and now >= self._stall_at:
            acts |= self._stall(now)
        if not self._jobs:
            self._round_at = self._settle_at = self._stall_at = None
            return Decision()
        due = self._round_at is not None and now >= self._round_at
        if acts or due:
            self._learn()
            self._wanted = dict(self.divide(now, cores, list(self._jobs.values())))
        shares: dict[JobId, tuple[Share, str]] = {}
        reasons: dict[JobId, str] = {}
        if acts or due or (self._settle_at is not None and now >= self._settle_at):
            shares, self._settle_at = self._grants.settle(now, self._wanted)
            reasons = self._grants.reasons(now, {job: why for job, why in self._wanted.items() if job not in shares})
        if acts or due:
            quiet = not (acts or shares) and self.settled()
            self._period = min(2.0 * self._period, _BACK_OFF * self.itval) if quiet else self.itval
            self._round_at = now + self._period
        times = (self._round_at, self._settle_at, self._stall_at)
        wake_at = min((time for time in times if time is not None and time > now), default=None)
        return Decision(shares, wake_at, reasons)

    def _learn(self) -> None:
        """What is typical: of the jobs that ended, and of those of which something is predicted."""
        predicted = [job.attained + job.remaining() for job in self._jobs.values() if job.prediction is not None]
        known = [*self._needed, *predicted]
        for job in self._jobs.values():
            job.typical = median(known) if known else _TYPICAL_WORK

    def _stall(self, now: float) -> bool:
        """Note who has stalled; whether anybody has."""
        stalled = False
        times = []
        for job in self._jobs.values():
            stalls_at = job.stalls_at()
            if stalls_at is not None and now >= stalls_at:
                job.stalled = stalled = True
            elif stalls_at is not None:
                times.append(stalls_at)
        self._stall_at = min(times, default=None)
        return stalled

    def _take(self, now: float, change: Change) -> bool:
        """Note a change; whether it calls for acting at once."""
        if isinstance(change, Arrived):
            self._number += 1
            self._jobs.pop(change.job, None)  # so that it is the last to have come
            self._jobs[change.job] = Present(change.job, change.priority, change.cores_limit, now, self._number)
            self._grants.arrive(change.job)
            return True
        job = self._jobs.get(change.job)
        if job is None:
            return False
        match change:
            case Left():
                self._needed.append(job.attained)
                del self._jobs[job.id]
                self._grants.leave(job.id)
                return True
            case Reported():
                acts = job.report(now, change)
                stalls_at = job.stalls_at()
                if stalls_at is not None and (self._stall_at is None or stalls_at < self._stall_at):
                    self._stall_at = stalls_at
                return acts
            case Used():
                job.use(now, change)
            case Predicted():
                believed = job.remaining() if job.prediction is not None else None
                job.prediction = change, job.attained
                return believed is None or abs(change.work - believed) > _NEWS * max(believed, 1e-9)
        return False


def check(policy: str, option: str, value: float, fits: bool, expected: str) -> None:
    """Refuse an option that makes no sense.

    Raises:
        UsageError: It does not fit.
    """
    if not fits:
        raise UsageError(f"policy {policy!r}: `{option}` is {value!r}; expected {expected}")


def first_come(cores: float, order: Sequence[Present], floor: float) -> dict[JobId, float]:
    """Cores by an order: each job has what those before it leave and it may use, but for an eighth of it, which goes
    on to those after it.

    Args:
        order: Who comes first, first.
        floor: Part of an equal share.
    """
    least = floor * cores / len(order)
    left, parts = cores - least * len(order), dict[JobId, float]()
    for rank, job in enumerate(order, 1):
        keeps = 1.0 - _HANDED_ON if rank < len(order) else 1.0
        part = min(job.most_cores(cores) - least, left * keeps)
        parts[job.id] = least + part
        left -= part
    return parts
