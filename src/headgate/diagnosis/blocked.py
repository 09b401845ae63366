"""Divide a job's time blocked on a disk among neighbours, the disk itself, and its own memory
limit.

The kernel counts the fraction of time in which some thread was blocked on a disk. The job loses the
part that no other thread hides. That part is divided in this order:

1. If its memory is full, its limit gets the reads of pages dropped for lack of memory (refaults).
   The kernel's CPU time for these is separate: only what a loader waits for is lost.
2. Neighbours get the extra time that the same bytes took while they used the disk, in proportion to
   their bytes. If neighbours were always present, it is the extra time over the disk's known rate.
   A neighbour with little traffic gets nothing, and none gets more than its fraction of all bytes.
   The job's own low traffic beside them does not matter: the more they keep it from the disk, the
   lower it is.
3. The disk gets the rest.

If only the node's pressure is known, it counts the waiting of all tasks. Beside a neighbour, the
job then counts as blocked while idle, but only for longer than it was idle for the same bytes
without the neighbour.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headgate.recorded.usage import Array, ratio

_LIKE = 0.1
"""Fraction of the bytes that a job moves beside neighbours. If it moved less without them, it did
something else, for example read from memory.
"""
_AWAY, _FAINT = 0.05, 0.01
"""Fractions of the job's own bytes and of the disk's capacity; neighbours below either count as
away.
"""
_THERE, _LEAST_BYTES = 0.2, 1e6
"""Fraction of the disk's capacity, and bytes a second; neighbours below either do not slow the
job.
"""
_FULL = 0.7
"""Fraction of its rate from which on a disk is full."""
_LEAST_BUCKETS = 3
_MEMORY_FULL = 0.85
"""Fraction of its limit, including page cache, from which on a task's memory is full: the kernel
frees ahead.
"""


@dataclass(frozen=True, slots=True, eq=False)
class OnDisk:
    """A job on the disk of a node, in each bucket of a grid: arrays of one length; NaN: no reading.

    Args:
        blocked: Fraction of the bucket in which it was blocked on the disk and did nothing else.
        idle: Fraction of the bucket in which it did nothing, for whatever reason.
        shared: Whether `blocked` also counts the waiting of others.
        moved: Bytes a second that it read and wrote.
        read: Bytes a second that it read.
        refaulted: Pages a second that it read again.
        kernel: Cores that the kernel used on its behalf, for each process that reads.
        pressure: Fraction of the bucket in which one of its threads waited for memory.
        memory_bytes: Memory in use, including page cache.
        memory_limit: Bytes; infinite: no limit.
    """

    blocked: Array
    idle: Array
    shared: bool
    moved: Array
    read: Array
    refaulted: Array
    kernel: Array
    pressure: Array
    memory_bytes: Array
    memory_limit: float


@dataclass(frozen=True, slots=True, eq=False)
class Blocked:
    """Fractions of each bucket, 0 to 1: arrays over the grid.

    Args:
        by: Lost to each neighbour, by its name.
        by_memory: Blocked by its own memory limit.
        reread: The kernel's CPU time for reads of dropped pages, within its own work.
        rest: Blocked on the disk without a culprit.
        unsure: The part of `rest` in which neighbours moved more than it did, at unknown cost.
    """

    by: Mapping[str, Array]
    by_memory: Array
    reread: Array
    rest: Array
    unsure: Array


def blocked_on_disk(
    job: OnDisk, neighbours: Mapping[str, Array], rate: float | None, own: Array, stepping: Array
) -> Blocked:
    """The cost of being blocked, in each bucket.

    Args:
        neighbours: Bytes a second of each on the same disk.
        rate: Bytes a second of the disk; None: unknown.
        own: Fraction of each bucket that it lost to nobody so far.
        stepping: Fraction of each bucket within its steps.
    """
    blocked, moved = np.nan_to_num(job.blocked), np.nan_to_num(job.moved)
    used = {name: np.nan_to_num(neighbour) for name, neighbour in neighbours.items()}
    taken = sum(used.values(), np.zeros_like(moved))
    surely = np.where(job.shared & (moved <= taken), 0.0, blocked)
    full = np.nan_to_num(job.memory_bytes) >= _MEMORY_FULL * job.memory_limit
    again = np.minimum(
        ratio(np.nan_to_num(job.refaulted) * mmap.PAGESIZE, np.nan_to_num(job.read)), 1.0
    )
    # Freeing memory also takes time, in which it is not blocked.
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
    unattributed = np.maximum(surely - lost, 0.0)
    return Blocked(
        by={name: lost * ratio(bytes_used, taken) for name, bytes_used in used.items()},
        by_memory=by_memory,
        reread=np.where(full, np.minimum(np.nan_to_num(job.kernel) * again, left), 0.0),
        rest=unattributed,
        unsure=np.where((taken > moved) & (compared is None and not rate), unattributed, 0.0),
    )


def _carries(whole: Array) -> float:
    """Bytes a second that the disk sustained for some seconds: a one-second burst may come from a
    cache.
    """
    return float(np.sort(whole)[-_LEAST_BUCKETS:][0]) if len(whole) else 0.0


def _compared(
    blocked: Array, stood: Array, moved: Array, taken: Array, carries: float, stepping: Array
) -> Array | None:
    """The part of `blocked` due to neighbours with traffic `taken`: the excess over the time
    `stood` that the same bytes took without them.

    Only its steps are compared, because it reads and writes other data before them. None:
    neighbours were always present, or it moved almost nothing without them.
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
    """The part of `blocked` due to neighbours if no comparison is possible: the excess over its
    bytes' time at the disk's `rate`, while the disk was full.
    """
    total_moved = moved + taken
    most = max(_carries(total_moved), rate)
    present = (taken >= _THERE * most) & (total_moved >= _FULL * most)
    return np.where(
        present, np.clip(blocked - moved / most, 0.0, blocked * ratio(taken, total_moved)), 0.0
    )
