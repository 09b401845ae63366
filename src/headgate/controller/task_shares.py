"""What a share of a whole job is for one of its tasks, and what jobs on one GPU have of its
time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping

from headgate.controller.records import JobRecord, TaskRecord
from headgate.model.identifiers import JobId, TaskId
from headgate.model.shares import NOTHING, WEIGHT_DEFAULT, Share

_PINNED_WEIGHT = 10_000.0
"""Of a pinned job, which a cap holds to its slice: more than any other's, so that it gets as
much.
"""
_BESIDE_PINNED = 0.1
"""Of their weights, all others on the node have, so that they are little against it however many
they are.
"""
_LEFT_TO_OTHERS = 0.05
"""Of a GPU, whatever is pinned to it."""
_HEADROOM = 1.25
"""A task is left so many times the most memory that it used, whatever its job is granted: past a
limit it is killed.
"""
_NEAR = 1.1
"""Times the most memory that it used, below which a limit has to be looked at again."""


def share_of_task(
    share: Share, job: JobRecord, task: TaskRecord, beside: int, cores: float, pinned: float
) -> Share:
    """The share of one task of a job, never above what the user allows.

    Caps and disk rates are divided among all tasks, memory by what each uses. The weight is divided
    among the `beside` tasks on one node. A pinned job has its slice of the node's `cores`. It is
    cut down where all slices there, `pinned`, are more than the node. The others' weights are
    little beside its own.
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
    """Whether a task's memory limit, its part of its job's, has to be looked at: the task has come
    near it, or has none because nobody knew what it needs.
    """
    granted, limit = job.granted.memory_bytes, task.share.memory_bytes
    if job.spec.limits.memory_bytes is not None or not isinstance(granted, int):
        return False
    return not isinstance(limit, int) or _NEAR * task.most_bytes > limit


def _memory(whole: int, job: JobRecord) -> Mapping[TaskId, int | None]:
    """Each task's part of its job's memory (bytes): as it needs it, since servers need what workers
    do not, and what leaves it room at least. It needs what it used at most, and no less than the
    others of its kind on average: one that has just started will need as much. None where none is
    known to have used any: it would be killed.
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
    """The mean of the most memory that each task used, where it is known."""
    known = [task.most_bytes for task in tasks if task.most_bytes > 0]
    return sum(known) / len(known) if known else None


def gpu_fractions(users: Mapping[int, Collection[JobRecord]]) -> Mapping[JobId, float]:
    """The fraction of their GPUs' time that jobs have.

    A pinned job has its slice, cut down where slices are more than the GPU. The others have by
    weight what the fullest of their GPUs leaves each. What a job leaves on a GPU because another
    one holds it back goes to the others there: max-min fairness by progressive filling (Bertsekas
    and Gallager, Data Networks, 6.5.2).

    Args:
        users: The jobs that compute on each GPU of a node.

    Returns:
        Without jobs that the policy does not weigh, or whose GPUs it grants itself.
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
