"""The common base of policies by weight: knowledge of each job, and when to look again."""

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
    Changed,
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
"""Seconds between rounds."""
_BACK_OFF = 8.0
"""Rounds without a change come further apart, up to this many times the interval."""
_NEWS = 0.25
"""A prediction that differs by more than this fraction is acted upon at once."""
_MANY, _REST_SECONDS = 50, 0.002
"""With more jobs than this, news of one waits until so much time for each job has passed since the
last answer: all jobs are ordered anew, whatever the news.
"""
_REMEMBERED = 20
"""Most ended jobs that are remembered."""
_KINDS = 20
"""Most needs that represent those of all known jobs; each other job is ranked by all of them."""
_HANDED_ON = 1.0 / 8.0
"""Fraction of a job's cores that also goes to those after it: few jobs keep all cores busy all the
time.
"""
LEAST_CORES = 0.01
"""Cores assumed when jobs are pinned to all there are: others use what those leave."""
_CLEARLY = 0.9
"""A job overtakes another only if its measure is below this fraction of the other's, so that
similar jobs do not keep changing places.
"""


class WeighingPolicy(Policy):
    """A policy that divides the CPU by weights, in rounds. Rounds without a change come further
    apart.

    It also acts at once when a job arrives, leaves, diverges or stalls, when its loss jumps, and
    when a prediction changes much.

    Attributes:
        look_at: When `divide` may give another answer without an event, by its last answer.
        ends_at: When its last answer expires, however soon; infinity: it stands.
        begun: A trial that has just begun; None: none.
        tries: Whether `divide` considers trials on two cores.

    Args:
        itval: Seconds between rounds.
        floor: Least fraction of an equal share for each job.

    Raises:
        UsageError: An option is invalid.
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
        self._news_at, self._divided_at = math.inf, -math.inf
        self._wanted: dict[JobId, tuple[float, Reason]] = {}
        self._needed: deque[float] = deque(maxlen=_REMEMBERED)
        self._told_after: deque[float] = deque(maxlen=_REMEMBERED)

    @abstractmethod
    def divide(
        self, now: float, cores: float, jobs: Sequence[RunningJob]
    ) -> Mapping[JobId, tuple[float, Reason]]:
        """The CPU part of each job on each of its nodes, on any scale, with the reason.

        Args:
            now: Seconds.
            cores: Cores of all nodes together.
            jobs: Present jobs, by arrival; at least one.
        """

    def may_turn(self, now: float, job: JobId) -> bool:
        """Whether a job's share may change much now, and back at any time after that."""
        return self._weights.may_turn(now, job)

    def settled(self) -> bool:
        """Whether rounds without a change may come further apart."""
        return True

    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        acts = self._take_all(now, changes)
        if not self._jobs:
            self._round_at = self._settle_at = None
            self.ends_at = self._news_at = math.inf
            return Decision()
        acts |= now >= min(self.ends_at, self._news_at)
        due = self._round_at is not None and now >= self._round_at
        if acts or due:
            self._divided_at, self._news_at = now, math.inf
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
        times = (self._round_at, self._settle_at, self.ends_at, self._news_at)
        wake_at = min(
            (time for time in times if time is not None and now < time < math.inf), default=None
        )
        begun, self.begun = self.begun, None
        return Decision(shares, wake_at, reasons, begun)

    def _learn(self) -> None:
        """Update the needs of jobs from ended jobs and from predictions."""
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

    def _take_all(self, now: float, changes: Sequence[Change]) -> bool:
        """Process changes. Returns whether any requires action before other news comes."""
        acts = has_news = False
        for change in changes:
            if self._take(now, change):
                has_news = True
                acts |= isinstance(change, Arrived | Left | Changed | Placed)
        if has_news:
            rest = _REST_SECONDS * len(self._jobs) if len(self._jobs) > _MANY else 0.0
            self._news_at = min(self._news_at, max(self._divided_at + rest, now))
        return acts

    def _take(self, now: float, change: Change) -> bool:
        """Process a change. Returns whether it requires action at once."""
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
            case Changed():
                job.priority, job.cores_limit = change.priority, change.cores_limit
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
                job.look()
                return True
            case Used():
                return job.use(change) and self.tries
            case Predicted():
                return self._predicted(job, change)
        return False

    def _arrived(self, now: float, change: Arrived) -> None:
        self._number += 1
        self._jobs.pop(change.job, None)  # so that it is the latest arrival
        if len(self._jobs) == 1:
            [alone] = self._jobs.values()
            alone.told_nobody = alone.told_nobody or (
                alone.tracker.reports and alone.foretold is None
            )
        self._jobs[change.job] = RunningJob(
            change.job,
            change.tracker or JobTracker(now),  # an empty one if nobody keeps one
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
        """Process a prediction. Returns whether it changes much."""
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
    """Refuse an invalid option.

    Raises:
        UsageError: The value does not fit.
    """
    if not fits:
        raise UsageError(f"policy {policy!r}: `{option}` is {value!r}; expected {expected}")


class SteadyOrder:
    """Orders jobs by a measure, least first; similar jobs keep their order."""

    def __init__(self) -> None:
        self._order: list[JobId] = []

    def shortest(self, jobs: Sequence[RunningJob]) -> list[RunningJob]:
        """Jobs by remaining work, or the cost of finding it out, over priority; diverging and
        stalled jobs come last.
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
            measure: For each job, whether it comes after all others, and its sort value.
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
    """The nodes of jobs. Jobs without known nodes are on one node with all the cores."""
    shared_node = {"": cores}
    return Placements({job.id: job.nodes or shared_node for job in jobs})


def before_each(cores: float, order: Sequence[RunningJob]) -> dict[JobId, int]:
    """The number of jobs before each job on a node of its, at most."""
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

    Each job gets what those before it leave, up to its limit. An eighth of that also goes to those
    after it. A job is as fast as its slowest task, so it gets on all nodes what it gets on the
    worst one.

    Args:
        cores: Cores of all nodes together.
        order: Jobs, first to last.
        floor: Least fraction of an equal share for each.
        well: Whether each job first gets only what it uses efficiently. The rest goes in order to
            all others, last to jobs known to gain little.
        behind: Jobs that get at least an equal share, regardless of the order.
    """
    nodes = nodes_of(cores, order)
    left = {node: size for sizes in nodes.of.values() for node, size in sizes.items()}
    parts = dict.fromkeys(nodes.of, 0.0)

    def take(job: JobId, more: float) -> None:
        parts[job] += more
        for node in nodes.of[job]:
            left[node] -= more

    for job in order:
        equal, most = nodes.equal(job.id), job.most_cores(cores)
        most = (job.usable_cores(cores) if well else most) / len(nodes.of[job.id])
        take(job.id, min(equal, most) if job.id in behind else floor * equal)
    rounds = [(RunningJob.most_cores, order)]
    if well:
        by_gain = sorted(order, key=lambda job: job.gains_little(cores))
        rounds = [(RunningJob.good_cores, order), (RunningJob.usable_cores, by_gain)]
    for use, turns in rounds:
        behind_it = {node: len(jobs) for node, jobs in nodes.on.items()}
        for job in turns:
            own_nodes = nodes.of[job.id]
            for node in own_nodes:
                behind_it[node] -= 1
            free = min(
                left[node] * (1.0 - _HANDED_ON if behind_it[node] else 1.0) for node in own_nodes
            )
            take(job.id, max(min(use(job, cores) / len(own_nodes) - parts[job.id], free), 0.0))
    return parts
