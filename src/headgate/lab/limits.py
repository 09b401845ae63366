"""What a node has of this machine: a cgroup for each, within which the boxes of its tasks go."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from headgate import runs
from headgate.cluster import Node
from headgate.errors import HeadgateError, IsolationError
from headgate.isolation import disks
from headgate.isolation.cgroup_v1 import CgroupsV1
from headgate.isolation.cgroup_v2 import CgroupsV2
from headgate.isolation.cgroups import Cgroups, cap_microseconds, read_number
from headgate.isolation.fallbacks import Cores, Fallbacks
from headgate.isolation.layout import CGROUPS, CURE, CgroupLayout, find_layout
from headgate.lab.record import Record
from headgate.shares import UNLIMITED, WEIGHT_DEFAULT, Share

CONTROLLERS = ("cpu", "cpuacct", "memory", "blkio", "io", "unified")
"""Those that a node has a cgroup of; in others, such as cpuset, its tasks are as on the machine itself."""
SHELL = "shell"
"""Cgroup below a node's for what is run in it by hand: under v2 processes and cgroups must not be side by side."""

WEIGHT_PER_CORE = 10 * WEIGHT_DEFAULT
"""A node is to have its cores as a machine has them, whatever else runs here; what it may not have is left to that."""


def weightless(nodes: Sequence[Node], priorities: Collection[float], cpus: float) -> str:
    """That priorities divide little on nodes of a lab, and what does; empty if they divide, or are all the same.

    A node's cores are a cap on time of any CPU. Threads on different CPUs use it up alike. Weights count only among
    those that wait for the same CPU.

    Args:
        cpus: Of this machine.
    """
    few = [node.name for node in nodes if node.place is not None and math.ceil(node.cores) < cpus]
    if not few or len(priorities) < 2:
        return ""
    which = f"node {few[0]} has" if len(few) == 1 else f"nodes {', '.join(few)} have"
    return (
        f"{which} fewer cores than this machine has CPUs, as a cap: jobs that keep no more than {cpus:g} threads busy"
        " use it up alike, whatever their priorities; `share: 1/4` of the job that is to have less holds there"
    )


def find() -> CgroupLayout:
    """Where the cgroups of nodes can go.

    Raises:
        IsolationError: They cannot limit CPU and memory here.
    """
    found = find_layout(CGROUPS)
    lacking = {"cpu", "memory"} - found.bases.keys()
    if lacking:
        causes = "; ".join(dict.fromkeys(found.missing.get(name, f"no {name} controller") for name in sorted(lacking)))
        raise IsolationError(f"a lab needs cgroups for CPU and memory: {causes}; {CURE}")
    return CgroupLayout(
        found.mode, {name: found.bases[name] for name in CONTROLLERS if name in found.bases}, found.vacate
    )


def make(record: Record, nodes: list[Node], vacate: bool) -> None:
    """Make the cgroups of new nodes, without limits yet."""
    for node in nodes:
        cgroups = _of(record, node.name, vacate)
        cgroups.create()
        for folder in cgroups.unique_folders:
            _optional(folder / "memory.oom.group", "0")  # a machine that is out of memory kills a process, not all
            (folder / SHELL).mkdir()


def put(record: Record, node: Node) -> tuple[str, ...]:
    """Put the limits of a node in force, its tasks running.

    Returns:
        A line for each that cannot be had here.

    Raises:
        IsolationError: The kernel refused one, as a memory limit below what its tasks hold now; the others hold.
    """
    cgroups = _of(record, node.name)
    if isinstance(cgroups, CgroupsV1):
        lower_caps(cgroups.folders["cpu"], node.cores)
    rate = node.disk_bytes_per_second
    disk = UNLIMITED if rate is None else rate
    share = Share(
        cpu_weight=min(max(1.0, node.cores * WEIGHT_PER_CORE), 10_000.0),
        cpu_cap_cores=node.cores,
        memory_bytes=node.memory_bytes,
        disk_bytes_per_second=disk,
    )
    notes = cgroups.apply(share)
    cgroups.weigh_group(WEIGHT_PER_CORE)
    if isinstance(cgroups, CgroupsV1) and cgroups.disk is not None and "blkio" in cgroups.folders:
        # Under v1 a disk rate holds for a cgroup alone, not for those below it.
        for folder in _below(cgroups.folders["blkio"]):
            CgroupsV1({"blkio": folder}, Fallbacks(Cores()), cgroups.disk).apply(Share(disk_bytes_per_second=disk))
    return tuple(f"{node.name}: {note}" for note in notes)


def lower_caps(cpu: Path, cores: float) -> None:
    """Lower the caps below a cgroup to `cores`, from the bottom up: v1 refuses a cap below one further down."""
    for folder in _below(cpu):
        quota, period = read_number(folder / "cpu.cfs_quota_us"), read_number(folder / "cpu.cfs_period_us")
        if quota is not None and period and quota > cores * period:
            lower, again = cap_microseconds(cores)
            _optional(folder / "cpu.cfs_quota_us", "-1")
            _optional(folder / "cpu.cfs_period_us", str(again))
            _optional(folder / "cpu.cfs_quota_us", str(lower))


def used(record: Record, node: str) -> tuple[float, int]:
    """CPU seconds that a node has used, and bytes of memory that it holds now."""
    cgroups = _of(record, node)
    return cgroups.cpu_seconds() or 0.0, cgroups.memory_now() or 0


def pids(record: Record, node: str) -> list[int]:
    """Processes in the cgroups of a node."""
    return _of(record, node).pids()


def kill(record: Record, node: str) -> None:
    """End every process in the cgroups of a node, those forked meanwhile too."""
    _of(record, node).kill()


def there(record: Record, node: str) -> bool:
    return all((folder / SHELL).is_dir() for folder in record.cgroups(node).values())


def remove(record: Record, node: str) -> None:
    """Remove the cgroups of a node; its processes have ended."""
    cgroups = _of(record, node)
    cgroups.remove()
    cgroups.weigh_group(WEIGHT_PER_CORE)
    left = [str(folder) for folder in cgroups.unique_folders if folder.exists()]
    if left:
        raise HeadgateError(
            f"node {node!r} cannot be removed: processes are still in {', '.join(left)}; end them, then try again"
        )


def enter(record: Record, node: str) -> None:
    """Put this process into the cgroups of a node."""
    for name, folder in record.cgroups(node).items():
        # Under v1 the node's disk rate holds for those in its own folder.
        (folder / ("." if name == "blkio" else SHELL) / "cgroup.procs").write_text(str(os.getpid()))


def found(record: Record) -> list[str]:
    """Nodes that have a cgroup."""
    groups = {Path(base) / record.names.group for base in record.bases.values()}
    return sorted({entry.name for group in groups if group.is_dir() for entry in group.iterdir() if entry.is_dir()})


def _of(record: Record, node: str, vacate: bool = False) -> Cgroups:
    folders: Mapping[str, Path] = record.cgroups(node)
    fallbacks, disk = Fallbacks(Cores()), disks.number_of(runs.home())
    if record.mode == "v1":
        return CgroupsV1(folders, fallbacks, disk)
    return CgroupsV2(folders, fallbacks, disk, vacate)


def _below(folder: Path) -> Iterator[Path]:
    """The cgroups below one, the deepest first."""
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.is_dir():
            yield from _below(entry)
            yield entry


def _optional(path: Path, text: str) -> None:
    """Write a file that not every kernel has, or whose cgroup may end meanwhile."""
    try:
        if path.exists():
            path.write_text(text)
    except OSError:
        return
