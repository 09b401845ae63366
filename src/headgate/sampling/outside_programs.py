"""Programs outside of Headgate's tasks that use cores: their users, names and CPU time."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headgate.machine.box_names import job_in
from headgate.machine.files import content
from headgate.model.paths import user_name

PROGRAMS = "outside_programs"
"""A fact of a run: the programs that used most during it, as a JSON list."""

_TICKS = os.sysconf("SC_CLK_TCK")
_PYTHON = re.compile(r"python[\d.]*")
_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_LOWEST = 19
_LETTERS = 40
_HUB = "headgate.hub.server"
INIT = 1
"""The process that adopts children whose parents have ended. Their CPU time is not its own."""


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


def neighbour_name(program: OutsideProgram) -> str:
    """`USER:JOB` of a job of another user."""
    return f"{program.user}:{program.job}"


@dataclass(frozen=True, slots=True)
class _ProcessTimes:
    """A process at one look: its CPU time and that of its ended children, in clock ticks."""

    pid: int
    parent: int
    began: int
    name: str
    ticks: int
    of_children: int
    nice: int


class OutsideProgramsReader:
    """Reads the CPU time of such programs since its last look.

    Args:
        root: Where /proc is mounted.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._proc = root / "proc"
        self._seen: dict[tuple[int, int], _ProcessTimes] | None = None
        self._late: dict[int, int] = {}

    def look(self, own: Collection[int]) -> list[OutsideProgram]:
        """The programs that used cores since the last look; empty at the first.

        Args:
            own: Processes that do not count as outside, and neither do those below them.
        """
        before = self._seen
        self._seen = {(process.pid, process.began): process for process in self._processes()}
        if before is None:
            return []
        grouped = content(self._proc / "sys/kernel/sched_autogroup_enabled").strip() == "1"
        reaped = self._reaped(before)
        parents = {process.pid: process.parent for process in self._seen.values()}
        outside_programs: dict[tuple[str, str, str | None], OutsideProgram] = {}
        for key, program_entry in self._seen.items():
            last = before.get(key)
            own_ticks = program_entry.ticks - (last.ticks if last is not None else 0)
            spent = (own_ticks + reaped.get(program_entry.pid, 0)) / _TICKS
            if spent <= 0.0 or not _line(program_entry.pid, parents).isdisjoint(own):
                continue
            with suppress(OSError):  # it has just ended
                owner = (self._proc / str(program_entry.pid)).stat().st_uid
                mine = os.geteuid() in (0, owner)
                words = content(self._proc / str(program_entry.pid) / "cmdline").split("\0")
                cgroups = content(self._proc / str(program_entry.pid) / "cgroup")
                job = job_in(cgroups) if owner != os.geteuid() else None
                command = _command(words, program_entry.name) if job is None else job or "job"
                program = user_name(owner), command, job
                seconds = spent + (
                    outside_programs[program].seconds if program in outside_programs else 0.0
                )
                helps = mine and program_entry.nice < _LOWEST and not grouped
                outside_programs[program] = OutsideProgram(
                    *program[:2],
                    program_entry.pid,
                    program_entry.nice,
                    seconds,
                    mine,
                    helps,
                    _HUB in words,
                    job,
                )
        return list(outside_programs.values())

    def _reaped(self, before: Mapping[tuple[int, int], _ProcessTimes]) -> Mapping[int, int]:
        """Ticks of processes that started and ended since the last look, by the process that
        inherited them.

        When a process ends, its ticks and those of its children go to its parent at once. The ticks
        of processes seen at the last look were counted while they ran. They went to the nearest
        living ancestor, or to a process above it that adopts orphans.
        """
        assert self._seen is not None
        now = {program_entry.pid: program_entry for program_entry in self._seen.values()}
        parents = {program_entry.pid: program_entry.parent for program_entry in before.values()} | {
            pid: program_entry.parent for pid, program_entry in now.items()
        }
        grown = {}
        for key, program_entry in self._seen.items():
            grown[program_entry.pid] = program_entry.of_children - (
                before[key].of_children if key in before else 0
            )
        late, self._late = self._late, {}
        ended = [
            (program_entry.parent, program_entry.ticks + program_entry.of_children)
            for key, program_entry in before.items()
            if key not in self._seen
        ]
        for first, ticks in (*late.items(), *ended):
            left, pid = ticks, first
            for _ in range(len(parents)):
                taken = min(max(grown.get(pid, 0), 0), left)
                grown[pid] = grown.get(pid, 0) - taken
                left -= taken
                if not left or pid not in parents:
                    break
                pid = parents[pid]
            # it ended just after its parent was read
            if left and first in now and first not in late:
                self._late[first] = self._late.get(first, 0) + left
        return {pid: max(ticks, 0) for pid, ticks in grown.items()}

    def _processes(self) -> Iterator[_ProcessTimes]:
        for entry in os.listdir(self._proc):
            if not entry.isdigit():
                continue
            opening, _, fields = content(self._proc / entry / "stat").rpartition(")")
            words = fields.split()
            if len(words) > 19 and words[1] != "2":  # no thread of the kernel
                own = sum(map(int, words[11:13]))
                children = sum(map(int, words[13:15])) if int(entry) != INIT else 0
                name, parent = opening.partition("(")[2], int(words[1])
                yield _ProcessTimes(
                    int(entry), parent, int(words[19]), name, own, children, int(words[16])
                )


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
