"""Waiting: for a core, and for a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from headgate.cluster import Place
from headgate.telemetry.base import Boxed
from headgate.telemetry.columns import Column
from headgate.telemetry.sources import Source, SourcedSampler

_TICKS = os.sysconf("SC_CLK_TCK")
_PARENT = 1
"""Where the number of the process that started it stands, counted likewise."""
_WORKED_SECONDS = 1.0
"""A process that started others and ran for less is a shell or a launcher, and not the one that trains."""
_BLOCKED = 39
"""Where the time blocked on disks stands in /proc/PID/task/TID/stat, counted from after the name (field 42 of all)."""


class WaitingSampler(SourcedSampler):
    """`cpu_waiting`, `cpu_ready`, `main_ready` and `helper_cores` of a task, from schedstat of its threads;
    `disk_waiting` where the kernel accounts for delays (`kernel.task_delayacct=1`).

    A thread takes what it waited since the last reading along when it ends. Nothing of nodes: it is their tasks that
    wait.
    """

    name = "waiting"

    def open_node(self) -> None:
        return None

    def open_place(self, place: Place) -> None:
        return None

    def open_task(self, box: Boxed) -> Source | None:
        if not (self._root / "proc/self/schedstat").exists():
            return None
        return _Threads(box, self._root / "proc")


def accounts_for_delays(root: Path = Path("/")) -> bool:
    """Whether the kernel counts how long each thread is blocked on disks. It does not by default since Linux 5.14."""
    try:
        return (root / "proc/sys/kernel/task_delayacct").read_text().strip() == "1"
    except OSError:
        return False


class _Threads(Source):
    """Running totals of each living thread: seconds that it ran, waited for a core and was blocked on a disk.

    The main process of a task is the one that started others of it and has worked; all of it where there is none.
    """

    def __init__(self, box: Boxed, proc: Path) -> None:
        self._box = box
        self._proc = str(proc)
        self._delays = accounts_for_delays(proc.parent)
        self._last: dict[int, tuple[float, float, float]] = {}
        self._processes: dict[int, int] = {}  # by thread
        self._parents: dict[int, int] = {}  # by process
        self._at: float | None = None

    def read(self, now: float, /) -> dict[Column, float]:
        if now == self._at:
            return {}
        before, last = self._at, self._last
        self._processes = {}
        self._at, self._last = now, dict(self._totals())
        if before is None or now < before or not self._last:
            return {}
        busiest = waiting = blocked = main_busiest = helpers = 0.0
        main = self._main()
        for thread, total in self._last.items():
            ran, waited, stood = (new - old for new, old in zip(total, _before(last.get(thread), total), strict=True))
            waiting += waited
            blocked += stood
            busiest = max(busiest, ran + waited)
            if not main or self._processes[thread] in main:
                main_busiest = max(main_busiest, ran + waited)
            else:
                helpers += ran + waited
        seconds = now - before
        columns: dict[Column, float] = {
            "cpu_waiting": waiting / seconds,
            "cpu_ready": min(busiest / seconds, 1.0),
            "main_ready": min(main_busiest / seconds, 1.0),
            "helper_cores": helpers / seconds,
        }
        if self._delays:
            columns["disk_waiting"] = blocked / seconds
        return columns

    def _main(self) -> set[int]:
        """The processes that started others of the task and have worked."""
        worked: dict[int, float] = {}
        for thread, (ran, _, _) in self._last.items():
            process = self._processes[thread]
            worked[process] = worked.get(process, 0.0) + ran
        return {pid for pid in self._parents.values() if worked.get(pid, 0.0) >= _WORKED_SECONDS}

    def _totals(self) -> Iterator[tuple[int, tuple[float, float, float]]]:
        pids = self._box.pids()
        self._parents = {pid: self._parents.get(pid) or _parent(f"{self._proc}/{pid}/stat") for pid in pids}
        for pid in pids:
            folder = f"{self._proc}/{pid}/task"
            try:
                threads = os.listdir(folder)
            except OSError:  # it ended
                continue
            for thread in threads:
                try:
                    ran, waited, _ = _content(f"{folder}/{thread}/schedstat").split()
                    blocked = self._blocked(f"{folder}/{thread}/stat")
                except (OSError, ValueError):
                    continue
                self._processes[int(thread)] = pid
                yield int(thread), (int(ran) / 1e9, int(waited) / 1e9, blocked)

    def _blocked(self, path: str) -> float:
        if not self._delays:
            return 0.0
        return int(_content(path).rpartition(b")")[2].split()[_BLOCKED]) / _TICKS


def _parent(path: str) -> int:
    """The process that started the one of that `stat`; 0 where it has ended."""
    try:
        return int(_content(path).rpartition(b")")[2].split()[_PARENT])
    except (OSError, ValueError, IndexError):
        return 0


def _before(known: tuple[float, float, float] | None, now: tuple[float, float, float]) -> tuple[float, float, float]:
    """What a thread had come to at the last reading: nothing where it, or another of its number, began since."""
    return known if known is not None and all(old <= new for old, new in zip(known, now)) else (0.0, 0.0, 0.0)


def _content(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 1024)
    finally:
        os.close(file)
