"""Detect memory that creeps up over the steps of a job, as a leak does.

After a warm-up, a straight line is fitted through the readings by the median of all slopes (Theil,
1950; Sen, 1968). It counts if the readings rise by rank (Mann, 1945; Kendall, 1975), in each third
of the time, by much more than the memory ever fell. So neither one allocation nor a sawtooth does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from headgate.diagnosis.findings import CreepFacts
from headgate.recorded.jobs import RecordedJob, RecordedNode, RecordedTask
from headgate.recorded.progress import ProgressSeries
from headgate.recorded.usage import Array, Signal

_WARM_UP = 0.25
"""Fraction of the time of its steps that is left out: loaders, caches and optimizers allocate."""
_LEAST_READINGS, _LEAST_SECONDS, _MOST_POINTS = 10, 9.0, 120
_LEAST_BYTES, _LEAST_PART = 16 * 2**20, 0.05
"""Least growth over the readings, in bytes and as a fraction of the memory at their beginning."""
_DEVIATIONS = 3.3
"""Deviations of the rank statistic from that of memory without a trend: once in a thousand."""
_THIRDS = 1.0 / 3.0
"""Least slope in each third of the time, as a fraction of the whole slope."""
_MOST_FALL = 0.5
"""Most that memory may have fallen from its highest, as a fraction of its growth."""


def creeping(
    job: RecordedJob,
    nodes: Mapping[str, RecordedNode],
    stretches: Sequence[tuple[float, float]],
    column: Literal["memory_bytes", "gpu_memory_bytes"] = "memory_bytes",
) -> CreepFacts | None:
    """The task whose memory creeps up fastest; None: no task's does.

    Args:
        nodes: The nodes of the run, by name.
        stretches: When it made steps, one for each attempt. Only the last one counts. A job that
            reports no steps does not creep: nothing tells its start from the rest.
        column: Which memory.
    """
    if not stretches or not np.isfinite(job.progress.step).any():
        return None  # imports and data allocate too
    begin, end = stretches[-1]
    begin += _WARM_UP * (end - begin)
    memories = {task: task.signal(column).around(begin, end) for task in job.tasks}
    slopes = {
        task: slope for task, memory in memories.items() if (slope := growth(memory)) is not None
    }
    worst = max(slopes, key=lambda task: slopes[task], default=None)
    if worst is None:
        return None
    until = _until_full if column == "memory_bytes" else _until_gpu_full
    limit, seconds = until(job, worst, nodes.get(worst.node), slopes, end)
    return CreepFacts(
        task=worst.name,
        bytes_per_second=slopes[worst],
        bytes_per_step=_of_step(job.progress, memories[worst]),
        limit=limit,
        seconds_left=seconds,
    )


def growth(memory: Signal) -> float | None:
    """Bytes a second by which memory creeps up; None: it does not, or there are too few
    readings.
    """
    if len(memory) < _LEAST_READINGS or memory.end[-1] - memory.end[0] < _LEAST_SECONDS:
        return None
    t, values = _chosen(memory)
    slope = _slope(t, values)
    grown = slope * float(t[-1] - t[0])
    if grown < max(_LEAST_BYTES, _LEAST_PART * float(np.median(values) - grown / 2.0)):
        return None
    fell = float(np.max(np.maximum.accumulate(memory.value) - memory.value))
    if fell > _MOST_FALL * grown or _trend(values) < _DEVIATIONS:
        return None
    thirds = zip(np.array_split(t, 3), np.array_split(values, 3), strict=True)
    return slope if all(_slope(*third) >= _THIRDS * slope for third in thirds) else None


def _of_step(progress: ProgressSeries, memory: Signal) -> float | None:
    """Bytes a step, against the steps made at each reading; None: its steps are unknown."""
    known = np.isfinite(progress.step)
    if not known.any():
        return None
    at, values = _chosen(memory)
    steps = np.interp(at, progress.t[known], np.maximum.accumulate(progress.step[known]))
    distinct = np.append(np.diff(steps) > 0.0, True)
    if np.count_nonzero(distinct) < _LEAST_READINGS:
        return None
    return _slope(steps[distinct], values[distinct])


def _chosen(memory: Signal) -> tuple[Array, Array]:
    """Some readings with their times, evenly spread."""
    chosen = np.linspace(0, len(memory) - 1, min(len(memory), _MOST_POINTS)).astype(int)
    return memory.end[chosen], memory.value[chosen]


def _slope(t: Array, values: Array) -> float:
    """The median slope of all pairs of points."""
    later, earlier = np.tril_indices(len(t), -1)
    return float(np.median((values[later] - values[earlier]) / (t[later] - t[earlier])))


def _trend(values: Array) -> float:
    """Deviations by which the ranks of the values rise."""
    count = len(values)
    later, earlier = np.tril_indices(count, -1)
    score = float(np.sum(np.sign(values[later] - values[earlier])))
    return score / math.sqrt(count * (count - 1) * (2 * count + 5) / 18.0)


def _until_full(
    job: RecordedJob,
    task: RecordedTask,
    node: RecordedNode | None,
    slopes: Mapping[RecordedTask, float],
    end: float,
) -> tuple[float | None, float | None]:
    """The job's own limit of memory, and seconds until that or its node's memory is full; None:
    unknown.
    """
    limit, now = job.limit("memory_bytes"), task.signal("memory_bytes").around(0.0, end).last
    if limit is not None and now is not None:
        return limit, max(limit - now, 0.0) / slopes[task]
    left = node.signal("memory_available").around(0.0, end).last if node is not None else None
    if left is None:
        return None, None
    return None, left / sum(slope for other, slope in slopes.items() if other.node == task.node)


def _until_gpu_full(
    job: RecordedJob,
    task: RecordedTask,
    node: RecordedNode | None,
    slopes: Mapping[RecordedTask, float],
    end: float,
) -> tuple[float | None, float | None]:
    """The memory of the task's GPUs, and seconds until that is full; None: unknown."""
    of_gpus = node.gpu_bytes if node is not None else {}
    if node is None or not task.gpus or not task.gpus <= of_gpus.keys():
        return None, None
    # others may hold memory there too
    sharing = [other for other in slopes if other.node == task.node and other.gpus & task.gpus]
    whole = task.gpus == of_gpus.keys()
    held = (node if whole else task).signal("gpu_memory_bytes").around(0.0, end).last
    limit = sum(of_gpus[number] for number in task.gpus)
    rise = sum(slopes[other] for other in sharing)
    return limit, None if held is None else max(limit - held, 0.0) / rise
