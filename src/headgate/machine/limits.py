"""The CPUs, CPU time and memory that this process may use, from its affinity and its cgroups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from headgate.machine.files import content

CgroupVersion = Literal["v1", "hybrid", "v2", "none"]

_UNLIMITED_V1 = 1 << 60
"""Without a limit, cgroup v1 shows the largest number that it can represent, rounded to pages."""


@dataclass(frozen=True, slots=True)
class CgroupTree:
    """The mounted cgroup file systems: mount points by controller (`unified` for cgroup2), and this
    process's folders in them.
    """

    version: CgroupVersion
    mounts: Mapping[str, Path]
    folders: Mapping[str, Path]


def cgroups(root: Path = Path("/")) -> CgroupTree:
    """The mounted cgroups, and this process's own, as seen from its cgroup namespace."""
    ours = dict(_membership(root))
    mounts: dict[str, Path] = {}
    folders: dict[str, Path] = {}
    kinds = set()
    for line in content(root / "proc/self/mountinfo").splitlines():
        words, _, mount = line.partition(" - ")
        fields, tail = words.split(), mount.split()
        if len(fields) < 5 or len(tail) < 3 or tail[0] not in ("cgroup", "cgroup2"):
            continue
        top, point = fields[3], root / fields[4].lstrip("/")
        names = ["unified"] if tail[0] == "cgroup2" else tail[2].split(",")
        for name in names:
            if name in ours and name not in mounts:
                kinds.add(tail[0])
                mounts[name] = point
                folders[name] = point / _relative_to_mount(ours[name], top)
    version: CgroupVersion = "none"
    if kinds == {"cgroup", "cgroup2"}:
        version = "hybrid"
    elif kinds:
        version = "v1" if "cgroup" in kinds else "v2"
    return CgroupTree(version, mounts, folders)


def allowed_cpus(root: Path = Path("/")) -> frozenset[int]:
    """CPUs that this process may run on: its affinity, which a cpuset also restricts."""
    return cpus_of(root / "proc/self/status") or parse_list(
        content(root / "sys/devices/system/cpu/online")
    )


def cpus_of(status: Path) -> frozenset[int]:
    """CPUs that a process may run on, from its file in /proc; empty if it cannot be read."""
    for line in content(status).splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return parse_list(line.partition(":")[2])
    return frozenset()


def limiting(tree: CgroupTree) -> Iterator[str]:
    """For each hierarchy, the nearest cgroup at or above this process's that limits memory, CPU
    time or CPUs, as hierarchy and path.

    The topmost cgroup does not count, because its limits hold for all visible processes.
    """
    for controller in ("unified", "memory", "cpu", "cpuset"):
        top = tree.mounts.get(controller)
        for folder in _self_and_parents(tree, controller):
            if folder != top and has_limits(
                folder, content(top / "cpuset.cpus") if top is not None else ""
            ):
                yield f"{controller}:/{folder.relative_to(top) if top is not None else ''}"
                break


def has_limits(folder: Path, all_cpus: str = "") -> bool:
    """Whether a cgroup itself limits memory, CPU time or CPUs, in any hierarchy. `all_cpus` is the
    list of all CPUs.
    """
    cpus = content(folder / "cpuset.cpus").strip()
    return (
        own_memory_limit(folder) is not None
        or content(folder / "cpu.max").split()[:1] not in ([], ["max"])
        or (_number(folder / "cpu.cfs_quota_us") or 0) > 0
        or (bool(cpus) and parse_list(cpus) != parse_list(all_cpus))
    )


def quota_cores(tree: CgroupTree) -> float | None:
    """CPU time that this process's cgroup and its parents allow, in cores; None without a limit."""
    limits = []
    for folder in _self_and_parents(tree, "unified"):
        words = content(folder / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit() and int(words[1]) > 0:
            limits.append(int(words[0]) / int(words[1]))
    for folder in _self_and_parents(tree, "cpu"):
        quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > 0:
            limits.append(quota / period)
    return min(limits, default=None)


def memory_limit(tree: CgroupTree) -> int | None:
    """Bytes of memory that this process's cgroup and its parents allow; None without a limit."""
    limits = [
        limit
        for controller in ("unified", "memory")
        for folder in _self_and_parents(tree, controller)
        if (limit := own_memory_limit(folder)) is not None
    ]
    return min(limits, default=None)


def own_memory_limit(folder: Path) -> int | None:
    """Bytes of memory that a cgroup itself allows, in either version; None without a limit."""
    for name in ("memory.max", "memory.limit_in_bytes"):
        if (limit := _number(folder / name)) is not None and 0 < limit < _UNLIMITED_V1:
            return limit
    return None


def parse_list(text: str) -> frozenset[int]:
    """The numbers of a list in the kernel's notation: `0-3,8`."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first.strip().isdigit():
            cpus.update(range(int(first), int(last or first) + 1))
    return frozenset(cpus)


def _membership(root: Path) -> Iterator[tuple[str, str]]:
    for line in content(root / "proc/self/cgroup").splitlines():
        number, _, entry = line.partition(":")
        controllers, _, path = entry.partition(":")
        if number == "0" and not controllers:
            yield "unified", path
        else:
            for controller in controllers.split(","):
                yield controller, path


def _relative_to_mount(path: str, top: str) -> str:
    """`path` as seen from a mount whose root is `top`."""
    if top != "/" and (path == top or path.startswith(f"{top}/")):
        path = path[len(top) :]
    # A path that leads out of our cgroup namespace cannot be used.
    return "" if path.startswith("/..") else path.lstrip("/")


def _self_and_parents(tree: CgroupTree, controller: str) -> Iterator[Path]:
    """This process's cgroup, then its parents up to the mount point."""
    if controller not in tree.folders:
        return
    folder, top = tree.folders[controller], tree.mounts[controller]
    yield folder
    while folder != top and folder != folder.parent:
        folder = folder.parent
        yield folder


def _number(path: Path) -> int | None:
    try:
        return int(content(path))
    except ValueError:
        return None
