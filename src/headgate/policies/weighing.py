"""What policies by weight have in common: what is known of each job, and when to look again."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from statistics import median

from headgate.forecast.job_tracker import JobTracker
from headgate.model.errors import UsageError
from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason
from headgate.model.shares import Share
from headgate.policies.base import (
    Arrived,
    Change,
    Decision,
    Left,
    Placed,
    Policy,
    Predicted,
    Reported,
    Stalled,
    Trial,
    Used,
)
from headgate.policies.placements import Placements
from headgate.policies.running_job import SPREAD, STARTUP_WORK, TYPICAL_WORK, RunningJob
from headgate.policies.weights import FLOOR, Weights

ITVAL_SECONDS = 10.0
"""Between two rounds."""
_BACK_OFF = 8.0
"""Rounds that change nothing come further and further apart, up to so many times as far."""
_NEWS = 0.25
"""A prediction that differs from what was believed by more than this part is acted upon at once."""
_REMEMBERED = 20
"""Most ended jobs that are remembered."""
_KINDS = 20
"""Needs that stand for those of all jobs that are known, where these are more: each other job is
ranked by them all.
"""
_HANDED_ON = 1.0 / 8.0
"""Of what a job of an order may have, to those after it: seldom does one keep all cores busy all
the time.
"""
LEAST_CORES = 0.01
"""Taken to be there to divide, where jobs are pinned to all there are: others have what those do
not use.
"""
_CLEARLY = 0.9
"""A job goes before another only where it is less by so much: two alike would keep changing
places.
"""


class WeighingPolicy(Policy):
    """A policy that divides the CPU by weights, in rounds. Rounds that change nothing come further
    apart.

    It also acts at once: when a job arrives, leaves, begins to diverge or stalls, when its loss
    jumps, and when a prediction is news.

    Attributes:
        look_at: When `divide` may come to another answer though nothing else happens, as it said
            last.
        ends_at: When what it said last ends, however soon; infinity: it stands.
        begun: The trial of a job that it has just begun; None: none.
        tries: Whether `divide` looks at jobs that are to be tried on two cores.

    Args:
        itval: Seconds between rounds.
        floor: Least part of an equal share that a job is left.

    Raises:
        UsageError: An option makes no sense.
    """

    predicts = tracks = True
    tries = False

    def __init__(self, *, itval: float = ITVAL_SECONDS, floor: float = FLOOR) -> None:
        check(self.name, "itval", itval, itval > 0, "a positive number of seconds")
        check(
            self.name,
            "floor",
            floor,
            0 < floor <= 1,
            "above 0, at most 1: a part of an equal share",
        )
        self.itval = itval
        self.floor = floor
        self.look_at = self.ends_at = math.inf
        self.begun: Trial | None = None
        self._period = itval
        self._weights = Weights(floor)
        self._jobs: dict[JobId, RunningJob] = {}
        self._number = 0
        self._round_at: float | None = None
        self._settle_at: float | None = None
        self._wanted: dict[JobId, tuple[float, Reason]] = {}
        self._needed: deque[float] = deque(maxlen=_REMEMBERED)
        self._told_after: deque[float] = deque(maxlen=_REMEMBERED)

    @abstractmethod
    def divide(
        self, now: float, cores: float, jobs: Sequence[RunningJob]
    ) -> Mapping[JobId, tuple[float, Reason]]:
        """What each job should have of the CPU on each of its nodes, on any scale, and why.

        Args:
            cores: Of all nodes together.
            jobs: Those that are there, by arrival; at least one.
        """

    def may_turn(self, now: float, job: JobId) -> bool:
        """Whether a job's share may change much now, and back at any time after that."""
        return self._weights.may_turn(now, job)

    def settled(self) -> bool:
        """Whether rounds that change nothing may come further apart."""
        return True

    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        acts = False
        for change in changes:
            acts |= self._take(now, change)
        if not self._jobs:
            self._round_at = self._settle_at = None
            self.ends_at = math.inf
            return Decision()
        acts |= now >= self.ends_at
        due = self._round_at is not None and now >= self._round_at
        if acts or due:
            self._learn()
            self._wanted = dict(
                self.divide(now, max(cores, LEAST_CORES), list(self._jobs.values()))
            )
        shares: dict[JobId, tuple[Share, Reason]] = {}
        reasons: dict[JobId, Reason] = {}
        if acts or due or (self._settle_at is not None and now >= self._settle_at):
            shares, self._settle_at = self._weights.settle(now, self._wanted)
            reasons = self._weights.reasons(
                now, {job: why for job, why in self._wanted.items() if job not in shares}
            )
        if acts or due:
            quiet = not (acts or shares) and self.settled()
            self._period = min(2.0 * self._period, _BACK_OFF * self.itval) if quiet else self.itval
            self._round_at = max(min(now + self._period, self.look_at), now + self.itval)
        times = (self._round_at, self._settle_at, self.ends_at)
        wake_at = min(
            (time for time in times if time is not None and now < time < math.inf), default=None
        )
        begun, self.begun = self.begun, None
        return Decision(shares, wake_at, reasons, begun)

    def _learn(self) -> None:
        """What jobs here need: those that ended, and those with a prediction."""
        predicted = [
            job.attained + job.remaining()
            for job in self._jobs.values()
            if job.prediction is not None
        ]
        known = sorted([*self._needed, *predicted])
        if len(known) < len(SPREAD):
            typical = median(known) if known else TYPICAL_WORK
            known = [typical * part for part in SPREAD]
        if len(known) > _KINDS:
            known = [known[(2 * kind + 1) * len(known) // (2 * _KINDS)] for kind in range(_KINDS)]
        tells_after = median(self._told_after) if self._told_after else STARTUP_WORK
        for job in self._jobs.values():
            job.needs, job.tells_after = known, tells_after

    def _take(self, now: float, change: Change) -> bool:
        """Note a change; whether it calls for acting at once."""
        if isinstance(change, Arrived):
            self._arrived(now, change)
            return True
        job = self._jobs.get(change.job)
        if job is None:
            return False
        match change:
            case Left():
                self._left(job, change)
                return True
            case Placed():
                job.nodes = {node: max(cores, LEAST_CORES) for node, cores in change.cores.items()}
                job.on_gpus = change.on_gpus
                if change.workers is not None:
                    job.workers = change.workers
                self._weights.place(job.id, job.nodes)
                return True
            case Reported():
                return job.report(change)
            case Stalled():
                job.stall()
                return True
            case Used():
                return job.use(change) and self.tries
            case Predicted():
                return self._predicted(job, change)
        return False

    def _arrived(self, now: float, change: Arrived) -> None:
        self._number += 1
        self._jobs.pop(change.job, None)  # so that it is the last to have come
        if len(self._jobs) == 1:
            [alone] = self._jobs.values()
            alone.told_nobody = alone.told_nobody or (
                alone.tracker.reports and alone.foretold is None
            )
        self._jobs[change.job] = RunningJob(
            change.job,
            change.tracker or JobTracker(now),  # an empty one where nobody keeps any
            change.priority,
            change.cores_limit,
            now,
            self._number,
            change.workers,
        )
        self._weights.arrive(change.job)

    def _left(self, job: RunningJob, change: Left) -> None:
        if change.done:
            self._needed.append(job.served)
        del self._jobs[job.id]
        self._weights.leave(job.id)

    def _predicted(self, job: RunningJob, change: Predicted) -> bool:
        """Note a prediction; whether it is news."""
        before, believed = job.prediction if change.ends else job.curve, job.remaining()
        if job.foretold is None:
            if change.ends and job.attained > 0.0 and not job.told_nobody:
                self._told_after.append(job.attained)
            job.foretold = job.attained
        job.curve = change, job.attained
        if change.ends:
            job.prediction = job.curve
        job.follows = change.follows
        told_cores = job.told_cores
        if change.cores is not None:
            job.told_cores = change.cores
        if before is None or job.told_cores != told_cores:
            return True
        return change.ends and abs(change.work - believed) > _NEWS * max(believed, 1e-9)


def check(policy: str, option: str, value: float, fits: bool, expected: str) -> None:
    """Refuse an option that makes no sense.

    Raises:
        UsageError: It does not fit.
    """
    if not fits:
        raise UsageError(f"policy {policy!r}: `{option}` is {value!r}; expected {expected}")


class SteadyOrder:
    """Jobs by a measure, the least first, as they were before where two are alike."""

    def __init__(self) -> None:
        self._order: list[JobId] = []

    def shortest(self, jobs: Sequence[RunningJob]) -> list[RunningJob]:
        """The jobs by what is left of each, or what it costs to find out, over its priority; last
        those that diverge or have ceased to report.
        """
        return self.sort(
            jobs,
            {
                job.id: (bool(job.last_because), job.rank() * job.gpus_per_core / job.priority)
                for job in jobs
            },
        )

    def sort(
        self, jobs: Sequence[RunningJob], measure: Mapping[JobId, tuple[bool, float]]
    ) -> list[RunningJob]:
        """The jobs in order.

        Args:
            measure: Of each job whether it comes after all others, and what it is sorted by.
        """
        known = {job.id: job for job in jobs}
        before = [known.pop(id) for id in self._order if id in known]
        order: list[RunningJob] = []
        for clearly, group in (
            (_CLEARLY, before),
            (1.0, sorted(known.values(), key=lambda job: measure[job.id])),
        ):
            for job in group:
                last, size = measure[job.id]
                place = len(order)
                while place and (last, size) < _scaled(measure[order[place - 1].id], clearly):
                    place -= 1
                order.insert(place, job)
        self._order = [job.id for job in order]
        return order


def _scaled(measure: tuple[bool, float], by: float) -> tuple[bool, float]:
    return measure[0], by * measure[1]


def nodes_of(cores: float, jobs: Sequence[RunningJob]) -> Placements:
    """The nodes that jobs are on. A job whose nodes are not told is on one node with all the
    cores.
    """
    one = {"": cores}
    return Placements({job.id: job.nodes or one for job in jobs})


def before_each(cores: float, order: Sequence[RunningJob]) -> dict[JobId, int]:
    """How many are before each job in an order on a node of its: the one where most are."""
    nodes, count, before = nodes_of(cores, order), Counter[str](), {}
    for job in order:
        before[job.id] = max(count[node] for node in nodes.of[job.id])
        count.update(nodes.of[job.id].keys())
    return before


def first_come(
    cores: float,
    order: Sequence[RunningJob],
    floor: float,
    well: bool = False,
    behind: Collection[JobId] = (),
) -> dict[JobId, float]:
    """Cores of each job on each of its nodes, given out in an order.

    Each job has what those before it leave there, as far as it may use it. An eighth of that goes
    on to those after it. A job is as fast as its slowest task, so it has on all its nodes what it
    has on the worst one.

    Args:
        order: Jobs, the first one first.
        floor: Part of an equal share that each has at least.
        well: Whether each job first has only what it puts to good use. The rest goes in order to
            all others before those that are known to gain little by it.
        behind: Jobs that have at least an equal share, wherever they are in the order.
    """
    nodes = nodes_of(cores, order)
    left = {node: size for sizes in nodes.of.values() for node, size in sizes.items()}
    parts = dict.fromkeys(nodes.of, 0.0)

    def take(job: JobId, more: float) -> None:
        parts[job] += more
        for node in nodes.of[job]:
            left[node] -= more

    for job in order:
        equal, most = nodes.equal(job.id), job.most_cores(cores) / len(nodes.of[job.id])
        take(job.id, min(equal, most) if job.id in behind else floor * equal)
    rounds = [(RunningJob.most_cores, order)]
    if well:
        gains_little = [
            job
            for job in order
            if job.told_cores is not None and job.told_cores < job.most_cores(cores)
        ]
        others = [job for job in order if job not in gains_little]
        rounds = [(RunningJob.good_cores, order), (RunningJob.most_cores, [*others, *gains_little])]
    for use, turns in rounds:
        behind_it = {node: len(jobs) for node, jobs in nodes.on.items()}
        for job in turns:
            node_of_job = nodes.of[job.id]
            for node in node_of_job:
                behind_it[node] -= 1
            free = min(
                left[node] * (1.0 - _HANDED_ON if behind_it[node] else 1.0) for node in node_of_job
            )
            take(job.id, max(min(use(job, cores) / len(node_of_job) - parts[job.id], free), 0.0))
    return parts
