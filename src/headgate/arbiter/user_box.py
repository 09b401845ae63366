"""A user's cgroup, which the arbiter makes as root: limits, and a part for each hub that is handed
over to the user.

Only the kernel's own files are read and written here.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from headgate.arbiter.records import Hub, UserPart
from headgate.machine.cgroup_layout import CGROUPS, LEAF, CgroupLayout, folders_of
from headgate.machine.cgroup_v1 import CgroupsV1, inherit_cpuset
from headgate.machine.cgroup_v2 import CgroupsV2, hand_on
from headgate.machine.cgroups import Cgroups, entry_refusal, read_counters, read_number
from headgate.machine.device_filter import close_devices
from headgate.machine.fallbacks import Cores, Fallbacks
from headgate.machine.files import content
from headgate.machine.limits import has_limits
from headgate.machine.processes import Process, still
from headgate.model.errors import IsolationError
from headgate.model.paths import is_readable
from headgate.model.shares import UNLIMITED, WEIGHT_DEFAULT, Share

HOME = "headgate"
"""Folder of all users, in each hierarchy."""
PREFIX = "user-"
_DELEGATED = ("cgroup.procs", "cgroup.threads", "cgroup.subtree_control", "tasks")
"""What a user may write in the own part of a hub, besides its folder (cgroup-v2.rst, Delegation);
the last under v1.
"""
_BOUNDS = {"cgroup.max.descendants": 20_000, "cgroup.max.depth": 32}
_MOST_FOLDERS = 2_000
"""Most folders that are looked at or removed at once; a user can make many."""


@dataclass(frozen=True, slots=True)
class BoxUse:
    """What a user's box used.

    Args:
        cpu_seconds: CPU time of all processes that were ever in it.
        memory_bytes: Memory that cannot be reclaimed.
        peak_bytes: The most memory so far; None: not counted.
    """

    cpu_seconds: float
    memory_bytes: int
    peak_bytes: int | None


class UserBox:
    """A user's cgroup, `headgate/user-UID` in each hierarchy.

    Its limits are root's. In it each hub has a part, which is the user's: the user makes cgroups
    there, and moves own processes between them, but none out of it.

    Args:
        uid: The user.
        layout: The parents of cgroups.
        home: Folder of all users.
    """

    def __init__(self, uid: int, layout: CgroupLayout, home: str = HOME) -> None:
        folders = {name: base / home / f"{PREFIX}{uid}" for name, base in layout.bases.items()}
        self.uid, self._layout, self._home = uid, layout, home
        self._cgroups: Cgroups = (
            CgroupsV1(folders, Fallbacks(Cores()))
            if layout.mode == "v1"
            else CgroupsV2(folders, Fallbacks(Cores()), vacate=layout.vacate)
        )
        self._folders = dict(folders)

    @property
    def is_made(self) -> bool:
        return all(folder.is_dir() for folder in self._folders.values())

    def make(self) -> None:
        """Make it, unless it is there.

        Raises:
            IsolationError: The kernel refused.
            OSError: As before.
        """
        if self.is_made:
            return
        self._cgroups.create()
        unified = self._folders.get("unified")
        if unified is not None and self._layout.mode == "v2":
            _write(unified / "memory.oom.group", 0)  # one job of several ends, not all of a user
            for folder in (unified.parent.parent, unified.parent, unified):
                hand_on(folder, tuple(self._layout.bases))
        for folder in self._unique:
            for name, most in _BOUNDS.items():
                _write(folder / name, most)
            _write(folder / "pids.max", _most_processes())

    def limit(self, part: UserPart) -> bool:
        """Give it a part of the machine. Returns False if it holds more memory than that. It then
        cannot take any more.

        Raises:
            OSError: The kernel refused.
        """
        cap = UNLIMITED if part.most_cores is None else part.most_cores
        share = Share(cpu_weight=part.weight or WEIGHT_DEFAULT, cpu_cap_cores=cap)
        fits = True
        try:
            if "cpu" in self._folders:
                self._cgroups.apply(share)
            if "memory" in self._folders:
                held = self._cgroups.memory_now() or 0
                fits = held <= part.most_memory_bytes
                self._cgroups.apply(Share(memory_bytes=max(part.most_memory_bytes, held, 1)))
                _write(self._folders["memory"] / "memory.low", part.memory_bytes)
        except IsolationError as error:
            raise OSError(str(error)) from error
        if "pids" in self._folders:
            _write(self._folders["pids"] / "pids.max", part.processes or _most_processes())
        return fits

    def close_devices(self, numbers: Collection[tuple[int, int]]) -> None:
        """Let the jobs in it open no device of these numbers. Hubs may, as they read all GPUs.

        Raises:
            OSError: The kernel has no such filter, or no cgroup2 is mounted.
        """
        if (unified := self._folders.get("unified")) is None:
            raise OSError("GPUs cannot be closed to users: no cgroup2 is mounted")
        close_devices(unified, numbers)
        for hub in self.hubs():
            if (leaf := unified / hub / LEAF).is_dir():
                close_devices(leaf, ())

    def admit(self, hub: str, process: Process) -> None:
        """Put a process of the user into the part of a hub.

        Args:
            hub: Name of the folder.
            process: The process, as of its connection.

        Raises:
            OSError: It has ended, is not the user's, or has limits that an administrator gave it.
        """
        pid = process.pid
        pidfd = os.pidfd_open(pid)
        try:
            if not still(process):
                raise ProcessLookupError(f"process {pid} has ended, and another has its number")
            self._check(pid)
            if self.has(pid):
                return
            for folder in self._unique:
                part = folder / hub
                self._hand_over(part)
                target = self._leaf(part) if folder == self._folders.get("unified") else part
                try:
                    (target / "cgroup.procs").write_text(str(pid))
                except OSError as error:
                    raise OSError(entry_refusal(pid, error)) from error
            if is_readable(pidfd, 0):  # it has ended: another process may have its number by now
                self._put_back(pid)
                raise ProcessLookupError(f"process {pid} has ended")
        finally:
            os.close(pidfd)

    def has(self, pid: int) -> bool:
        """Whether a process is in it."""
        folders = folders_of(pid, CGROUPS, self._layout.mode)
        mine = {name: folder for name, folder in self._folders.items() if name in folders}
        return bool(mine) and all(folders[name].is_relative_to(mine[name]) for name in mine)

    def hubs(self) -> list[str]:
        """The folders of its hubs."""
        return [entry.name for entry in _subfolders(self._unique[0])]

    def is_populated(self, hub: str) -> bool | None:
        """Whether processes are in the part of a hub; None: it has none."""
        unified = self._folders.get("unified")
        if unified is not None and (unified / hub).is_dir():
            return bool(read_counters(unified / hub / "cgroup.events").get("populated"))
        part = self._unique[0] / hub
        if not part.is_dir():
            return None
        return any(
            i == _MOST_FOLDERS or content(folder / "cgroup.procs")
            for i, folder in enumerate(_walk(part))
        )

    def used(self) -> BoxUse:
        """What it used."""
        cgroups = self._cgroups
        held, peak = cgroups.memory_now() or 0, cgroups.memory().peak_bytes
        return BoxUse(cgroups.cpu_seconds() or 0.0, held, peak)

    def remove(self, hub: str | None = None) -> bool:
        """Remove the part of a hub, or all of it. Returns whether it is gone; what has processes
        stays.
        """
        for folder in self._unique:
            top = folder if hub is None else folder / hub
            for i, empty in enumerate(_walk(top)):
                if i == _MOST_FOLDERS:
                    return False
                with suppress(OSError):
                    empty.rmdir()
            if hub is None:
                with suppress(OSError):  # another user's is there
                    folder.parent.rmdir()
        return not any((folder / (hub or "")).is_dir() for folder in self._unique)

    def weigh_all(self, weight: float, memory_bytes: int) -> None:
        """Let all users together weigh so much beside other programs, and protect their memory.

        Under cgroup v1 each thread outside weighs by itself. There they weigh at least as one
        thread on each core.
        """
        least = WEIGHT_DEFAULT
        if self._layout.mode == "v1":
            least *= os.cpu_count() or 1
        self._cgroups.weigh_around(min(max(weight, least), 10_000.0))
        if "memory" in self._folders:
            _write(self._folders["memory"].parent / "memory.low", memory_bytes)

    @property
    def _unique(self) -> list[Path]:
        return list(dict.fromkeys(self._folders.values()))

    def _check(self, pid: int) -> None:
        if not _is_of(pid, self.uid):
            raise PermissionError(f"process {pid} is not of user {self.uid} alone")
        cpus = content(self._layout.bases.get("cpuset", CGROUPS) / "cpuset.cpus")
        for name, folder in folders_of(pid, CGROUPS, self._layout.mode).items():
            base = self._layout.bases.get(name)
            for above in (folder, *folder.parents):
                if base is None or base.is_relative_to(above) or above == base / self._home:
                    break
                if has_limits(above, cpus):
                    raise PermissionError(f"process {pid} has the limits of {above}; they hold")

    def _hand_over(self, part: Path) -> None:
        if not part.exists():
            part.mkdir()
            if self._layout.mode == "v1" and (part / "cpuset.cpus").exists():
                for write in inherit_cpuset(part):
                    write.path.write_text(write.text)
        for path in (part, *(part / name for name in _DELEGATED)):
            if path.exists():
                os.chown(path, self.uid, -1)

    def _leaf(self, part: Path) -> Path:
        leaf = part / LEAF
        leaf.mkdir(exist_ok=True)
        for path in (leaf, leaf / "cgroup.procs", leaf / "cgroup.threads"):
            os.chown(path, self.uid, -1)
        return leaf

    def _put_back(self, pid: int) -> None:
        if _is_of(pid, self.uid):
            return
        for folder in self._unique:
            with suppress(OSError):
                (folder.parent.parent / "cgroup.procs").write_text(str(pid))


def hub_folder(hub: Hub) -> str:
    """The folder of a hub in its user's box; what a hub calls itself names no folder."""
    return "hub-" + hashlib.sha256(hub.name.encode()).hexdigest()[:16]


def _is_of(pid: int, uid: int) -> bool:
    """Whether a process runs as this user, and as nobody else."""
    status = content(Path(f"/proc/{pid}/status")).splitlines()
    return any(line.split() == ["Uid:", *[str(uid)] * 4] for line in status)


def _most_processes() -> int:
    """A third of the processes and threads that the machine can have."""
    limits = (read_number(Path("/proc/sys/kernel") / name) for name in ("pid_max", "threads-max"))
    return min(filter(None, limits), default=32_768) // 3


def _write(path: Path, number: int) -> None:
    if path.exists():
        path.write_text(str(number))


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:  # it is gone
        return []


def _walk(top: Path) -> Iterator[Path]:
    """A folder and all below it, each after those in it. They may be as deep as a user likes."""
    waiting = [(top, False)]
    while waiting:
        folder, is_listed = waiting.pop()
        if is_listed:
            yield folder
        else:
            waiting.append((folder, True))
            waiting += [(below, False) for below in _subfolders(folder)]
