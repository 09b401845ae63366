"""Each task's part of the memory of its job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import ceil

from headgate.controller.records import JobRecord
from headgate.controller.task_record import TaskRecord
from headgate.model.identifiers import TaskId

_HEADROOM = 1.25
"""A task's memory limit is at least this many times its peak: beyond the limit it is killed."""
_NEAR = 1.1
"""A limit below this many times the peak has to be raised."""


def outgrows_memory(job: JobRecord, task: TaskRecord) -> bool:
    """Whether a task's memory limit has to be recomputed: the task is near it, or had none because
    its need was unknown.
    """
    granted, limit = job.granted.memory_bytes, task.share.memory_bytes
    if job.spec.limits.memory_bytes is not None or not isinstance(granted, int):
        return False
    return not isinstance(limit, int) or _NEAR * task.most_bytes > limit


def memory_of_tasks(whole: int, job: JobRecord) -> Mapping[TaskId, int | None]:
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
        id: max(int(whole * need / total), ceil(_HEADROOM * need)) for id, need in needs.items()
    }


def _mean_bytes(tasks: Iterable[TaskRecord]) -> float | None:
    """The mean peak memory of tasks with a known peak."""
    known = [task.most_bytes for task in tasks if task.most_bytes > 0]
    return sum(known) / len(known) if known else None
