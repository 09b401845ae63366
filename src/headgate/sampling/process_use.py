"""What each process of a machine used since the last look: CPU time, and bytes on disks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headgate.machine.files import content

INIT = 1
"""The process that adopts children whose parents have ended. What these used is not its own."""


class ProcessKey(NamedTuple):
    """A process: its number, and its start in clock ticks since the boot, as a number comes
    again.
    """

    pid: int
    began: int


class UsedSoFar(NamedTuple):
    """A running total of a process, and of its ended children."""

    parent: int
    own: int
    of_children: int


@dataclass(frozen=True, slots=True)
class ProcessTimes:
    """A process at one look: its CPU time and that of its ended children, in clock ticks."""

    key: ProcessKey
    name: str
    nice: int
    ticks: UsedSoFar

    @property
    def pid(self) -> int:
        return self.key.pid


def read_processes(proc: Path) -> Iterator[ProcessTimes]:
    """All processes, without threads of the kernel.

    Args:
        proc: Where /proc is mounted.
    """
    for entry in os.listdir(proc):
        if entry.isdigit() and (process := read_process(proc, int(entry))) is not None:
            yield process


def read_process(proc: Path, pid: int) -> ProcessTimes | None:
    """A process; None: it has ended, or is a thread of the kernel."""
    opening, _, fields = content(proc / str(pid) / "stat").rpartition(")")
    words = fields.split()
    if len(words) <= 19 or words[1] == "2":
        return None
    children = sum(map(int, words[13:15])) if pid != INIT else 0
    return ProcessTimes(
        ProcessKey(pid, int(words[19])),
        opening.partition("(")[2],
        int(words[16]),
        UsedSoFar(int(words[1]), sum(map(int, words[11:13])), children),
    )


class Inheritance:
    """Tells what a process used by itself from what it took over when a child ended."""

    def __init__(self) -> None:
        self._late: dict[int, int] = {}

    def since(
        self, before: Mapping[ProcessKey, UsedSoFar], now: Mapping[ProcessKey, UsedSoFar]
    ) -> dict[int, int]:
        """What each process used between two looks: by itself, and what its children used that
        started and ended in between.

        When a process ends, its total and that of its children go to its parent at once. Totals of
        processes seen at the last look were counted while they ran. They went to the nearest
        living ancestor, or to a process above it that adopts orphans.
        """
        by_pid = {key.pid: used for key, used in now.items()}
        parents = {key.pid: used.parent for key, used in before.items()} | {
            pid: used.parent for pid, used in by_pid.items()
        }
        grown = {
            key.pid: used.of_children - (before[key].of_children if key in before else 0)
            for key, used in now.items()
        }
        late, self._late = self._late, {}
        ended = [
            (used.parent, used.own + used.of_children)
            for key, used in before.items()
            if key not in now
        ]
        for first, total in (*late.items(), *ended):
            left, pid = total, first
            for _ in range(len(parents)):
                taken = min(max(grown.get(pid, 0), 0), left)
                grown[pid] = grown.get(pid, 0) - taken
                left -= taken
                if not left or pid not in parents:
                    break
                pid = parents[pid]
            # it ended just after its parent was read
            if left and first in by_pid and first not in late:
                self._late[first] = self._late.get(first, 0) + left
        return {
            key.pid: used.own
            - (before[key].own if key in before else 0)
            + max(grown.get(key.pid, 0), 0)
            for key, used in now.items()
        }


class DiskBytes(NamedTuple):
    """Bytes moved on disks."""

    read: float = 0.0
    written: float = 0.0

    def plus(self, other: DiskBytes) -> DiskBytes:
        return DiskBytes(self.read + other.read, self.written + other.written)


class DiskBytesReader:
    """Reads what processes moved on disks since the last look, as far as this user may see it: of
    others' processes only as root (ptrace access, proc_pid_io(5)). A write counts when a page
    becomes dirty. A process that could not be read at two looks is not opened again.

    Args:
        proc: Where /proc is mounted.
    """

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._seen: tuple[dict[ProcessKey, UsedSoFar], ...] | None = None
        self._inheritances = [Inheritance() for _ in DiskBytes._fields]
        self._refused: set[ProcessKey] = set()
        self._unread: set[ProcessKey] = set()

    def look(self, processes: Mapping[ProcessKey, int]) -> dict[ProcessKey, DiskBytes]:
        """What each moved since the last look; those that cannot be read are left out.

        Args:
            processes: The parent of each process to read.
        """
        before = self._seen
        self._seen = tuple({} for _ in DiskBytes._fields)
        unread_before, self._unread = self._unread, set()
        self._refused &= processes.keys()
        for key, parent in processes.items():
            if key in self._refused:
                continue
            moved = _moved(content(self._proc / str(key.pid) / "io"))
            if moved is not None and key.pid != INIT:
                # the kernel adds a child's bytes to a parent that waits for it
                for seen, total in zip(self._seen, moved, strict=True):
                    seen[key] = UsedSoFar(parent, 0, total)
            elif moved is None:  # at its start it may not be its user's yet: look once more
                (self._refused if key in unread_before else self._unread).add(key)
        if before is None:
            return dict.fromkeys(self._seen[0], DiskBytes())
        used = [
            inheritance.since(*looks)
            for inheritance, *looks in zip(self._inheritances, before, self._seen, strict=True)
        ]
        return {key: DiskBytes(*(way[key.pid] for way in used)) for key in self._seen[0]}


def _moved(text: str) -> tuple[int, int] | None:
    """Bytes read and written, from /proc/PID/io; None: it could not be read."""
    counters: dict[str, int] = {}
    for line in text.splitlines():
        name, _, number = line.partition(":")
        with suppress(ValueError):
            counters[name] = int(number)
    if "read_bytes" not in counters:
        return None
    return counters["read_bytes"], counters.get("write_bytes", 0)
