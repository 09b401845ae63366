"""Reads what processes of all users move on disks, which the kernel shows only to root."""

from __future__ import annotations

from pathlib import Path

from headgate.arbiter.records import ProcessMoved
from headgate.sampling.process_use import DiskBytesReader, read_processes

_LEAST_BYTES = 1 << 18
"""Less since the last reading slows nobody, and is nobody's business."""
_MOST_PROCESSES = 500


class DiskReadings:
    """What processes moved between two readings.

    Args:
        proc: Where /proc is mounted.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._reader = DiskBytesReader(proc)

    def read(self) -> tuple[ProcessMoved, ...]:
        """The processes that moved most since the last reading; none that moved little."""
        parents = {process.key: process.ticks.parent for process in read_processes(self._proc)}
        moved = [
            ProcessMoved(*key, int(disk.read), int(disk.written))
            for key, disk in self._reader.look(parents).items()
            if disk.read + disk.written >= _LEAST_BYTES
        ]
        moved.sort(key=lambda process: -(process.read + process.written))
        return tuple(moved[:_MOST_PROCESSES])
