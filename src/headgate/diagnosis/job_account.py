"""Where one job's elapsed time went: parts that add up to it, and to whom time was lost.

Each second counts once, in this order: it waits to start; it starts, until its first step; it makes
steps. Within a second, losses to neighbours, to its own cap and to the hypervisor come first
(`headgate.diagnosis.contention`). The rest is its own time. Waiting for input, exposed
communication and checkpoints are taken from its own time as far as measured. Of the rest, compute
is the time in which it was ready to run or its GPU was busy. The remainder is shown as unexplained.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from headgate.diagnosis.account import MOST_UNEXPLAINED, Account
from headgate.diagnosis.attribution import (
    ITSELF,
    LEAST_SECONDS,
    NODE,
    NONE,
    LostTime,
    TimeEstimate,
    exact,
    less,
    merged,
    sum_of,
    within,
)
from headgate.diagnosis.circumstances import before_start, on_nodes, pauses, waits
from headgate.diagnosis.comparing import slower_steps
from headgate.diagnosis.convergence import plateau
from headgate.diagnosis.creeping import creeping
from headgate.diagnosis.device_contention import Devices, Outside
from headgate.diagnosis.fairness import AloneRate
from headgate.diagnosis.findings import OF_COMMUNICATION, MissingKind, MissingReading
from headgate.diagnosis.granted import Power, ThreadGrant, fewer_threads
from headgate.diagnosis.granted import by_limit as fewer_by_limit
from headgate.diagnosis.grid import Grid, LostCores, lost_cores
from headgate.diagnosis.own_causes import helped_by, own_causes
from headgate.diagnosis.own_steps import PARTS, Part, goes_on, own_steps, started, under_way
from headgate.diagnosis.own_time import OwnTime
from headgate.diagnosis.proving import replaced
from headgate.diagnosis.what_if import what_more_buys
from headgate.recorded.jobs import RecordedJob, running
from headgate.recorded.usage import Array


@dataclass(frozen=True, slots=True, eq=False)
class _Course:
    """When a job ran.

    Args:
        elapsed: Seconds from its submission to its end, or so far.
        waiting: Seconds until its first start.
        paused: Seconds in which it was paused.
        ran: Start and end of each attempt, in seconds of the run.
        begun: When each attempt began to make steps.
        starting: Seconds of each bucket before the steps of an attempt.
        stepping: Seconds of each bucket within them.
    """

    elapsed: float
    waiting: float
    paused: float
    ran: Sequence[tuple[float, float]]
    begun: Sequence[float]
    starting: Array
    stepping: Array

    @property
    def inside(self) -> Array:
        """Seconds of each bucket in which it ran."""
        return self.starting + self.stepping

    @property
    def between(self) -> float:
        """Seconds between two attempts."""
        in_attempts = sum(end - start for start, end in self.ran)
        return max(self.elapsed - self.waiting - self.paused - in_attempts, 0.0)

    @property
    def stretches(self) -> list[tuple[float, float]]:
        """Start and end of the steps of each attempt that made some."""
        return [(begun, end) for (_, end), begun in zip(self.ran, self.begun) if end > begun]


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """What was taken from a job while it ran, and what it did with the rest.

    Args:
        cores: What it lost through cores.
        outside: What it lost through other resources.
        own: The fraction of each bucket that it lost to nobody through those.
        by_limit: Seconds that the limit of its own threads cost.
        grant: The threads that it was granted; None: not known.
        losses: What neighbours took, and what its own tasks took from each other.
        step: The parts of its own time within steps.
    """

    cores: LostCores
    outside: Outside
    own: Array
    by_limit: TimeEstimate
    grant: ThreadGrant | None
    losses: Sequence[LostTime]
    step: Mapping[Part, TimeEstimate]


def unread_account(job: RecordedJob, until: float, waited: float | None) -> Account:
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


def account_of_job(
    job: RecordedJob,
    others: Sequence[RecordedJob],
    grid: Grid,
    seconds: float,
    alone_rate: AloneRate | None = None,
    like: Power | None = None,
) -> Account:
    """The account of a job of a run that has taken `seconds`.

    Args:
        others: The jobs that may have slowed it.
        grid: What these and the job did, by bucket.
        alone_rate: Its speed in other runs alone.
        like: How its like speeds up with threads, if that is not known of itself.
    """
    until = job.ended if job.ended is not None else max(seconds, job.submitted)
    # Events are recorded some microseconds late.
    ran = [(start, min(end, until)) for start, end in running(job.phases) if start < until]
    before, paused = before_start(job, others), pauses(job, until)
    if not ran or not job.tasks:
        elapsed = max(until - job.submitted, 0.0)
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
    course = _course(job, grid, ran, until, paused)
    taken = _taken(job, grid, course, alone_rate, like)
    cores, outside, stepping = taken.cores, taken.outside, course.stepping
    stolen = within(float(np.sum(cores.stolen * course.inside)), 0.1, course.elapsed)
    of_its_own = outside.of_its_own(
        course.inside, stepping, taken.step["memory"].seconds, course.elapsed
    )
    memory = next(loss.lost for loss in of_its_own if loss.resource == "memory")
    parts = _parts(job, course, taken, stolen, memory)
    speedups = what_more_buys(job, tuple(grid.nodes.values()))
    own_findings = own_causes(job, grid.nodes, _own_time(course, taken, speedups.loader_workers))
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
    by_hypervisor = LostTime(NODE, "cores", stolen, "counted")
    by_loss = sorted(
        (*taken.losses, *apart, *within_it, by_hypervisor), key=lambda loss: -loss.lost.seconds
    )
    held_back = max(
        job.tasks,
        key=lambda task: _mean(cores.whole.get(task.id, np.zeros_like(stepping)), stepping),
    )
    proved = {proof.culprit for proof in job.proofs if proof.outcome != "open"}
    may_have_lost = outside.may_have_lost if proved.isdisjoint(outside.on_gpu) else 0.0
    unexplained = parts["unexplained"].seconds > MOST_UNEXPLAINED * course.elapsed
    return Account(
        record=job,
        elapsed=course.elapsed,
        parts={part: parts[part] for part in PARTS},
        losses=tuple(loss for loss in by_loss if loss.lost.seconds > LEAST_SECONDS or loss.perhaps),
        asked_to_wait=_asked_to_wait(job, course.waiting),
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
            creep=creeping(job, grid.nodes, course.stretches),
            gpu_creep=creeping(job, grid.nodes, course.stretches, "gpu_memory_bytes"),
            excess_threads=_mean(cores.excess, stepping),
            helper_cores=helped_by(job, course.stretches),
            grant=taken.grant,
            speedups=speedups,
        ),
    )


def _course(
    job: RecordedJob,
    grid: Grid,
    ran: Sequence[tuple[float, float]],
    until: float,
    paused: float,
) -> _Course:
    begun = [
        start if goes_on(job, start, grid) else under_way(job, start, end) for start, end in ran
    ]
    starting = [(start, first_step) for (start, _), first_step in zip(ran, begun)]
    stepping = [(first_step, end) for (_, end), first_step in zip(ran, begun)]
    return _Course(
        elapsed=max(until - job.submitted, 0.0),
        waiting=waits(job, ran[0][0], until),
        paused=paused,
        ran=ran,
        begun=begun,
        starting=grid.part_within(starting) * grid.width,
        stepping=grid.part_within(stepping) * grid.width,
    )


def _taken(
    job: RecordedJob,
    grid: Grid,
    course: _Course,
    alone_rate: AloneRate | None,
    like: Power | None,
) -> _Taken:
    stepping, elapsed = course.stepping, course.elapsed
    lost = lost_cores(job, grid)
    own = 1.0 - sum(lost.by.values(), lost.stolen + lost.by_cap)
    outside = _outside(job, grid, own, stepping / grid.width)
    own = np.maximum(own - outside.lost, 0.0)
    # Time blocked on the disk is input within steps, and part of the start before them.
    of_steps = np.maximum(own - outside.by_disk, 0.0)
    on_gpu = np.nan_to_num(grid.mean(job.signal("gpu_busy")))
    working = [np.maximum(ready, on_gpu) + outside.idle for ready in lost.ready[1:]]
    beside, node_cores = grid.neighbours(job, job.tasks[0]), grid.cores(job.tasks[0])
    own_seconds = of_steps * stepping
    fewer = fewer_threads(
        job, beside, own_seconds, grid.edges, node_cores, alone_rate=alone_rate, like=like
    )
    limit = fewer_by_limit(job, own_seconds, grid.edges, node_cores)
    own_left = of_steps * (1.0 - fewer.part) * (1.0 - limit.usual)
    # Waiting for kernels may be spinning, so the CPU time of a step says nothing about users of the
    # same GPU.
    compared = {name: cores for name, cores in beside.items() if name not in outside.on_gpu}
    longer = slower_steps(job, compared, own_left, grid.edges, lost.by, lost.most, stepping)
    own_left = np.maximum(own_left - sum(longer.parts.values(), np.zeros_like(own)), 0.0)
    step = own_steps(job, working, own_left, stepping, outside, course.ran)
    losses = merged(
        [
            *fewer.losses(beside, own_seconds, elapsed),
            *outside.losses(course.inside, elapsed),
            *longer.losses(lost.losses(course.inside, elapsed), stepping, elapsed),
        ],
        elapsed,
    )
    if job.proofs:
        ran_beside = {
            name: np.where(np.nan_to_num(cores) > 0.0, stepping, 0.0)
            for name, cores in beside.items()
        }
        losses, step = _proved(job, losses, step, ran_beside, outside.on_gpu)
    left_by_grant = float(np.sum(own_seconds * (1.0 - fewer.part)))
    by_limit = TimeEstimate(*(part * left_by_grant for part in limit))
    return _Taken(lost, outside, own, by_limit, fewer.grant, losses, step)


def _parts(
    job: RecordedJob, course: _Course, taken: _Taken, stolen: TimeEstimate, memory: TimeEstimate
) -> dict[Part, TimeEstimate]:
    """The parts of its elapsed time.

    Args:
        stolen: What the hypervisor took.
        memory: What its limit of memory cost.
    """
    elapsed, again, between = course.elapsed, taken.step["faults"], course.between
    by_cap = within(float(np.sum(taken.cores.by_cap * course.inside)), 0.1, elapsed)
    by_others = [loss.lost for loss in taken.losses if loss.to != ITSELF]
    by_itself = [loss.lost for loss in taken.losses if loss.to == ITSELF]
    return {
        **taken.step,
        "waiting": exact(course.waiting),
        "starting": started(float(np.sum(taken.own * course.starting)), job, elapsed),
        "neighbours": sum_of(by_others, elapsed),
        "cap": sum_of([by_cap, taken.by_limit], elapsed),
        "memory": memory,
        "itself": sum_of(by_itself, elapsed),
        "hypervisor": stolen,
        "paused": exact(course.paused),
        "faults": TimeEstimate(between + again.seconds, between + again.low, between + again.high),
    }


def _own_time(course: _Course, taken: _Taken, loader_workers: int | None) -> OwnTime:
    step, by_disk = taken.step, float(np.sum(taken.outside.by_disk * course.stepping))
    own_parts: Sequence[Part] = ("compute", "input", "communication", "garbage-collection")
    return OwnTime(
        seconds=sum(step[part].seconds for part in own_parts),
        compute=step["compute"],
        input=less(step["input"], by_disk),
        communication=step["communication"],
        evaluation=step["evaluation"],
        garbage=step["garbage-collection"],
        stretches=course.stretches,
        lost={task: _mean(part, course.stepping) for task, part in taken.cores.whole.items()},
        readers=loader_workers,
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
