"""Divide the time of a job's steps that was its own, and find when its steps began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from headgate.diagnosis.attribution import TimeEstimate, exact, sum_of, within
from headgate.diagnosis.device_contention import Outside
from headgate.diagnosis.grid import Grid
from headgate.diagnosis.own_causes import evaluated, waited_for_others
from headgate.recorded.jobs import RecordedJob
from headgate.recorded.usage import Array

Part = Literal[
    "waiting",
    "starting",
    "compute",
    "input",
    "communication",
    "neighbours",
    "cap",
    "memory",
    "itself",
    "hypervisor",
    "checkpoints",
    "evaluation",
    "garbage-collection",
    "paused",
    "faults",
    "unexplained",
]
PARTS: Mapping[Part, str] = {
    "waiting": "from its submission to its first start",
    "starting": "until its first step is under way",
    "compute": "its own work",
    "input": "waiting for its loader, or blocked on a disk",
    "communication": "waiting for other tasks of its own, where backward did not hide it",
    "neighbours": "lost to other jobs and to programs outside Headgate, through any resource",
    "cap": "lost to its own limit of cores",
    "memory": "lost to its own limit of memory",
    "itself": "lost to other tasks of its own on the same cores",
    "hypervisor": "stolen from the node",
    "checkpoints": "saving",
    "evaluation": "evaluating its models, between steps",
    "garbage-collection": "Python's garbage collector",
    "paused": "frozen, held back, or without its memory, until it was unpaused",
    "faults": "between two attempts, and what was done again",
    "unexplained": "no reading accounts for it",
}
"""The meaning of each part, in display order."""


def own_steps(
    job: RecordedJob,
    working: Sequence[Array],
    own: Array,
    inside: Array,
    outside: Outside,
    ran: Sequence[tuple[float, float]],
) -> dict[Part, TimeEstimate]:
    """Divide the time of its steps that was its own.

    Args:
        working: The fraction of each bucket in which it was ready to run, its GPU was busy, or it
            was blocked; then its low and high ends.
        own: The fraction of each bucket that it lost to nobody and was not blocked on a disk.
        inside: Seconds of each bucket within its steps.
        ran: When its tasks ran.

    Returns:
        `memory` has only what it waited for the kernel to read dropped pages again.
    """
    left = float(np.sum(own * inside))
    disk, elsewhere, network = (
        float(np.sum(part * inside))
        for part in (outside.by_disk, outside.lost, outside.through("network"))
    )
    seconds = left + disk
    # times measured by a task include its losses
    calm = left / max(float(np.sum(inside)), 1e-9)
    saved = sum(float(row.seconds or 0.0) for row in job.checkpoints if row.why != "resumed")
    saving = min(saved + job.asides.get("saving", 0.0) * calm, left)
    again = min(_done_again(job), left - saving)
    evaluation = min(evaluated(job) * calm, left - saving - again)
    left -= saving + again + evaluation
    division = job.division
    # sampled steps do not show who caused a wait
    sampled = left + disk + elsewhere
    blocked = disk + float(np.sum((outside.through("disk") + outside.by_memory) * inside))
    if division is not None:
        waits = sampled * (division.input_fraction or 0.0)
    else:
        waits = max(waited_for_others(job, ran) * calm - evaluation, 0.0)
    waits = min(max(waits - blocked, 0.0), left)
    exposed = float(np.sum(outside.by_nic * inside))
    if job.exposed_fraction is not None:
        exposed = sampled * job.exposed_fraction - network
    exposed = min(max(exposed, 0.0), left - waits)
    computing = max(left - waits - exposed, 0.0)
    known = waits + exposed + saving + evaluation
    reread = min(float(np.sum(outside.reread * inside)), waits) if division is not None else 0.0
    waits -= reread
    unexplained, most, least = (
        min(max(float(np.sum(np.clip(1.0 - part, 0.0, own) * inside)) - known, 0.0), computing)
        for part in working
    )
    garbage = min(job.asides.get("garbage-collection", 0.0) * calm, computing - unexplained)
    compute = computing - unexplained - garbage
    return {
        "compute": TimeEstimate(
            compute,
            max(0.9 * compute - (most - unexplained), 0.0),
            min(1.1 * compute + unexplained, seconds),
        ),
        "input": sum_of([within(waits, 0.1, seconds), within(disk, 0.3, seconds)], seconds),
        "memory": exact(reread),
        "communication": within(exposed, 0.1, seconds),
        "checkpoints": exact(saving),
        "evaluation": within(evaluation, 0.1, seconds),
        "garbage-collection": within(garbage, 0.1, seconds),
        "faults": within(again, 0.1, seconds),
        "unexplained": TimeEstimate(unexplained, 0.9 * least, min(1.1 * most, seconds)),
    }


def started(seconds: float, job: RecordedJob, elapsed: float) -> TimeEstimate:
    """Seconds of its start. Its first step may have begun anywhere between two reports, so the band
    spans these.
    """
    times = job.progress.t[np.isfinite(job.progress.step)]
    between = float(times[1] - times[0]) if len(times) > 1 and seconds > 0.0 else 0.0
    estimate = within(seconds, 0.1, elapsed)
    return TimeEstimate(
        seconds,
        max(min(estimate.low, seconds - between), 0.0),
        min(max(estimate.high, seconds + between), elapsed),
    )


def goes_on(job: RecordedJob, start: float, grid: Grid) -> bool:
    """Whether it had made steps in this attempt before the account begins."""
    return bool(start <= grid.edges[0] and (job.progress.t < start).any())


def under_way(job: RecordedJob, start: float, end: float) -> float:
    """When the first step of an attempt from `start` to `end` began: as long before the first
    report as the second came after it. Without reported steps it is `start`: nothing separates the
    start from the rest.
    """
    progress = job.progress
    kept = np.isfinite(progress.step) & (progress.t >= start) & (progress.t <= end)
    times = progress.t[kept]
    if not len(times):
        return start
    first = float(times[0])
    between = float(times[1]) - first if len(times) > 1 else 0.0
    return min(max(first - between, start), end)


def _done_again(job: RecordedJob) -> float:
    """Seconds of steps repeated after a fault."""
    steps = sum(fault.steps or 0 for fault in job.faults)
    if not steps or job.division is None:
        return 0.0
    return steps * job.division.step_seconds
