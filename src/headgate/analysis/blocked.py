"""Divides the time that a job was blocked on a disk: among its neighbours, the disk itself, and its own limit of
memory.

The kernel counts for how much of the time some thread was blocked on a disk. The job loses the part that no other
thread hides. That part is divided in this order:

1. If its memory is full, its limit gets the reads of pages that had been dropped for want of memory (refaults).
2. Neighbours get the extra time that the same bytes took while they used the disk, in proportion to the bytes that they
   moved. If neighbours were always there, it is the extra time over the disk's known rate. A neighbour that moved
   little gets nothing, and none gets more than its part of all bytes.
3. The disk gets the rest.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headgate.analysis.usage import Array, ratio

_LEAST_BYTES = 1e6
"""Bytes a second that are too few to tell anything."""
_AWAY = 0.05
"""Part of the job's own bytes: neighbours that move less count as away."""
_THERE = 0.2
"""Part of the most bytes that the disk was seen to move: neighbours that move less keep nobody from it."""
_FULL = 0.7
"""Part of its rate, from which on a disk is full."""
_LEAST_BUCKETS = 3
_MEMORY_FULL = 0.85
"""Part of its limit, page cache included, from which on a task's memory is full: the kernel frees ahead."""


@dataclass(frozen=True, slots=True, eq=False)
class OnDisk:
    """A job on the disk of a node, in each bucket of a grid: arrays of one length, NaN where nothing was read.

    Args:
        blocked: Part of the bucket in which it was blocked on the disk and did nothing else.
        moved: Bytes a second that it read and wrote.
        read: Bytes a second that it read.
        refaulted: Pages a second that it read again.
        pressure: Part of the bucket in which a thread of it waited for memory.
        memory_bytes: In use, page cache included.
        memory_limit: Bytes; infinite where it has none.
    """

    blocked: Array
    moved: Array
    read: Array
    refaulted: Array
    pressure: Array
    memory_bytes: Array
    memory_limit: float


@dataclass(frozen=True, slots=True, eq=False)
class Blocked:
    """Parts of each bucket, 0 to 1: arrays over the grid.

    Args:
        by: Lost to each neighbour, by its name.
        by_memory: Lost to its own limit of memory.
        rest: Blocked on the disk without anybody to blame.
    """

    by: Mapping[str, Array]
    by_memory: Array
    rest: Array


def blocked_on_disk(
    job: OnDisk, neighbours: Mapping[str, Array], rate: float | None, own: Array, stepping: Array
) -> Blocked:
    """What being blocked cost a job in each bucket.

    Args:
        neighbours: Bytes a second that each moved on the same disk.
        rate: Bytes a second of the disk; None where not known.
        own: Part of each bucket that it lost to nobody so far.
        stepping: Part of each bucket that belongs to its steps.
    """
    blocked, moved = np.nan_to_num(job.blocked), np.nan_to_num(job.moved)
    full = np.nan_to_num(job.memory_bytes) >= _MEMORY_FULL * job.memory_limit
    again = np.minimum(ratio(np.nan_to_num(job.refaulted) * mmap.PAGESIZE, np.nan_to_num(job.read)), 1.0)
    # To free memory takes time as well, in which it is not blocked.
    thrashed = np.maximum(blocked * again, np.nan_to_num(job.pressure))
    by_memory = np.where(full, np.minimum(thrashed, own), 0.0)
    rest = np.minimum(np.where(full, blocked * (1.0 - again), blocked), np.maximum(own - by_memory, 0.0))
    used = {name: np.nan_to_num(each) for name, each in neighbours.items()}
    taken = sum(used.values(), np.zeros_like(moved))
    lost = _lost(rest, moved, taken, rate, stepping)
    by = {name: lost * ratio(each, taken) for name, each in used.items()}
    return Blocked(by=by, by_memory=by_memory, rest=rest - lost)


def _lost(blocked: Array, moved: Array, taken: Array, rate: float | None, stepping: Array) -> Array:
    """The part of `blocked` that is due to neighbours, which moved `taken` bytes a second. What it cost the job without
    them is told by its steps: before these it reads and writes other things."""
    whole = moved + taken
    most = max(float(np.max(whole, initial=0.0)), rate or 0.0)
    reads = moved >= _LEAST_BYTES
    alone = (stepping > 0.5) & reads & (taken <= np.maximum(_AWAY * moved, _LEAST_BYTES / 10))
    if np.count_nonzero(alone) >= _LEAST_BUCKETS:
        without = moved * float(np.sum(blocked[alone]) / np.sum(moved[alone]))
        there = taken >= _THERE * most
    elif rate:
        without = moved / most
        there = (taken >= _THERE * most) & (whole >= _FULL * most)
    else:
        return np.zeros_like(blocked)
    lost = np.clip(blocked - without, 0.0, blocked * ratio(taken, whole))
    return np.where(reads & there, lost, 0.0)
