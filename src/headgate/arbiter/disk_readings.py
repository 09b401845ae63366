"""Reads what processes of all users move on disks, which the kernel shows only to root."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from headgate.arbiter.records import DiskMoved, ProcessMoved
from headgate.sampling.process_use import DiskBytesReader, read_processes

_LEAST_BYTES = 1 << 18
"""Less since the last reading slows nobody, and is nobody's business."""
_MOST_PROCESSES = 500
_LONGEST_SECONDS = 30.0
"""A reading after a longer time is a first one: nobody listened in between."""


class DiskReadings:
    """What processes moved between two readings.

    Args:
        proc: Where /proc is mounted.
        clock: Seconds.
    """

    def __init__(
        self, proc: Path = Path("/proc"), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._proc, self._clock = proc, clock
        self._reader = DiskBytesReader(proc)
        self._read_at = -math.inf

    def read(self) -> DiskMoved:
        """The processes that moved most since the last reading; none that moved little."""
        last, self._read_at = self._read_at, self._clock()
        seconds = self._read_at - last
        if seconds > _LONGEST_SECONDS:
            self._reader, seconds = DiskBytesReader(self._proc), 0.0
        parents = {process.key: process.ticks.parent for process in read_processes(self._proc)}
        moved = [
            ProcessMoved(*key, int(disk.read), int(disk.written))
            for key, disk in self._reader.look(parents).items()
            if disk.read + disk.written >= _LEAST_BYTES
        ]
        moved.sort(key=lambda process: -(process.read + process.written))
        return DiskMoved(tuple(moved[:_MOST_PROCESSES]), seconds)
