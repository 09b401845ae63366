"""Programs outside of Headgate's tasks: their users, names, and what they use."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from headgate.machine.box_names import job_in
from headgate.machine.files import content
from headgate.model.paths import user_name
from headgate.sampling.disk import disk_bytes_of
from headgate.sampling.process_use import (
    DiskBytes,
    DiskBytesReader,
    Inheritance,
    ProcessKey,
    ProcessTimes,
    read_process,
    read_processes,
)

PROGRAMS = "outside_programs"
"""A fact of a run: the programs that used most during it, as a JSON list."""

OUTSIDE = "others"
"""All programs outside Headgate together, among neighbours."""
ProgramKey = tuple[str, str, str | None]
_TICKS = os.sysconf("SC_CLK_TCK")
_PYTHON = re.compile(r"python[\d.]*")
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_LOWEST = 19
_LETTERS = 40
_HUB = "headgate.hub.server"


@dataclass(frozen=True, slots=True)
class OutsideProgram:
    """A program that belongs to no task.

    Args:
        user: Name or number of its user.
        command: Name of the program, or of the script for Python; of a job its name.
        pid: One of its processes, the latest that used much.
        nice: Nice value of that process.
        seconds: CPU seconds of its processes.
        is_mine: Whether it belongs to this user, or this user is root.
        may_renice: Whether this user can usefully lower its priority: it does not have the lowest,
            and the kernel does not group processes by session (autogroup).
        is_hub: Whether it is the hub of another HEADGATE_HOME. CPU time of its ended jobs counts as
            its own.
        job: The job of another user's Headgate that it is; None: it is no job. Empty: a private
            one.
        disk_read: Bytes that they read from disks, as far as this user may see it.
        disk_written: Bytes that they wrote; likewise.
        gpu_seconds: Seconds in which their kernels ran on GPUs.
    """

    user: str
    command: str
    pid: int
    nice: int
    seconds: float
    is_mine: bool
    may_renice: bool
    is_hub: bool = False
    job: str | None = None
    disk_read: float = 0.0
    disk_written: float = 0.0
    gpu_seconds: float = 0.0

    @property
    def key(self) -> ProgramKey:
        """What tells it from other programs."""
        return self.user, self.command, self.job

    @property
    def disk_bytes(self) -> float:
        """Bytes that they moved on disks."""
        return self.disk_read + self.disk_written

    def plus(self, later: OutsideProgram) -> OutsideProgram:
        """The later one, with what both used."""
        return replace(
            later,
            seconds=self.seconds + later.seconds,
            disk_read=self.disk_read + later.disk_read,
            disk_written=self.disk_written + later.disk_written,
            gpu_seconds=self.gpu_seconds + later.gpu_seconds,
        )


def neighbour_name(program: OutsideProgram) -> str:
    """`USER:JOB` of a job of another user."""
    return f"{program.user}:{program.job}"


class OutsideProgramsReader:
    """Reads what such programs used since its last look.

    Args:
        root: Where /proc and /sys are mounted.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._root, self._proc = root, root / "proc"
        self._seen: dict[ProcessKey, ProcessTimes] | None = None
        self._inheritance = Inheritance()
        self._disk = DiskBytesReader(self._proc)
        self._boxes: dict[str, DiskBytes] = {}
        self._cgroups_seen: dict[ProcessKey, str] = {}
        self._outside: list[ProcessKey] = []
        self._readable: frozenset[ProcessKey] = frozenset()

    def look(self, own: Collection[int], *, has_arbiter: bool = False) -> list[OutsideProgram]:
        """The programs that used cores or disks since the last look; empty at the first.

        Args:
            own: Processes that do not count as outside, and neither do those below them.
            has_arbiter: Whether an arbiter tells what processes move on disks that this user may
                not read, for `moved_by`. Otherwise the jobs' cgroups tell it of jobs.
        """
        before = self._seen
        self._seen = {process.key: process for process in read_processes(self._proc)}
        parents = {key: process.ticks.parent for key, process in self._seen.items()}
        disk_bytes = self._disk.look(parents)
        self._readable = frozenset(disk_bytes)
        if before is None:
            self._boxes_moved({key.pid: content(self._cgroups(key.pid)) for key in self._seen})
            return []
        self._cgroups_seen = {
            key: text for key, text in self._cgroups_seen.items() if key in self._seen
        }
        grouped = self._is_grouped()
        ticks = self._inheritance.since(
            {key: process.ticks for key, process in before.items()},
            {key: process.ticks for key, process in self._seen.items()},
        )
        by_pid = {key.pid: parent for key, parent in parents.items()}
        self._outside = [key for key in self._seen if _line(key.pid, by_pid).isdisjoint(own)]
        unread = [key for key in self._outside if key not in disk_bytes and not has_arbiter]
        of_boxes = self._boxes_moved({key.pid: self._cgroup_of(key, before) for key in unread})
        programs: dict[ProgramKey, OutsideProgram] = {}
        for key in self._outside:
            seconds = ticks[key.pid] / _TICKS
            read, written = disk_bytes.get(key, of_boxes.get(key.pid, DiskBytes()))
            if seconds <= 0.0 and read + written <= 0.0:
                continue
            with suppress(OSError):  # it has just ended
                program = replace(
                    self._program(self._seen[key], grouped),
                    seconds=seconds,
                    disk_read=read,
                    disk_written=written,
                )
                same = programs.get(program.key)
                programs[program.key] = program if same is None else same.plus(program)
        return list(programs.values())

    def moved_by(self, moved: Mapping[ProcessKey, DiskBytes]) -> list[OutsideProgram]:
        """The programs that moved bytes on disks as the arbiter tells. Those that this user may
        read are left out, as `look` has them.

        Args:
            moved: The bytes of each process. It has to have been there at the last look.
        """
        grouped = self._is_grouped()
        programs: dict[ProgramKey, OutsideProgram] = {}
        for key in self._outside:
            if key not in moved or key in self._readable or self._seen is None:
                continue
            with suppress(OSError):  # it has just ended
                program = self._program(self._seen[key], grouped)
                program = replace(
                    program, disk_read=moved[key].read, disk_written=moved[key].written
                )
                same = programs.get(program.key)
                programs[program.key] = program if same is None else same.plus(program)
        return list(programs.values())

    def program_of(self, pid: int) -> OutsideProgram | None:
        """The program that a process belongs to, without what it used; None: it has ended, or
        cannot be seen.
        """
        process = read_process(self._proc, pid)
        with suppress(OSError):
            return self._program(process, self._is_grouped()) if process is not None else None
        return None

    def _program(self, process: ProcessTimes, grouped: bool) -> OutsideProgram:
        """The program of a process, without what it used.

        Raises:
            OSError: The process has ended.
        """
        folder = self._proc / str(process.pid)
        owner = folder.stat().st_uid
        mine = os.geteuid() in (0, owner)
        words = content(folder / "cmdline").split("\0")
        job = job_in(content(self._cgroups(process.pid))) if owner != os.geteuid() else None
        command = _command(words, process.name) if job is None else job or "job"
        helps = mine and process.nice < _LOWEST and not grouped
        return OutsideProgram(
            *(user_name(owner), command, process.pid, process.nice, 0.0),
            *(mine, helps, _HUB in words, job),
        )

    def _is_grouped(self) -> bool:
        return content(self._proc / "sys/kernel/sched_autogroup_enabled").strip() == "1"

    def _cgroups(self, pid: int) -> Path:
        return self._proc / str(pid) / "cgroup"

    def _cgroup_of(self, key: ProcessKey, before: Collection[ProcessKey]) -> str:
        """Text of its /proc/PID/cgroup, read until it was there for a whole look: at its start a
        process may still be about to enter its box.
        """
        text = self._cgroups_seen.get(key)
        if text is None:
            text = content(self._cgroups(key.pid))
            if key in before:
                self._cgroups_seen[key] = text
        return text

    def _boxes_moved(self, cgroups: Mapping[int, str]) -> dict[int, DiskBytes]:
        """Bytes that boxes of other users' jobs moved since the last look, by one process of each:
        everybody may read io.stat (cgroup v2).

        Args:
            cgroups: Text of /proc/PID/cgroup of each process.
        """
        before, self._boxes = self._boxes, {}
        by_pid: dict[int, DiskBytes] = {}
        for pid, text in cgroups.items():
            if job_in(text) is None or text in self._boxes:
                continue
            total = disk_bytes_of(text, self._root)
            if total is not None:
                self._boxes[text] = total
                since = zip(total, before.get(text, total), strict=True)
                by_pid[pid] = DiskBytes(*(max(now - then, 0.0) for now, then in since))
        return by_pid


def _line(pid: int, parents: Mapping[int, int]) -> set[int]:
    """A process and those above it."""
    line: set[int] = set()
    while pid in parents and pid not in line:  # parents are read one after the other
        line.add(pid)
        pid = parents[pid]
    return line


def _command(words: Sequence[str], name: str) -> str:
    program = os.path.basename(words[0]) or name
    if _PYTHON.fullmatch(program):
        program = f"{program} {_of_python(words[1:])}".rstrip()
    return program[:_LETTERS]


def _of_python(words: Sequence[str]) -> str:
    """The script or module that an interpreter runs, from the words after its name; empty: code in
    the command line.
    """
    arguments = iter(words)
    for word in arguments:
        if word == "-m":
            return f"-m {next(arguments, '')}"
        if word == "-c":
            return ""
        if word in _WITH_VALUE:
            next(arguments, None)
        elif not word.startswith("-"):
            return os.path.basename(word)
    return ""
