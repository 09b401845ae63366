"""Cgroup v1: a folder in the hierarchy of each controller, and one in the cgroup2 tree where that
is mounted too.

Files and units: Documentation/admin-guide/cgroup-v1 of the kernel.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

from headgate.machine.cgroups import (
    FREEZE_SECONDS,
    Cgroups,
    Value,
    Write,
    cap_microseconds,
    read_counters,
    read_number,
    within,
)
from headgate.machine.enclosure import Field, MemoryRecord, cpu_list, never
from headgate.model.shares import WEIGHT_DEFAULT, Unlimited

SHARES_DEFAULT = 1024
THROTTLES = ("blkio.throttle.read_bps_device", "blkio.throttle.write_bps_device")
DISK_WEIGHT = "blkio.bfq.weight"
DISK_WEIGHT_MOST = 1000
UNLIMITED_BYTES = 1 << 60
"""From this number on there is no limit: the kernel shows the largest multiple of a page."""
LIMIT_SLACK_BYTES = 1 << 20
"""A task that was refused memory came this near to its limit. On recent kernels memory.failcnt
stays 0.
"""


class CgroupsV1(Cgroups):
    weight_file = "cpu.shares"
    weight_most = 1 << 18
    kills_file = "memory.oom_control"

    def make_group(self, folder: Path) -> None:
        super().make_group(folder)
        if folder == self._group("cpuset"):
            for write in inherit_cpuset(folder):
                write.path.write_text(write.text)

    def setup(self, folder: Path) -> Sequence[Write]:
        """Initialise a new folder.

        A new cpuset has no cores and memory nodes, and accepts no processes without them. A disk
        rate only holds for one cgroup, so that of a place has to be repeated below it.
        """
        writes = inherit_cpuset(folder) if folder == self.folders.get("cpuset") else []
        if folder == self.folders.get("blkio"):
            writes += [
                Write(folder / name, f"{disk} {rate}")
                for name in THROTTLES
                for disk, rate in rates(folder.parent.parent / name).items()
            ]
        return writes

    def writes(self, field: Field, value: Value) -> Sequence[Write] | None:
        match field:
            case "cpu_weight":
                return self._weight_writes(
                    WEIGHT_DEFAULT if isinstance(value, Unlimited) else value
                )
            case "cpu_cap_cores":
                return self._cap_writes(value)
            case "memory_bytes":
                return self._memory_writes(value)
            case "disk_bytes_per_second":
                folder = self.folders.get("blkio")
                if folder is None or self.disk is None:
                    return () if isinstance(value, Unlimited) else None
                asked = () if isinstance(value, Unlimited) else (max(1, round(value)),)
                above = {
                    name: rates(folder.parent.parent / name).get(self.disk) for name in THROTTLES
                }
                return [
                    Write(
                        folder / name,
                        f"{self.disk} {min([*asked, *filter(None, [most])], default=0)}",
                    )
                    for name, most in above.items()
                ]
            case "gpu_fraction":
                return None

    def disk_weight_writes(self, weight: float) -> Sequence[Write]:
        folder = self.folders.get("blkio")
        # The topmost cgroup has no weight, and the task's may not exist yet.
        if folder is None or not any(
            (above / "blkio.bfq.io_serviced").exists() for above in folder.parents[:2]
        ):
            return ()
        return [Write(folder / DISK_WEIGHT, str(min(max(1, round(weight)), DISK_WEIGHT_MOST)))]

    def pin_writes(self, cpus: frozenset[int] | None) -> Sequence[Write] | None:
        folder = self.folders.get("cpuset")
        if folder is None:
            return None
        text = (
            (folder.parent / "cpuset.cpus").read_text().strip() if cpus is None else cpu_list(cpus)
        )
        return [Write(folder / "cpuset.cpus", text)]

    def kill_once(self) -> None:
        unified = self.folders.get("unified")
        if unified is not None and (unified / "cgroup.kill").exists():
            (unified / "cgroup.kill").write_text("1")
        else:
            self.kill_frozen()

    def kill_frozen(self) -> None:
        """Kill frozen processes, which cannot fork, if no cgroup2 tree is mounted beside v1."""
        if "freezer" in self.folders:
            self.freeze(FREEZE_SECONDS)
        self.send(signal.SIGKILL)
        self.thaw()

    def freeze(self, seconds: float, given_up: Callable[[], bool] = never) -> bool:
        if (freezer := self.folders.get("freezer")) is None:
            return super().freeze(seconds, given_up)

        def frozen() -> bool:
            # a fork that raced with the last freeze is frozen by this one
            (freezer / "freezer.state").write_text("FROZEN")
            return (freezer / "freezer.state").read_text().strip() == "FROZEN"

        return within(seconds, frozen, given_up)

    def thaw(self) -> None:
        if (freezer := self.folders.get("freezer")) is not None:
            (freezer / "freezer.state").write_text("THAWED")
        else:
            super().thaw()

    def memory(self) -> MemoryRecord:
        folder = self.folders.get("memory")
        if folder is None:
            return MemoryRecord()
        peak = read_number(folder / "memory.max_usage_in_bytes")
        stat = read_counters(folder / "memory.stat")
        # it includes shared memory, which is no cache
        cache = max(stat.get("cache", 0) - stat.get("shmem", 0), 0)
        limit = read_number(folder / "memory.limit_in_bytes")
        limit = None if limit is None or limit > UNLIMITED_BYTES else limit
        memory_record = MemoryRecord(
            # The kernel's peak includes page cache. The cache that remains was most likely part of
            # the peak.
            peak_bytes=None if peak is None else max(0, peak - cache),
            kills=self.kills(),
            limit_bytes=limit,
            at_limit=peak is not None and limit is not None and peak >= limit - LIMIT_SLACK_BYTES,
        )
        return memory_record if folder.exists() else MemoryRecord()

    def memory_now(self) -> int | None:
        folder = self.folders.get("memory")
        if folder is None:
            return None
        usage = read_number(folder / "memory.usage_in_bytes")
        stat = read_counters(folder / "memory.stat")
        return (
            None
            if usage is None
            else usage - stat.get("inactive_file", 0) - stat.get("active_file", 0)
        )

    def _group(self, controller: str) -> Path | None:
        folder = self.folders.get(controller)
        return None if folder is None else folder.parent

    @staticmethod
    def in_kernel(weight: float) -> int:
        return max(2, round(weight / WEIGHT_DEFAULT * SHARES_DEFAULT))

    def _weight_writes(self, weight: float) -> Sequence[Write] | None:
        folder = self.folders.get("cpu")
        if folder is None:
            return None
        return [
            Write(folder / self.weight_file, str(self.in_kernel(weight))),
            *self.disk_weight_writes(weight),
        ]

    def _cap_writes(self, value: Value) -> Sequence[Write] | None:
        folder = self.folders.get("cpu")
        if folder is None:
            return None
        lift = Write(folder / "cpu.cfs_quota_us", "-1")
        if isinstance(value, Unlimited):
            return [lift]
        quota, period = cap_microseconds(value)
        if quota / period >= cores_above(folder):
            return [lift]  # v1 refuses a cap above that of a folder higher up, which holds anyway
        writes = [
            Write(folder / "cpu.cfs_period_us", str(period)),
            Write(folder / "cpu.cfs_quota_us", str(quota)),
        ]
        # The quota of the old cap may exceed the kernel's limit for the new period.
        capped = (read_number(folder / "cpu.cfs_quota_us") or -1) > 0
        return (
            [lift, *writes]
            if capped and read_number(folder / "cpu.cfs_period_us") != period
            else writes
        )

    def _memory_writes(self, value: Value) -> Sequence[Write] | None:
        folder = self.folders.get("memory")
        if folder is None:
            return None
        limit = -1 if isinstance(value, Unlimited) else int(value)
        writes = [Write(folder / "memory.limit_in_bytes", str(limit))]
        # Swap is included; otherwise the task would be swapped out, not ended. Never below the
        # limit without swap.
        swap = Write(folder / "memory.memsw.limit_in_bytes", str(limit))
        if any(
            (above / swap.path.name).exists() for above in folder.parents[:2]
        ):  # its group may not have been made yet
            now = read_number(folder / "memory.limit_in_bytes")
            rises = now is not None and (limit < 0 or limit > now)
            writes.insert(0 if rises else 1, swap)
        return writes


def rates(path: Path) -> dict[str, int]:
    """Bytes per second by device number, from one of the files in `THROTTLES`; empty without
    limits.
    """
    try:
        pairs = (line.split() for line in path.read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    except OSError:
        return {}


def cores_above(folder: Path) -> float:
    """The tightest CPU cap of the folders above the group of a task's folder."""
    least = math.inf
    above = folder.parent.parent  # the group has none, and may not have been made yet
    while (quota := read_number(above / "cpu.cfs_quota_us")) is not None:
        if quota > 0 and (period := read_number(above / "cpu.cfs_period_us")):
            least = min(least, quota / period)
        above = above.parent
    return least


def inherit_cpuset(folder: Path) -> list[Write]:
    """The writes that give a new cpuset the cores and memory nodes of its parents."""
    return [
        Write(folder / name, text)
        for name in ("cpuset.cpus", "cpuset.mems")
        if (text := _first_text([above / name for above in folder.parents]))
    ]


def _first_text(paths: Sequence[Path]) -> str:
    """The content of the first file that exists and is not empty. The parent folder may not have
    been made yet.
    """
    for path in paths:
        try:
            if text := path.read_text().strip():
                return text
        except OSError:
            continue
    return ""
