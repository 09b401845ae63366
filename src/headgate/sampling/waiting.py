"""Waiting: for a core, and for a disk."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from headgate.model.cluster import Place
from headgate.sampling.base import Boxed
from headgate.sampling.columns import Column
from headgate.sampling.sources import Source, SourcedSampler
from headgate.sampling.training_process import trains_by_itself

_TICKS = os.sysconf("SC_CLK_TCK")
_WORKED_SECONDS = 1.0
"""A process that started others and ran for less than this is a shell or a launcher, not the one
that trains.
"""
_MOST_LOOKED_AT = 64
"""Most threads whose state is read. If there are more, those that wanted a core most."""
_BLOCKED = 39
"""Index of the time blocked on disks in /proc/PID/task/TID/stat, counted after the name (field 42
of all).
"""
_PARENT, _RAN, _ENDED = 1, slice(11, 13), slice(13, 15)
"""Indices of the parent, own ticks, and ticks of ended children, counted after the name (fields 4,
14 to 17).
"""


class WaitingSampler(SourcedSampler):
    """Reads `cpu_waiting`, `cpu_ready`, `main_ready` and `helper_cores` of a task, from schedstat
    of its threads; `any_ready` from their states; and `disk_waiting` if the kernel accounts for
    delays (`kernel.task_delayacct=1`).

    When a thread ends, its wait since the last reading is lost; the run time of an ended process is
    known from its parent. Nodes have no readings.
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
    """Whether the kernel counts how long each thread is blocked on disks. Since Linux 5.14 it does
    not by default.
    """
    try:
        return (root / "proc/sys/kernel/task_delayacct").read_text().strip() == "1"
    except OSError:
        return False


class _Process(NamedTuple):
    """CPU seconds of a process, with its ended threads; and of its ended children."""

    parent: int
    ran: float
    ended: float


class _Threads(Source):
    """Running totals of each living thread: seconds running, waiting for a core, and blocked on a
    disk.

    The main process of a task is the one that started others of it and has worked. Of these, each
    one that is a program of its own or trains is a main process too. Without any, all processes
    are.
    """

    def __init__(self, box: Boxed, proc: Path) -> None:
        self._box = box
        self._proc = str(proc)
        self._delays = accounts_for_delays(proc.parent)
        self._last: dict[int, tuple[float, float, float]] = {}
        self._of: dict[int, int] = {}  # process by thread
        self._processes: dict[int, _Process] = {}
        # for processes that have worked, whether each trains by itself
        self._trains: dict[int, bool] = {}
        # seconds of children that ended and were not waited for yet
        self._read_of_ended: dict[int, float] = {}
        self._at: float | None = None

    def read(self, now: float, /) -> dict[Column, float]:
        if now == self._at:
            return {}
        before, last, processes = self._at, self._last, self._processes
        self._of, self._processes = {}, {}
        self._at, self._last = now, dict(self._totals())
        if before is None or now < before or not self._last:
            return {}
        ended = self._ended_children(processes)
        busiest = waiting = blocked = main_busiest = helpers = 0.0
        wanted: dict[int, float] = {}
        # the busiest thread of those that a process started instead of them
        successors = dict.fromkeys(ended, 0.0)
        main = self._main_processes(ended)
        for thread, total in self._last.items():
            ran, waited, stood = (
                new - old
                for new, old in zip(total, _earlier_totals(last.get(thread), total), strict=True)
            )
            waiting += waited
            blocked += stood
            wanted[thread] = ran + waited
            busiest = max(busiest, ran + waited)
            process = self._of[thread]
            if not main or process in main:
                main_busiest = max(main_busiest, ran + waited)
            else:
                helpers += ran + waited
            parent = self._processes[process].parent
            if parent in successors:
                successors[parent] = max(successors[parent], ran + waited)
        for parent, seconds in ended.items():
            gone = sum(
                process.parent == parent
                for pid, process in processes.items()
                if pid not in self._processes
            )
            child_count = sum(process.parent == parent for process in self._processes.values())
            child_seconds = seconds / max(gone, child_count, 1) + successors[parent]
            busiest = max(busiest, child_seconds)
            if not main:
                main_busiest = max(main_busiest, child_seconds)
            elif parent in main:
                helpers += seconds
        seconds = now - before
        columns: dict[Column, float] = {
            "cpu_waiting": waiting / seconds,
            "cpu_ready": min(busiest / seconds, 1.0),
            "any_ready": float(self._any_ready(sorted(wanted, key=lambda thread: -wanted[thread]))),
            "main_ready": min(main_busiest / seconds, 1.0),
            "helper_cores": helpers / seconds,
        }
        if self._delays:
            columns["disk_waiting"] = blocked / seconds
        return columns

    def _any_ready(self, threads: Sequence[int]) -> bool:
        """Whether one of these threads runs or waits for a core now. The first are the most
        likely.
        """
        for thread in threads[:_MOST_LOOKED_AT]:
            try:
                state = (
                    _content(f"{self._proc}/{self._of[thread]}/task/{thread}/stat")
                    .rpartition(b")")[2]
                    .split()[0]
                )
            except (OSError, IndexError):  # it ended
                continue
            if state == b"R":
                return True
        return False

    def _ended_children(self, before: Mapping[int, _Process]) -> dict[int, float]:
        """By parent, the seconds since the last reading of children that have ended."""
        read = self._read_of_ended
        for pid, child in before.items():
            if pid not in self._processes:
                read[child.parent] = read.get(child.parent, 0.0) + child.ran + child.ended
        self._read_of_ended, unread = {}, {}
        for pid, process in self._processes.items():
            grown = process.ended - (before[pid].ended if pid in before else 0.0)
            unread_seconds = grown - read.get(pid, 0.0)
            if unread_seconds > 0.0:
                unread[pid] = unread_seconds
            elif unread_seconds < 0.0:
                self._read_of_ended[pid] = -unread_seconds
        return unread

    def _main_processes(self, ended: Mapping[int, float]) -> set[int]:
        """The processes that have worked, and started others of the task or train by themselves."""
        parents = ended.keys() | {process.parent for process in self._processes.values()}
        worked = {pid for pid, process in self._processes.items() if process.ran >= _WORKED_SECONDS}
        started = {
            pid for pid in worked - parents if self._processes[pid].parent in self._processes
        }
        known = {pid: trains for pid, trains in self._trains.items() if pid in started}
        for pid in started - known.keys():
            known[pid] = trains_by_itself(self._proc, pid, self._processes[pid].parent)
        self._trains = known
        return (worked & parents) | {pid for pid, trains in known.items() if trains}

    def _totals(self) -> Iterator[tuple[int, tuple[float, float, float]]]:
        for pid in self._box.pids():
            folder = f"{self._proc}/{pid}/task"
            try:
                self._processes[pid] = _process(f"{self._proc}/{pid}/stat")
                threads = os.listdir(folder)
            except (OSError, ValueError, IndexError):  # it ended
                continue
            for thread in threads:
                try:
                    ran, waited, _ = _content(f"{folder}/{thread}/schedstat").split()
                    blocked = self._blocked(f"{folder}/{thread}/stat")
                except (OSError, ValueError):
                    continue
                self._of[int(thread)] = pid
                yield int(thread), (int(ran) / 1e9, int(waited) / 1e9, blocked)

    def _blocked(self, path: str) -> float:
        if not self._delays:
            return 0.0
        return int(_content(path).rpartition(b")")[2].split()[_BLOCKED]) / _TICKS


def _process(path: str) -> _Process:
    fields = _content(path).rpartition(b")")[2].split()
    ran, ended = (sum(map(int, fields[ticks])) / _TICKS for ticks in (_RAN, _ENDED))
    return _Process(int(fields[_PARENT]), ran, ended)


def _earlier_totals(
    known: tuple[float, float, float] | None, now: tuple[float, float, float]
) -> tuple[float, float, float]:
    """A thread's totals at the last reading; zero if it, or another one with its number, began
    since.
    """
    return (
        known
        if known is not None and all(old <= new for old, new in zip(known, now))
        else (0.0, 0.0, 0.0)
    )


def _content(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, 1024)
    finally:
        os.close(file)
