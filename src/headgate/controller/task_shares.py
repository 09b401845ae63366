"""Split a job's share into shares of its tasks, and divide GPU time among jobs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from headgate.controller.records import JobRecord, TaskRecord
from headgate.model.identifiers import JobId, TaskId
from headgate.model.shares import NOTHING, WEIGHT_DEFAULT, Share

_PINNED_WEIGHT = 10_000.0
"""Weight of a pinned job, above all others, so that it gets its slice. A cap limits it to the
slice.
"""
_BESIDE_PINNED = 0.1
"""Total weight of all other jobs on the node, as a fraction of the pinned jobs' weight."""
_LEFT_TO_OTHERS = 0.05
"""Fraction of a GPU that pinned jobs cannot take."""
_HEADROOM = 1.25
"""A task's memory limit is at least this many times its peak: beyond the limit it is killed."""
_NEAR = 1.1
"""A limit below this many times the peak has to be raised."""


def share_of_task(
    share: Share, job: JobRecord, task: TaskRecord, beside: int, cores: float, pinned: float
) -> Share:
    """The share of one task of a job, never above what the user allows.

    Caps and disk rates are divided among all tasks, memory by each task's use. The weight is
    divided among the tasks on one node. A pinned job gets its slice of the node's cores, reduced if
    all slices exceed the node. The weights of the other jobs are then small beside its own.

    Args:
        beside: Number of the job's tasks on the node.
        cores: Cores of the node.
        pinned: Sum of all slices on the node.
    """
    most = job.allowed(task).cpu_cap_cores
    if (slice := job.spec.slice) is not None:
        own = slice / max(pinned, 1.0) * cores / beside
        own = min(own, most) if isinstance(most, int | float) else own
        return Share(cpu_weight=_PINNED_WEIGHT / beside, cpu_cap_cores=own)
    if share is NOTHING:
        return NOTHING
    cap, weight = share.cpu_cap_cores, share.cpu_weight
    if pinned and weight is not None:
        weight *= _BESIDE_PINNED
    if isinstance(cap, int | float):
        cap = cap / len(job.tasks)
        cap = min(cap, most) if isinstance(most, int | float) else cap
    elif cap is not None and most is not None:
        cap = most
    memory, disk = share.memory_bytes, share.disk_bytes_per_second
    if isinstance(memory, int):
        memory = _memory(memory, job)[task.id]
    return Share(
        cpu_weight=max(weight / beside, 1.0) if weight is not None else None,
        cpu_cap_cores=cap,
        memory_bytes=memory if job.spec.limits.memory_bytes is None else None,
        disk_bytes_per_second=disk / len(job.tasks) if isinstance(disk, int | float) else disk,
        gpu_fraction=share.gpu_fraction,
    )


def outgrows_memory(job: JobRecord, task: TaskRecord) -> bool:
    """Whether a task's memory limit has to be recomputed: the task is near it, or had none because
    its need was unknown.
    """
    granted, limit = job.granted.memory_bytes, task.share.memory_bytes
    if job.spec.limits.memory_bytes is not None or not isinstance(granted, int):
        return False
    return not isinstance(limit, int) or _NEAR * task.most_bytes > limit


def _memory(whole: int, job: JobRecord) -> Mapping[TaskId, int | None]:
    """Each task's part of its job's memory (bytes), by need; servers need less than workers.

    A task needs its peak use, at least the mean of its kind, because a new task will grow. Each
    limit leaves the headroom. None if no task is known to use any: a limit would kill it.
    """
    tasks = list(job.tasks.values())
    every = _mean_bytes(tasks)
    if every is None:
        return dict.fromkeys(job.tasks)
    usual = {
        kind: _mean_bytes(task for task in tasks if task.is_worker == kind) or every
        for kind in (True, False)
    }
    needs = {task.id: max(task.most_bytes, usual[task.is_worker]) for task in tasks}
    total = sum(needs.values())
    return {
        id: max(int(whole * need / total), math.ceil(_HEADROOM * need))
        for id, need in needs.items()
    }


def _mean_bytes(tasks: Iterable[TaskRecord]) -> float | None:
    """The mean peak memory of tasks with a known peak."""
    known = [task.most_bytes for task in tasks if task.most_bytes > 0]
    return sum(known) / len(known) if known else None


def gpu_fractions(users: Mapping[int, Collection[JobRecord]]) -> Mapping[JobId, float]:
    """The fraction of GPU time of each job.

    A pinned job gets its slice, reduced if slices exceed the GPU. The others get, by weight, what
    their fullest GPU leaves. What a job leaves on a GPU because another GPU holds it back goes to
    the others there. This is max-min fairness by progressive filling (Bertsekas and Gallager, Data
    Networks, 6.5.2).

    Args:
        users: The jobs that compute on each GPU of a node.

    Returns:
        The fractions, without jobs that have no weight or whose GPU time the policy grants itself.
    """
    fractions: dict[JobId, float] = {}
    left: dict[int, float] = {}
    weights: dict[int, dict[JobId, float]] = {}
    for gpu, jobs in users.items():
        pinned = {job.id: slice for job in jobs if (slice := job.spec.slice) is not None}
        whole = max(sum(pinned.values()), 1.0)
        fractions |= {
            id: min(slice / whole, fractions.get(id, 1.0)) for id, slice in pinned.items()
        }
        usual = WEIGHT_DEFAULT if pinned else None
        free = [job for job in jobs if job.id not in pinned and job.granted.gpu_fraction is None]
        weights[gpu] = {
            job.id: weight
            for job in free
            if (weight := job.granted.cpu_weight or usual) is not None
        }
    for gpu, jobs in users.items():
        left[gpu] = max(
            1.0 - sum(fractions[job.id] for job in jobs if job.spec.slice is not None),
            _LEFT_TO_OTHERS,
        )
    while any(weights.values()):
        totals = {
            gpu: sum(gpu_weights.values()) for gpu, gpu_weights in weights.items() if gpu_weights
        }
        fullest = min(totals, key=lambda gpu: left[gpu] / totals[gpu])
        part = left[fullest]
        for id, weight in list(weights[fullest].items()):
            fractions[id] = part * weight / totals[fullest]
            for gpu, gpu_weights in weights.items():
                if gpu_weights.pop(id, None) is not None:
                    left[gpu] -= fractions[id]
    return fractions
