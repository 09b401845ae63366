"""Cgroup v2: one folder with all controllers.

Files and units: Documentation/admin-guide/cgroup-v2.rst of the kernel.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from headgate.machine.cgroup_layout import LEAF, V2_CONTROLLERS
from headgate.machine.cgroups import (
    FREEZE_SECONDS,
    Cgroups,
    Value,
    Write,
    cap_microseconds,
    memory_refusal,
    read_counters,
    read_number,
)
from headgate.machine.enclosure import Field, MemoryRecord, cpu_list
from headgate.machine.fallbacks import Fallbacks
from headgate.model.errors import IsolationError
from headgate.model.shares import WEIGHT_DEFAULT, Share, Unlimited

DISK_WEIGHTS = {"io.weight": 10_000, "io.bfq.weight": 1000}
"""Files, and the kernel's largest value."""


class CgroupsV2(Cgroups):
    weight_file = "cpu.weight"
    weight_most = 10_000
    kills_file = "memory.events"

    def __init__(
        self,
        folders: Mapping[str, Path],
        fallbacks: Fallbacks,
        disk: str | None = None,
        vacate: bool = False,
    ) -> None:
        """
        Args:
            folders: As `Cgroups`; all the same folder.
            fallbacks: As `Cgroups`.
            disk: As `Cgroups`.
            vacate: Whether to move the processes of the base down a level first.
        """
        super().__init__(folders, fallbacks, disk)
        self._vacate = vacate

    def plan(self, share: Share) -> Sequence[str]:
        group = self.folders["unified"].parent
        lines = (
            [f"move the processes of {group.parent} to {group.parent / LEAF}"]
            if self._vacate
            else []
        )
        text = " ".join(f"+{name}" for name in V2_CONTROLLERS if name in self.folders)
        if text:
            lines += [
                str(Write(folder / "cgroup.subtree_control", text))
                for folder in (group.parent, group)
            ]
        return [*lines, *super().plan(share)]

    def make_group(self, folder: Path) -> None:
        base = folder.parent
        if self._vacate:
            leaf = base / LEAF
            leaf.mkdir(exist_ok=True)
            for pid in (base / "cgroup.procs").read_text().split():
                try:
                    (leaf / "cgroup.procs").write_text(pid)
                except ProcessLookupError:
                    continue
        hand_on(base)
        super().make_group(folder)
        hand_on(folder)

    def create(self) -> None:
        super().create()
        # An offered controller may still be refused, so the actual files count.
        folder = self.folders["unified"]
        controllers = (folder / "cgroup.controllers").read_text().split()
        self.folders = {"unified": folder} | {
            name: folder for name in V2_CONTROLLERS if name in controllers
        }

    def setup(self, folder: Path) -> Sequence[Write]:
        """Initialise a new folder.

        A task over its memory limit ends as a whole, because half a job is useless. Swap would only
        hide that it is over.
        """
        if "memory" not in self.folders:
            return ()
        writes = [Write(folder / "memory.oom.group", "1"), Write(folder / "memory.swap.max", "0")]
        return [write for write in writes if write.path.exists() or not folder.exists()]

    @staticmethod
    def in_kernel(weight: float) -> int:
        return max(1, round(weight))

    def writes(self, field: Field, value: Value) -> Sequence[Write] | None:
        match field:
            case "cpu_weight":
                weight = WEIGHT_DEFAULT if isinstance(value, Unlimited) else value
                writes = self._write("cpu", self.weight_file, str(self.in_kernel(weight)))
                return None if writes is None else [*writes, *self.disk_weight_writes(weight)]
            case "cpu_cap_cores":
                text = (
                    "max"
                    if isinstance(value, Unlimited)
                    else " ".join(map(str, cap_microseconds(value)))
                )
                return self._write("cpu", "cpu.max", text)
            case "memory_bytes":
                return self._memory_writes(value)
            case "disk_bytes_per_second":
                if self.disk is None:
                    return () if isinstance(value, Unlimited) else None
                rate = "max" if isinstance(value, Unlimited) else str(max(1, round(value)))
                return self._write("io", "io.max", f"{self.disk} rbps={rate} wbps={rate}")
            case "gpu_fraction":
                return None

    def disk_weight_writes(self, weight: float) -> Sequence[Write]:
        folder = self.folders.get("io")
        most = (
            {} if folder is None else {folder / name: limit for name, limit in DISK_WEIGHTS.items()}
        )
        return [
            Write(path, f"default {min(max(1, round(weight)), limit)}")
            for path, limit in most.items()
            if path.exists()
        ]

    def pin_writes(self, cpus: frozenset[int] | None) -> Sequence[Write] | None:
        if cpus is None and "cpuset" in self.folders:
            # An empty value would mean the same, but is refused while the cgroup has processes.
            return self._write(
                "cpuset",
                "cpuset.cpus",
                (self.folders["cpuset"].parent / "cpuset.cpus.effective").read_text().strip(),
            )
        return self._write("cpuset", "cpuset.cpus", cpu_list(cpus or frozenset()))

    def kill_once(self) -> None:
        if (self.folders["unified"] / "cgroup.kill").exists():
            (self.folders["unified"] / "cgroup.kill").write_text("1")
        else:
            self.kill_frozen()

    def kill_frozen(self) -> None:
        """Kill frozen processes, which cannot fork, before Linux 5.14."""
        self.freeze(FREEZE_SECONDS)
        self.send(signal.SIGKILL)
        self.thaw()

    def memory(self) -> MemoryRecord:
        if "memory" not in self.folders:
            return MemoryRecord()
        folder = self.folders["memory"]
        peak = read_number(folder / "memory.peak")
        stat = read_counters(folder / "memory.stat")
        # it includes shared memory, which is no cache
        cache = max(stat.get("file", 0) - stat.get("shmem", 0), 0)
        events = read_counters(folder / "memory.events")
        memory_record = MemoryRecord(
            # The kernel's peak includes page cache. The cache that remains was most likely part of
            # the peak.
            peak_bytes=None if peak is None else max(0, peak - cache),
            kills=events.get("oom_kill", 0),
            limit_bytes=read_number(folder / "memory.max"),
            at_limit=events.get("max", 0) > 0,
        )
        return memory_record if folder.exists() else MemoryRecord()

    def memory_now(self) -> int | None:
        folder = self.folders.get("memory")
        usage = None if folder is None else read_number(folder / "memory.current")
        if folder is None or usage is None:
            return None
        stat = read_counters(folder / "memory.stat")
        return usage - stat.get("inactive_file", 0) - stat.get("active_file", 0)

    def _memory_writes(self, value: Value) -> Sequence[Write] | None:
        if isinstance(value, Unlimited):
            return self._write("memory", "memory.max", "max")
        held = self.memory_now()
        if held is not None and held > value:  # v1 refuses this; v2 would end the task
            raise IsolationError(memory_refusal(value, held))
        return self._write("memory", "memory.max", str(int(value)))

    def _write(self, controller: str, name: str, text: str) -> Sequence[Write] | None:
        folder = self.folders.get(controller)
        return None if folder is None else [Write(folder / name, text)]


def hand_on(folder: Path, controllers: Sequence[str] = V2_CONTROLLERS) -> None:
    """Enable controllers for the folder's children, where that is possible."""
    offered = (folder / "cgroup.controllers").read_text().split()
    enabled = (folder / "cgroup.subtree_control").read_text().split()
    for name in controllers:
        if name in offered and name not in enabled:
            try:
                (folder / "cgroup.subtree_control").write_text(f"+{name}")
            except OSError:  # held back, by real-time tasks for one; the box sees what came through
                continue
