"""Divides the time that a job was blocked on a disk: among its neighbours, the disk itself, and its
own limit of memory.

The kernel counts for how much of the time some thread was blocked on a disk. The job loses the part
that no other thread hides. That part is divided in this order:

1. If its memory is full, its limit gets the reads of pages that had been dropped for want of memory
   (refaults).
2. Neighbours get the extra time that the same bytes took while they used the disk, in proportion to
   the bytes that they moved. If neighbours were always there, it is the extra time over the disk's
   known rate. A neighbour that moved little gets nothing, and none gets more than its part of all
   bytes. How little the job moved beside them does not matter: the more they keep it from the disk,
   the less that is.
3. The disk gets the rest.

Where only the node's pressure is known, it counts everybody's waiting. Beside a neighbour, the job
then counts as blocked while it did nothing, but only for longer than it did nothing for the same
bytes without the neighbour.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headgate.recorded.usage import Array, ratio

_LIKE = 0.1
"""Part of the bytes that a job moves beside neighbours. Where it moved less without them, it did
something else, as where its data came from memory.
"""
_AWAY, _FAINT = 0.05, 0.01
"""Parts of the job's own bytes, and of what the disk carries: neighbours that move less than either
count as away.
"""
_THERE, _LEAST_BYTES = 0.2, 1e6
"""Part of what the disk carries, and bytes a second: neighbours that move less than either keep
nobody from it.
"""
_FULL = 0.7
"""Part of its rate, from which on a disk is full."""
_LEAST_BUCKETS = 3
_MEMORY_FULL = 0.85
"""Part of its limit, page cache included, from which on a task's memory is full: the kernel frees
ahead.
"""


@dataclass(frozen=True, slots=True, eq=False)
class OnDisk:
    """A job on the disk of a node, in each bucket of a grid: arrays of one length, NaN where
    nothing was read.

    Args:
        blocked: Part of the bucket in which it was blocked on the disk and did nothing else.
        idle: Part of the bucket in which it did nothing, for whatever reason.
        shared: Whether `blocked` counts what others waited for as well.
        moved: Bytes a second that it read and wrote.
        read: Bytes a second that it read.
        refaulted: Pages a second that it read again.
        pressure: Part of the bucket in which a thread of it waited for memory.
        memory_bytes: In use, page cache included.
        memory_limit: Bytes; infinite where it has none.
    """

    blocked: Array
    idle: Array
    shared: bool
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
        unsure: The part of `rest` in which neighbours moved more than it did, and nothing tells
            what that cost it.
    """

    by: Mapping[str, Array]
    by_memory: Array
    rest: Array
    unsure: Array


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
    used = {name: np.nan_to_num(neighbour) for name, neighbour in neighbours.items()}
    taken = sum(used.values(), np.zeros_like(moved))
    surely = np.where(job.shared & (moved <= taken), 0.0, blocked)
    full = np.nan_to_num(job.memory_bytes) >= _MEMORY_FULL * job.memory_limit
    again = np.minimum(
        ratio(np.nan_to_num(job.refaulted) * mmap.PAGESIZE, np.nan_to_num(job.read)), 1.0
    )
    # To free memory takes time as well, in which it is not blocked.
    thrashed = np.maximum(surely * again, np.nan_to_num(job.pressure))
    by_memory = np.where(full, np.minimum(thrashed, own), 0.0)
    left = np.maximum(own - by_memory, 0.0)
    surely, blocked = (
        np.minimum(np.where(full, estimate * (1.0 - again), estimate), left)
        for estimate in (surely, blocked)
    )
    stood = np.minimum(job.idle, left) if job.shared else blocked
    compared = _compared(blocked, stood, moved, taken, _carries(moved + taken), stepping)
    if compared is not None:
        lost = compared
    else:
        lost = _over_rate(surely, moved, taken, rate) if rate else np.zeros_like(blocked)
    rest = np.maximum(surely - lost, 0.0)
    return Blocked(
        by={name: lost * ratio(bytes_used, taken) for name, bytes_used in used.items()},
        by_memory=by_memory,
        rest=rest,
        unsure=np.where((taken > moved) & (compared is None and not rate), rest, 0.0),
    )


def _carries(whole: Array) -> float:
    """Bytes a second that the disk was seen to carry for some seconds: a burst of one may come from
    a cache below.
    """
    return float(np.sort(whole)[-_LEAST_BUCKETS:][0]) if len(whole) else 0.0


def _compared(
    blocked: Array, stood: Array, moved: Array, taken: Array, carries: float, stepping: Array
) -> Array | None:
    """The part of `blocked` that is due to neighbours, which moved `taken` bytes a second: what it
    was blocked beyond the part that the same bytes `stood` without them. Its steps tell that:
    before these it reads and writes other things. None if they do not, because neighbours were
    always there, or it moved next to nothing without them.
    """
    present = (taken >= max(_THERE * carries, _LEAST_BYTES)) & (blocked > 0.0)
    if not present.any():
        return np.zeros_like(blocked)
    steps = moved[present & (stepping > 0.5)]
    reads = moved >= max(_LIKE * float(np.mean(steps)) if len(steps) else 0.0, 1.0)
    alone = (stepping > 0.5) & reads & (taken <= np.maximum(_AWAY * moved, _FAINT * carries))
    if np.count_nonzero(alone) < _LEAST_BUCKETS:
        return None
    without = moved * float(np.sum(stood[alone]) / np.sum(moved[alone]))
    lost: Array = np.clip(blocked - without, 0.0, blocked * ratio(taken, moved + taken))
    return np.where(present, lost, 0.0)


def _over_rate(blocked: Array, moved: Array, taken: Array, rate: float) -> Array:
    """The same where nothing can be compared: what it was blocked beyond the part that its bytes
    take at the disk's `rate`, while the disk was full.
    """
    whole = moved + taken
    most = max(_carries(whole), rate)
    present = (taken >= _THERE * most) & (whole >= _FULL * most)
    return np.where(
        present, np.clip(blocked - moved / most, 0.0, blocked * ratio(taken, whole)), 0.0
    )
