"""Where a job's elapsed time went: parts that add up to it, and to whom time was lost.

Each second of a job counts once, in this order: it waits to start; it starts, until its first step;
it makes steps. Within a second, losses to neighbours, to its own cap and to the hypervisor come
first (`headgate.diagnosis.contention`). The rest is its own time. Waiting for input, exposed
communication and checkpoints are taken from its own time as far as measured. Of the rest, compute
is the time in which it was ready to run or its GPU was busy. The remainder is shown as unexplained.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from headgate.diagnosis.at_once import Crowd, during, span
from headgate.diagnosis.attribution import (
    ITSELF,
    LEAST_PART,
    LEAST_SECONDS,
    NODE,
    NONE,
    OTHERS,
    REST,
    LostTime,
    TimeEstimate,
    exact,
    is_other_user,
    less,
    merged,
    sum_of,
    within,
)
from headgate.diagnosis.circumstances import Circumstances, before_start, on_nodes, pauses, waits
from headgate.diagnosis.comparing import slower_steps
from headgate.diagnosis.convergence import plateau
from headgate.diagnosis.creeping import creeping
from headgate.diagnosis.device_contention import Devices, Outside
from headgate.diagnosis.fairness import AloneRate
from headgate.diagnosis.findings import OF_COMMUNICATION, MissingKind, MissingReading
from headgate.diagnosis.granted import Power, fewer_threads
from headgate.diagnosis.granted import by_limit as fewer_by_limit
from headgate.diagnosis.grid import Grid, lost_cores
from headgate.diagnosis.own_causes import helped_by, own_causes
from headgate.diagnosis.own_steps import PARTS, Part, goes_on, own_steps, started, under_way
from headgate.diagnosis.own_time import OwnTime
from headgate.diagnosis.proving import replaced
from headgate.diagnosis.sequencing import SoloTime, in_order
from headgate.diagnosis.what_if import what_more_buys
from headgate.recorded.jobs import RecordedJob, RecordedNode, running
from headgate.recorded.usage import Array

_MOST_BUCKETS, _LEAST_BUCKETS = 500_000, 500
"""Most bucket comparisons over all pairs of tasks, and the least number of buckets of a run. Longer
runs have buckets of several seconds.
"""
_UNREAD_SECONDS = 2.0
"""A shorter job has fewer than two readings."""
_MOST_OF_ONE_GRID = 32
"""With more tasks in a run, each job has a grid of its own."""
MOST_UNEXPLAINED = 0.3
"""If more than this fraction of the time is unexplained, no other cause can be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Where a job's time went.

    Args:
        record: The recorded job.
        elapsed: Seconds from its submission to its end, or so far.
        parts: Parts that add up to `elapsed`.
        losses: Losses by culprit and resource, largest first.
        asked_to_wait: Seconds of `waiting` that its user requested: a start time, or the end of
            another job.
        disk_unsure: Seconds of `input` in which neighbours moved more on its disk than it did, at
            unknown cost.
        disk_mover: The neighbour that moved most meanwhile; empty: none did.
        missing_readings: Readings that the account needs and the run lacks.
        read: Whether there are readings of its CPU use; a short job may have none.
        may_have_lost: Seconds that neighbours on its GPU may have cost, if unknown.
        around: The circumstances of the job while it waited and ran.
    """

    record: RecordedJob
    elapsed: float
    parts: Mapping[Part, TimeEstimate]
    losses: Sequence[LostTime] = ()
    asked_to_wait: float = 0.0
    disk_unsure: float = 0.0
    disk_mover: str = ""
    may_have_lost: float = 0.0
    missing_readings: tuple[MissingReading, ...] = ()
    read: bool = True
    around: Circumstances = field(default_factory=Circumstances)

    @property
    def job(self) -> str:
        """Name of the job."""
        return self.record.name

    @property
    def culprits(self) -> tuple[str, ...]:
        """Jobs of its user that surely slowed it noticeably; if none did, the worst of those that
        surely slowed it.
        """
        losses = [
            loss
            for loss in self.losses
            if loss.to not in (ITSELF, NODE, OTHERS, REST)
            and loss.sure
            and not is_other_user(loss.to)
        ]
        worst = max((loss.lost.seconds for loss in losses), default=0.0)
        least = min(LEAST_PART * self.elapsed, worst)
        return tuple(dict.fromkeys(loss.to for loss in losses if loss.lost.seconds >= least))


def accounts(
    jobs: Sequence[RecordedJob],
    nodes: Sequence[RecordedNode],
    seconds: float,
    since: float = 0.0,
    alone: Mapping[str, AloneRate] = {},
    only: Collection[str] | None = None,
) -> tuple[Account, ...]:
    """The account of each job of a run that has taken `seconds`.

    Args:
        jobs: The jobs, recorded from `since` on.
        nodes: The nodes, recorded from `since` on.
        seconds: Elapsed seconds of the run.
        since: Second of the run at which the accounts begin.
        alone: Speed of jobs in other runs alone.
        only: Names of the jobs that get an account; None: all.
    """
    by_name = {node.name: node for node in nodes}
    if sum(len(job.tasks) for job in jobs) <= _MOST_OF_ONE_GRID:
        grid = _grid(jobs, by_name, since, seconds)

        def account_of(job: RecordedJob, like: Power | None = None) -> Account:
            # a job that never ran is no neighbour, not even of itself
            others = [other for other in jobs if other is not job] if job.tasks else jobs
            return _account(
                job, others, grid, seconds, None if like is not None else alone.get(job.name), like
            )

    else:
        crowd = Crowd.of(jobs)
        beside = dict(zip((job.name for job in jobs), crowd.beside()))

        def account_of(job: RecordedJob, like: Power | None = None) -> Account:
            alone_rate = None if like is not None else alone.get(job.name)
            return _of_many(job, beside[job.name], crowd, by_name, seconds, alone_rate, like)

    chosen = [job for job in jobs if only is None or job.name in only]
    first = [account_of(job) for job in chosen]
    powers = _powers(first)
    known = [
        account_of(account.record, like)
        if (like := _power_of_like_jobs(account, powers)) is not None
        else account
        for account in first
    ]
    solo_times = {account.job: _solo_time(account) for account in known}
    groups = _slowed_each_other(known)
    orders = {
        id(group): in_order(group & solo_times.keys(), solo_times) for group in groups.values()
    }
    return tuple(
        replace(
            account,
            around=replace(
                account.around,
                solo_times=solo_times,
                together=orders.get(id(groups.get(account.job)), ()),
            ),
        )
        for account in known
    )


def _grid(
    jobs: Sequence[RecordedJob], nodes: Mapping[str, RecordedNode], since: float, until: float
) -> Grid:
    tasks = sum(len(job.tasks) for job in jobs)
    most = max(_MOST_BUCKETS // max(tasks, 10) ** 2, _LEAST_BUCKETS)
    edges = np.linspace(
        since, max(until, since + 1e-3), min(max(math.ceil(until - since), 1), most) + 1
    )
    return Grid(jobs, nodes, edges)


def _of_many(
    job: RecordedJob,
    beside: Sequence[RecordedJob],
    crowd: Crowd,
    nodes: Mapping[str, RecordedNode],
    seconds: float,
    alone_rate: AloneRate | None,
    like: Power | None,
) -> Account:
    """The account of one of very many jobs, from the busiest of its neighbours and the time that it
    ran. The cost of all accounts then grows with the jobs, not with their pairs. A job with fewer
    than two readings gets none.
    """
    start, end = span(job)
    if end - start < _UNREAD_SECONDS:
        waited = start - job.submitted if end > start else None
        return _unread(job, max(seconds, job.submitted) if job.ended is None else job.ended, waited)
    others = crowd.rest([job, *beside], start, end)
    grid = _grid([job, *beside, others], during(nodes, start, end), start, end)
    return _account(job, beside, grid, seconds, alone_rate, like)


def _unread(job: RecordedJob, until: float, waited: float | None) -> Account:
    """The account of a job too short for readings; `waited` None: it never ran."""
    elapsed = max(until - job.submitted, 0.0)
    waiting = min(max(waited, 0.0), elapsed) if waited is not None else elapsed
    parts = {
        **dict.fromkeys(PARTS, NONE),
        "waiting": exact(waiting),
        "unexplained": exact(elapsed - waiting),
    }
    asked = _asked_to_wait(job, waiting)
    return Account(record=job, elapsed=elapsed, parts=parts, asked_to_wait=asked, read=False)


def _solo_time(account: Account) -> SoloTime:
    by_others: Sequence[Part] = ("waiting", "neighbours", "hypervisor")
    alone = account.elapsed - sum(account.parts[part].seconds for part in by_others)
    job = account.record
    return SoloTime(max(alone, 0.0), account.elapsed, job.state == "done", job.ended is None)


def _slowed_each_other(accounts: Sequence[Account]) -> Mapping[str, set[str]]:
    """For each job with a mutual slowdown, all jobs connected with it."""
    groups: dict[str, set[str]] = {}
    for account in accounts:
        for culprit in account.culprits:
            union = groups.get(account.job, {account.job}) | groups.get(culprit, {culprit})
            groups.update(dict.fromkeys(union, union))
    return groups


def _powers(known: Sequence[Account]) -> Mapping[str, Power]:
    """Known thread scaling by script."""
    powers: dict[str, Power] = {}
    for account in known:
        script = account.record.spec.script
        grant = account.around.grant
        if script is not None and grant is not None and grant.power is not None:
            powers.setdefault(script, grant.power)
    return powers


def _power_of_like_jobs(account: Account, powers: Mapping[str, Power]) -> Power | None:
    """Thread scaling of another job with the same script, if the job has none of its own."""
    grant = account.around.grant
    if grant is None or grant.power is not None:
        return None
    return powers.get(account.record.spec.script or "")


def _account(
    job: RecordedJob,
    others: Sequence[RecordedJob],
    grid: Grid,
    seconds: float,
    alone_rate: AloneRate | None = None,
    like: Power | None = None,
) -> Account:
    until = job.ended if job.ended is not None else max(seconds, job.submitted)
    elapsed = max(until - job.submitted, 0.0)
    # Events are recorded some microseconds late.
    ran = [(start, min(end, until)) for start, end in running(job.phases) if start < until]
    before, paused = before_start(job, others), pauses(job, until)
    if not ran or not job.tasks:
        return Account(
            record=job,
            elapsed=elapsed,
            parts={
                **dict.fromkeys(PARTS, NONE),
                "waiting": exact(elapsed - paused),
                "paused": exact(paused),
            },
            asked_to_wait=_asked_to_wait(job, elapsed - paused),
            around=before,
        )
    waiting = waits(job, ran[0][0], until)
    between = max(elapsed - waiting - paused - sum(end - start for start, end in ran), 0.0)
    starts = [
        start if goes_on(job, start, grid) else under_way(job, start, end) for start, end in ran
    ]
    starting = (
        grid.part_within([(start, begun) for (start, _), begun in zip(ran, starts)]) * grid.width
    )
    stepping = grid.part_within([(begun, end) for (_, end), begun in zip(ran, starts)]) * grid.width
    inside = starting + stepping
    lost = lost_cores(job, grid)
    own = 1.0 - sum(lost.by.values(), lost.stolen + lost.by_cap)
    outside = _outside(job, grid, own, stepping / grid.width)
    own = np.maximum(own - outside.lost, 0.0)
    # Time blocked on the disk is input within steps, and part of the start before them.
    of_steps = np.maximum(own - outside.by_disk, 0.0)
    on_gpu = np.nan_to_num(grid.mean(job.signal("gpu_busy")))
    working = [np.maximum(ready, on_gpu) + outside.idle for ready in lost.ready[1:]]
    beside = grid.neighbours(job, job.tasks[0])
    fewer = fewer_threads(
        job,
        beside,
        of_steps * stepping,
        grid.edges,
        grid.cores(job.tasks[0]),
        alone_rate=alone_rate,
        like=like,
    )
    by_limit = fewer_by_limit(job, of_steps * stepping, grid.edges, grid.cores(job.tasks[0]))
    own_left = of_steps * (1.0 - fewer.part) * (1.0 - by_limit.usual)
    # Waiting for kernels may be spinning, so the CPU time of a step says nothing about users of the
    # same GPU.
    compared = {name: cores for name, cores in beside.items() if name not in outside.on_gpu}
    longer = slower_steps(job, compared, own_left, grid.edges, lost.by, lost.most, stepping)
    own_left = np.maximum(own_left - sum(longer.parts.values(), np.zeros_like(own)), 0.0)
    step = own_steps(job, working, own_left, stepping, outside, ran)
    losses = merged(
        [
            *fewer.losses(beside, of_steps * stepping, elapsed),
            *outside.losses(inside, elapsed),
            *longer.losses(lost.losses(inside, elapsed), stepping, elapsed),
        ],
        elapsed,
    )
    if job.proofs:
        ran_beside = {
            name: np.where(np.nan_to_num(cores) > 0.0, stepping, 0.0)
            for name, cores in beside.items()
        }
        losses, step = _proved(job, losses, step, ran_beside, outside.on_gpu)
    stolen = LostTime(
        NODE,
        "cores",
        within(float(np.sum(lost.stolen * inside)), 0.1, elapsed),
        "counted",
    )
    limited = TimeEstimate(
        *(part * float(np.sum(of_steps * stepping * (1.0 - fewer.part))) for part in by_limit)
    )
    by_cap = sum_of([within(float(np.sum(lost.by_cap * inside)), 0.1, elapsed), limited], elapsed)
    of_its_own = outside.of_its_own(inside, stepping, step["memory"].seconds, elapsed)
    again = step["faults"]
    parts: dict[Part, TimeEstimate] = {
        **step,
        "waiting": exact(waiting),
        "starting": started(float(np.sum(own * starting)), job, elapsed),
        "neighbours": sum_of([loss.lost for loss in losses if loss.to != ITSELF], elapsed),
        "cap": by_cap,
        "memory": next(loss.lost for loss in of_its_own if loss.resource == "memory"),
        "itself": sum_of([loss.lost for loss in losses if loss.to == ITSELF], elapsed),
        "hypervisor": stolen.lost,
        "paused": exact(paused),
        "faults": TimeEstimate(between + again.seconds, between + again.low, between + again.high),
    }
    speedups = what_more_buys(job, tuple(grid.nodes.values()))
    time = OwnTime(
        seconds=sum(
            step[part].seconds
            for part in ("compute", "input", "communication", "garbage-collection")
        ),
        compute=step["compute"],
        input=less(step["input"], float(np.sum(outside.by_disk * stepping))),
        communication=step["communication"],
        evaluation=step["evaluation"],
        garbage=step["garbage-collection"],
        stretches=[(begun, end) for (_, end), begun in zip(ran, starts) if end > begun],
        lost={task: _mean(part, stepping) for task, part in lost.whole.items()},
        readers=speedups.loader_workers,
    )
    proved = {proof.culprit for proof in job.proofs if proof.outcome != "open"}
    may_have_lost = outside.may_have_lost if proved.isdisjoint(outside.on_gpu) else 0.0
    own_findings = own_causes(job, grid.nodes, time)
    within_it = [
        LostTime(ITSELF, cause.resource, cause.cost, "counted")
        for cause in own_findings
        if cause.resource
    ]
    # A cause within the job that explains its communication includes the cost of its own traffic.
    explained = any(
        cause.resource is not None and cause.kind in OF_COMMUNICATION for cause in own_findings
    )
    apart = [loss for loss in of_its_own if loss.resource != "network" or not explained]
    by_loss = sorted((*losses, *apart, *within_it, stolen), key=lambda loss: -loss.lost.seconds)
    held_back = max(
        job.tasks,
        key=lambda task: _mean(lost.whole.get(task.id, np.zeros_like(stepping)), stepping),
    )
    unexplained = parts["unexplained"].seconds > MOST_UNEXPLAINED * elapsed
    return Account(
        record=job,
        elapsed=elapsed,
        parts={part: parts[part] for part in PARTS},
        losses=tuple(loss for loss in by_loss if loss.lost.seconds > LEAST_SECONDS or loss.perhaps),
        asked_to_wait=_asked_to_wait(job, waiting),
        disk_unsure=float(np.sum(outside.unsure * stepping)),
        disk_mover=outside.disk_mover,
        may_have_lost=may_have_lost,
        missing_readings=_missing(job, grid.devices, outside, may_have_lost, unexplained),
        read=any(
            len(task.signal("memory_bytes")) > 1 or len(task.signal("cpu_waiting"))
            for task in job.tasks
        ),
        around=replace(
            on_nodes(before, job, others, grid, held_back),
            own_causes=own_findings,
            plateau=plateau(job),
            creep=creeping(job, grid.nodes, time.stretches),
            gpu_creep=creeping(job, grid.nodes, time.stretches, "gpu_memory_bytes"),
            excess_threads=_mean(lost.excess, stepping),
            helper_cores=helped_by(job, time.stretches),
            grant=fewer.grant,
            speedups=speedups,
        ),
    )


def _asked_to_wait(job: RecordedJob, waited: float) -> float:
    """The part of the seconds waited that its user requested."""
    return waited if job.spec.after is not None else min(job.spec.at, waited)


def _outside(job: RecordedJob, grid: Grid, own: Array, stepping: Array) -> Outside:
    """Losses other than through cores, out of the fraction `own` of each bucket.

    Args:
        stepping: The fraction of each bucket within its steps.
    """
    tasks = [task for task in job.tasks if task.is_worker] or list(job.tasks)
    saved = [
        (float(row.t) - float(row.seconds or 0.0), float(row.t))
        for row in job.checkpoints
        if row.why != "resumed"
    ]
    ready = {task.id: np.nan_to_num(grid.ready(task).least) for task in tasks}
    return grid.devices.lost(
        job, own, ready, np.minimum(grid.part_within(saved), 1.0), stepping * grid.width
    )


def _proved(
    job: RecordedJob,
    losses: list[LostTime],
    step: dict[Part, TimeEstimate],
    beside: Mapping[str, Array],
    on_gpu: Collection[str],
) -> tuple[list[LostTime], dict[Part, TimeEstimate]]:
    """Its losses with proved ones inserted, and its own time, adjusted accordingly."""
    known = replaced(losses, job.proofs, beside, on_gpu)
    own = dict(step)
    moved = sum(loss.lost.seconds for loss in known) - sum(loss.lost.seconds for loss in losses)
    for part in ("compute", "unexplained", "input", "communication"):
        had = own[part]
        left = max(had.seconds - moved, 0.0)
        moved -= had.seconds - left
        own[part] = TimeEstimate(left, min(had.low, left), max(had.high, left))
    if moved <= 0.0:
        return known, own
    # Proved losses may exceed its own time if others, or its own cap, held the job back too.
    fits = 1.0 - moved / sum(loss.lost.seconds for loss in known)
    return [
        replace(loss, lost=TimeEstimate(*(end * fits for end in loss.lost))) for loss in known
    ], own


def _missing(
    job: RecordedJob, devices: Devices, outside: Outside, may_have_lost: float, unexplained: bool
) -> tuple[MissingReading, ...]:
    """Readings that its account needs. If time is `unexplained`, also readings that might explain
    it.
    """
    missing = []
    if may_have_lost:
        several = len(job.tasks) > 1
        kind = MissingKind.GPU_OF_SEVERAL_TASKS if several else MissingKind.GPU_ALONE
        missing.append(MissingReading(kind, outside.gpu_user, outside.may_have_lost))
    if not any(len(task.signal("cpu_waiting")) for task in job.tasks):
        missing.append(MissingReading(MissingKind.CORE_WAITS))
    if not np.isfinite(job.progress.step).any():
        missing.append(MissingReading(MissingKind.STEPS))
    if unexplained and not devices.tell_blocked(job):
        missing.append(MissingReading(MissingKind.DISK_WAITS))
    return tuple(missing)


def _mean(values: Array, weights: Array) -> float:
    return (
        float(np.sum(values * weights)) / total_weight
        if (total_weight := float(np.sum(weights))) > 0.0
        else 0.0
    )
