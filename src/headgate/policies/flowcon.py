"""`flowcon`: limits by growth efficiency, learning relative to resources used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import UNLIMITED, Share
from headgate.policies.base import Change, Decision, Policy
from headgate.policies.flowcon_published import Listed, PublishedFlowCon
from headgate.policies.placements import Placements
from headgate.policies.running_job import RunningJob
from headgate.policies.weighing import LEAST_CORES, WeighingPolicy, check, nodes_of

ALPHA = 0.03
ITVAL_SECONDS = 30.0
_LIMITED = ("cpu", "memory", "disk")
"""Resources that a share can limit and that have lists of jobs."""
_HEADROOM = 1.25
"""A memory limit is at least this many times the peak: beyond its limit a job is killed."""


class FlowConPolicy(Policy):
    """The job that learns most for its resources gets most. A job that has converged is held to a
    minimum.

    Objective: shorter completion of jobs that still learn, without a longer makespan.

    Rule:

    1. Progress P is the drop of the loss a second, relative to its total drop: from its start to
       the predicted asymptote, or else to the minimum so far. Growth efficiency is G = P / R for
       each resource, with R the fraction of its nodes that the job used.
    2. Below `alpha` a job goes from New to Watching to Completing. At or above it, it returns to
       New.
    3. New jobs have min(G/ΣG, 1), Watching ones keep theirs, Completing ones have max(G/ΣG,
       1/(βn)). β = 1 + 1/n, with n jobs on the node. A job without a known G has 1. When all jobs
       on the node are Completing, all have 1, and rounds come further apart.
    4. CPU parts are weights: other jobs use what one leaves. Disk rates and memory are limited only
       for Completing jobs, and only if the options state the machine's capacity. G of the network
       appears in the reason only, because no share limits a task's network.
    5. A job without reports in a round keeps its lists. A resource that a job did not use keeps its
       list. A diverging or stalled job is Completing.

    Memory is off by default although Headgate knows the nodes' memory. CPU and disk recover when a
    limit is lifted, but a job that exceeds its memory limit is killed, and growth efficiency does
    not foresee that. With the option, a job keeps a quarter more than its peak. A job that grows
    faster than that within a second may still be killed.

    Source: FlowCon (ICPP 2019), doi 10.1145/3337821.3337868.
    Use it for a mix of early and nearly finished jobs whose ends cannot be predicted.

    `faithful` is the published implementation with all its differences from the paper:

    1. The limit is a hard cap (`docker update --cpus`), cut to whole CPUs: idle cores stay idle,
       and 0 changes nothing.
    2. Losses are computed anew only in a round that comes `itval` after the last one, within 2 s. A
       first round has no progress and sends the job to Watching. Rounds during and after the
       back-off combine old losses with new CPU use.
    3. P is the absolute difference of the mean losses of the last two intervals over `itval`:
       diverging is progress.
    4. Losses are divided by the largest so far, or by the largest magnitude of a negated rising
       metric. That makes G incomparable across losses of different scale.
    5. Without losses in either interval, or without a CPU figure, G = 0, and the job goes to
       Watching.
    6. "All Completing" is judged by the lists of the previous round.
    7. Only CPU counts.
    8. After a round with all jobs Completing, the time between rounds doubles, without a bound,
       until a job arrives or leaves. Then one round comes at once, and the period is reset.
       Otherwise no job is seen before the next round.
    9. Limits have no lower bound and may change at any rate: the controller's floor and limit on
       changes do not apply.

    Args:
        alpha: Threshold of G, a second; the paper has 0.01 to 0.15.
        itval: Seconds between rounds; the paper has 20 to 60.
        memory: Bytes of memory of the machine; 0: memory is not limited.
        disk: Bytes a second that its disks read or write; 0: disks are not limited.
        network: Bytes a second of its network; 0: its G is not shown.
        floor: Least fraction of an equal share for each job; not in `faithful`.
    """

    name = "flowcon"
    predicts = tracks = True

    def __init__(
        self,
        *,
        faithful: bool = False,
        alpha: float = ALPHA,
        itval: float = ITVAL_SECONDS,
        memory: float = 0.0,
        disk: float = 0.0,
        network: float = 0.0,
        floor: float = 0.05,
    ) -> None:
        check(self.name, "alpha", alpha, 0 < alpha < math.inf, "a positive number")
        check(self.name, "itval", itval, 0 < itval < math.inf, "a positive number of seconds")
        for option, size in (("memory", memory), ("disk", disk), ("network", network)):
            check(self.name, option, size, 0 <= size < math.inf, "0 or more")
            check(
                self.name,
                option,
                size,
                not (faithful and size),
                "nothing: `faithful` knows CPU alone",
            )
        self.predicts = self.tracks = not faithful
        self.limits_disk = disk > 0
        self.floor = 0.0 if faithful else floor
        if faithful:
            self.most_changes = math.inf
        capacity = {"memory": memory, "disk": disk, "network": network}
        self._acting: Policy = (
            PublishedFlowCon(alpha, itval)
            if faithful
            else _PaperFlowCon(alpha, itval, floor, capacity)
        )

    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        return self._acting.decide(now, max(cores, LEAST_CORES), changes)


@dataclass(frozen=True, slots=True)
class _Sample:
    """The last measurement of a job's growth: time, mean loss, step, CPU time served, and use of
    other resources.
    """

    at: float
    level: float
    step: float
    work: float
    used: Mapping[str, float]


@dataclass(slots=True)
class _JobLists:
    """What is remembered of a job between rounds."""

    number: int
    placed: dict[str, Listed] = field(default_factory=lambda: dict.fromkeys(_LIMITED, "new"))
    growth: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    limits: Share = field(default_factory=Share)
    peak_bytes: float = 0.0
    measured: _Sample | None = None
    start: float = -math.inf
    least: float = math.inf

    def reason(self) -> Reason:
        """Its list, and its growth efficiency for each resource of known capacity."""
        others = {name: value for name, value in self.growth.items() if name != "cpu"}
        efficiency = self.growth.get("cpu", 0.0)
        return Reason.of(
            ReasonKind.GROWTH, placed=self.placed["cpu"], efficiency=efficiency, others=others
        )


class _PaperFlowCon(WeighingPolicy):
    """`flowcon` as in the paper."""

    name = "flowcon"

    def __init__(
        self, alpha: float, itval: float, floor: float, capacity: Mapping[str, float]
    ) -> None:
        super().__init__(itval=itval, floor=floor)
        self._alpha = alpha
        self._capacity = {name: size for name, size in capacity.items() if size > 0}
        self._lists: dict[JobId, _JobLists] = {}

    def decide(self, now: float, cores: float, changes: Sequence[Change]) -> Decision:
        decision = super().decide(now, cores, changes)
        if self._capacity.keys().isdisjoint(_LIMITED):  # CPU is never limited
            return decision
        shares = dict(decision.shares)
        for id, job in self._jobs.items():
            lists = self._lists[id]
            wanted = self._limits(job, lists)
            if wanted != lists.limits and (id in shares or self._weights.change(now, id)):
                share, reason = shares.get(
                    id,
                    (
                        Share(),
                        Reason.of(ReasonKind.LIMITED_BY_GROWTH, placed=lists.placed["cpu"]),
                    ),
                )
                shares[id] = share.merged(wanted), reason
                lists.limits = wanted
        return Decision(
            shares,
            decision.wake_at,
            {id: why for id, why in decision.reasons.items() if id not in shares},
        )

    def divide(
        self, now: float, cores: float, jobs: Sequence[RunningJob]
    ) -> Mapping[JobId, tuple[float, Reason]]:
        before = self._lists
        self._lists = {
            job.id: before[job.id]
            if job.id in before and before[job.id].number == job.number
            else _JobLists(job.number)
            for job in jobs
        }
        for job in jobs:
            self._measure(
                now,
                (sum(job.nodes.values()) or cores) / job.node_cores_per_core,
                job,
                self._lists[job.id],
            )
        nodes = nodes_of(cores, jobs)
        last = {job.id for job in jobs if job.last_because}
        for resource in _LIMITED:
            if resource == "cpu" or resource in self._capacity:
                self._part(resource, nodes, last)
        return {id: (lists.parts["cpu"], lists.reason()) for id, lists in self._lists.items()}

    def settled(self) -> bool:
        return all(lists.placed["cpu"] == "completing" for lists in self._lists.values())

    def _measure(self, now: float, cores: float, job: RunningJob, lists: _JobLists) -> None:
        """Growth efficiency since the last round, and the resulting lists; an early round measures
        nothing.
        """
        if job.last_because:
            lists.growth = dict.fromkeys(("cpu", *self._capacity), 0.0)
            lists.placed = dict.fromkeys(_LIMITED, "completing")
            return
        step, last = job.tracker.losses.step, lists.measured
        if last is not None and step < last.step:
            last = None  # it counts from the beginning again
        level = _mean(job, last.step if last is not None else -math.inf)
        if level is None:
            return
        lists.start, lists.least = max(lists.start, level), min(lists.least, level)
        measured = _Sample(now, level, step, job.attained, job.tracker.used._asdict())
        if last is None:
            lists.measured = measured
            return
        seconds, work = now - last.at, job.attained - last.work
        if seconds < 0.5 * self.itval or work <= 0.0 or job.used is None:
            return
        lists.measured = measured
        asymptote = job.curve[0].asymptote if job.curve is not None else None
        total_drop = lists.start - (
            lists.least if asymptote is None else min(asymptote, lists.least)
        )
        progress = (last.level - level) / total_drop / seconds if total_drop > 0.0 else 0.0
        used = {"cpu": work / seconds / cores}
        so_far = ((name, measured.used[name] - last.used.get(name, 0.0)) for name in self._capacity)
        used |= {name: more / seconds / self._capacity[name] for name, more in so_far}
        for resource, part in used.items():
            if part <= 0.0:
                continue  # its learning does not depend on that
            growth = lists.growth[resource] = progress / part
            if resource not in _LIMITED:
                continue
            placed = lists.placed[resource]
            if growth >= self._alpha:
                lists.placed[resource] = "new"
            elif placed != "completing":
                lists.placed[resource] = "watching" if placed == "new" else "completing"

    def _part(self, resource: str, nodes: Placements, last: set[JobId]) -> None:
        """Parts of a resource by the lists. A job on several nodes goes by its most crowded one.
        Jobs in `last` get the minimum of Completing jobs, even if other jobs' growth is unknown.
        """
        growth = {
            id: max(lists.growth.get(resource, 0.0), 0.0) for id, lists in self._lists.items()
        }
        totals = nodes.totals(growth)
        learns = {id for id, lists in self._lists.items() if lists.placed[resource] != "completing"}
        learning = {node for node, jobs in nodes.on.items() if not learns.isdisjoint(jobs)}
        for id, lists in self._lists.items():
            own, own_nodes = growth[id], nodes.of[id]
            total, count = (
                max(totals[node] for node in own_nodes),
                max(len(nodes.on[node]) for node in own_nodes),
            )
            if resource not in lists.growth or learning.isdisjoint(own_nodes):
                lists.parts[resource] = 1.0
            elif id in last:
                lists.parts[resource] = _least(count)
            elif total <= 0.0 or lists.placed[resource] == "watching":
                lists.parts.setdefault(resource, 1.0)
            elif lists.placed[resource] == "completing":
                lists.parts[resource] = max(own / total, _least(count))
            else:
                lists.parts[resource] = min(own / total, 1.0)

    def _limits(self, job: RunningJob, lists: _JobLists) -> Share:
        """Disk and memory limits of a Completing job; lifted for other jobs."""
        memory, disk = self._capacity.get("memory"), self._capacity.get("disk")
        memory_bytes: int | None = None
        limits = Share()
        if memory is not None and job.used is not None:
            peak = lists.peak_bytes = max(lists.peak_bytes, job.used.memory_bytes)
            if lists.placed["memory"] == "completing":
                wanted = max(lists.parts["memory"] * memory, _HEADROOM * peak, 1.0)
                held = lists.limits.memory_bytes
                # A limit with that headroom stays: use creeps, and limits should not follow each
                # byte.
                if isinstance(held, int) and peak * 1.1 <= held <= 2 * wanted:
                    memory_bytes = held
                else:
                    memory_bytes = int(wanted)
                limits = limits.merged(Share(memory_bytes=memory_bytes))
            elif lists.limits.memory_bytes is not None:
                limits = limits.merged(Share(memory_bytes=UNLIMITED))
        if disk is not None:
            if lists.placed["disk"] == "completing":
                rate = max(lists.parts["disk"], self.floor / len(self._lists)) * disk
                limits = limits.merged(Share(disk_bytes_per_second=rate))
            elif lists.limits.disk_bytes_per_second is not None:
                limits = limits.merged(Share(disk_bytes_per_second=UNLIMITED))
        return limits


def _least(count: int) -> float:
    """Minimum of a Completing job among `count` jobs: 1/(βn)."""
    return 1.0 / ((1.0 + 1.0 / count) * count)


def _mean(job: RunningJob, after: float) -> float | None:
    """Mean of the losses after a step; None: there are none."""
    points = [
        (loss * count, count) for step, loss, count in job.tracker.losses.points() if step > after
    ]
    return sum(loss for loss, _ in points) / sum(count for _, count in points) if points else None
