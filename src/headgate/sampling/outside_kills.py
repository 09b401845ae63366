"""Processes outside of Headgate's tasks that the kernel kills for lack of memory: how many, and
which, as far as known.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headgate.machine.files import content
from headgate.model.paths import user_name

KERNEL_LOG = Path("/dev/kmsg")
_RECORD_BYTES = 8192
_KILLED = re.compile(
    r"Killed process (\d+) \((.*)\).* anon-rss:(\d+)kB.* shmem-rss:(\d+)kB(?:.* UID:(\d+))?"
)
_OF_GROUP = re.compile(
    r"oom-kill:constraint=(?P<limit>\w+),.*task_memcg=(?P<group>[^,]*),task=.*,pid=(?P<pid>\d+),"
)
_OF_A_CGROUP = "CONSTRAINT_MEMCG"
_KNOWN = 8
"""Number of largest processes whose memory is noted, in case they are killed."""


@dataclass(frozen=True, slots=True)
class KilledProcess:
    """A process that the kernel killed.

    Args:
        user: Name or number of its user; empty: unknown.
        held_bytes: Memory that it held; None: unknown.
        sure: Whether the kernel names it. Otherwise it is gone, and was among the largest.
    """

    pid: int
    name: str
    user: str
    held_bytes: int | None
    sure: bool


@dataclass(frozen=True, slots=True)
class OutsideKills:
    """Number of killed processes, and those that are known."""

    count: int
    processes: tuple[KilledProcess, ...]


class OutsideKillsReader:
    """Detects such kills from its first look on.

    Args:
        domain: The cgroup with the memory limit that Headgate shares with other programs; None: the
            whole machine.
        root: Where /proc is mounted.
        log: The kernel's log, which users other than root often may not read.
    """

    def __init__(self, domain: Path | None, root: Path = Path("/"), log: Path = KERNEL_LOG) -> None:
        self._domain = domain
        self._proc = root / "proc"
        self._counts: dict[Path, int] | None = None
        self._told = 0
        self._largest: dict[int, KilledProcess] = {}
        self._groups: set[tuple[str, ...]] = set()
        self._below_mount = _below_mount(domain) if domain is not None else ()
        self._log = _open_at_end(log)

    def look(
        self, boxes: Collection[Path], own: int, pids: Collection[int], *, tight: bool
    ) -> OutsideKills | None:
        """Kills outside of tasks since the last look; None: none.

        Args:
            boxes: Cgroups of the tasks.
            own: Number of killed processes of tasks so far, as far as known.
            pids: The processes of the tasks.
            tight: Whether little memory is available. Only then is the memory of processes read.
        """
        self._groups.update(box.parts[-2:] for box in boxes)
        named, elsewhere = self._logged()
        count = self._count(boxes, own) - (elsewhere if self._domain is None else 0)
        killed_now = None
        if count > 0:
            killed = named[-count:]
            if not killed:
                gone = [
                    processes
                    for processes in self._largest.values()
                    if not (self._proc / str(processes.pid)).exists()
                ]
                killed = sorted(gone, key=lambda process_entry: process_entry.held_bytes or 0)[
                    -count:
                ]
            killed_now = OutsideKills(count, tuple(killed))
        self._largest = self._sizes(set(boxes), set(pids)) if tight else {}
        return killed_now

    def close(self) -> None:
        """Close its descriptor. May be called twice."""
        if self._log is not None:
            os.close(self._log)
            self._log = None

    # --- how many ---------------------------------------------------------------------------------

    def _count(self, boxes: Collection[Path], own: int) -> int:
        if self._domain is None:
            total = _field(content(self._proc / "vmstat"), "oom_kill") or 0
            if self._counts is None:
                self._counts, self._told = {}, total - own
            fresh = max(total - own - self._told, 0)
            self._told += fresh
            return fresh
        before, self._counts = self._counts, dict(_local_kills(self._domain, set(boxes)))
        if before is None:
            return 0
        return sum(max(kills - before.get(folder, 0), 0) for folder, kills in self._counts.items())

    # --- which ------------------------------------------------------------------------------------

    def _logged(self) -> tuple[list[KilledProcess], int]:
        """What the kernel's log tells since the last time: processes of the domain that were
        killed, without those of tasks; and how many outside of tasks ran into another limit than
        the domain's, such as that of their container.
        """
        killed, tasks, elsewhere = list[KilledProcess](), set[str](), set[str]()
        while self._log is not None:
            try:
                record = os.read(self._log, _RECORD_BYTES).decode("utf-8", "replace")
            except BrokenPipeError:  # records that were overwritten meanwhile
                continue
            except OSError:  # no more for now
                break
            if not record:  # the same, of a log that is a file
                break
            if (group := _OF_GROUP.search(record)) is not None:
                parts = Path(group["group"]).parts
                if parts[-2:] in self._groups:
                    tasks.add(group["pid"])
                elif (
                    group["limit"] == _OF_A_CGROUP
                    if self._domain is None
                    else not _holds(parts, self._below_mount)
                ):
                    elsewhere.add(group["pid"])
            named = _KILLED.search(record)
            if named is not None and named[1] not in tasks | elsewhere:
                held = (int(named[3]) + int(named[4])) * 1024
                user = user_name(int(named[5])) if named[5] else ""
                killed.append(KilledProcess(int(named[1]), named[2], user, held, sure=True))
        return killed, len(elsewhere)

    def _sizes(self, boxes: set[Path], own: set[int]) -> dict[int, KilledProcess]:
        """The largest processes of the domain outside of tasks."""
        if self._domain is None:
            pids = [int(entry.name) for entry in self._proc.iterdir() if entry.name.isdigit()]
        else:
            folders = _outside(self._domain, boxes)
            pids = [
                int(pid) for folder in folders for pid in content(folder / "cgroup.procs").split()
            ]
        sizes: list[tuple[int, int]] = []
        for pid in pids:
            words = content(self._proc / str(pid) / "statm").split()
            if pid not in own and len(words) > 1:
                sizes.append((int(words[1]) * os.sysconf("SC_PAGE_SIZE"), pid))
        largest = {}
        for size, pid in sorted(sizes)[-_KNOWN:]:
            with suppress(OSError):  # it has just ended
                user = user_name((self._proc / str(pid)).stat().st_uid)
                largest[pid] = KilledProcess(
                    pid, content(self._proc / str(pid) / "comm"), user, size, sure=False
                )
        return largest


def _local_kills(folder: Path, boxes: Collection[Path]) -> Iterator[tuple[Path, int]]:
    """The number of kills of each cgroup at or below `folder` itself, without those of tasks."""
    for at in _outside(folder, boxes):
        kills = _field(content(at / "memory.events.local"), "oom_kill")  # v2
        kills = (
            kills if kills is not None else _field(content(at / "memory.oom_control"), "oom_kill")
        )
        if kills is not None:
            yield at, kills


def _outside(folder: Path, boxes: Collection[Path]) -> Iterator[Path]:
    """A cgroup and all below it, without those of tasks."""
    pending = deque([folder])
    while pending:
        at = pending.popleft()
        if at in boxes:
            continue
        yield at
        with suppress(OSError):  # removed meanwhile
            pending += [
                Path(entry.path) for entry in os.scandir(at) if entry.is_dir(follow_symlinks=False)
            ]


def _below_mount(folder: Path) -> tuple[str, ...]:
    """The names of a cgroup and those above it, from the mount point on."""
    point = next((above for above in (folder, *folder.parents) if above.is_mount()), folder)
    return folder.relative_to(point).parts


def _holds(parts: Sequence[str], some: Sequence[str]) -> bool:
    """Whether some names follow each other in a path. In a container the kernel's path begins with
    names that are not seen there.
    """
    return any(parts[i : i + len(some)] == some for i in range(len(parts) - len(some) + 1))


def _field(text: str, name: str) -> int | None:
    """A number in lines of a name and a number."""
    for line in text.splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None


def _open_at_end(log: Path) -> int | None:
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        os.lseek(descriptor, 0, os.SEEK_END)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
