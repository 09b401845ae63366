"""The limits of a node: a cgroup for each, with the boxes of its tasks inside."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from headgate.lab.record import Record
from headgate.machine import disks
from headgate.machine.cgroup_layout import CGROUPS, CURE, CgroupLayout, find_layout
from headgate.machine.cgroup_v1 import CgroupsV1, inherit_cpuset
from headgate.machine.cgroup_v2 import CgroupsV2
from headgate.machine.cgroups import Cgroups, cap_microseconds, read_number
from headgate.machine.enclosure import cpu_list
from headgate.machine.fallbacks import Cores, Fallbacks
from headgate.machine.limits import parse_list
from headgate.model.cluster import Node
from headgate.model.errors import HeadgateError, IsolationError
from headgate.model.shares import UNLIMITED, WEIGHT_DEFAULT, Share, Uncontrolled
from headgate.recorded import runs

CONTROLLERS = ("cpu", "cpuacct", "cpuset", "memory", "blkio", "io", "unified")
"""The controllers for which a node has a cgroup. In others its tasks are as on the machine
itself.
"""
SHELL = "shell"
"""Cgroup below a node's for manual commands, because under v2 a cgroup with children must not have
processes.
"""

WEIGHT_PER_CORE = 10 * WEIGHT_DEFAULT
"""CPU weight per core. A node should get its cores like a machine of its own, so it takes
precedence over other programs here.
"""


def spread(
    cores: Mapping[str, float], core_of_cpu: Mapping[int, int], claimed: Mapping[int, float]
) -> dict[str, tuple[int, ...]]:
    """The CPUs for each node of a lab: as many as its cores, rounded up. Empty: all.

    A node's cap is on the time of all CPUs. Threads on different CPUs use it up equally, whatever
    their weights, because weights only count among threads that wait for the same CPU. So a node
    gets no more CPUs than it needs: those least claimed, on the least claimed cores. If a CPU would
    be claimed beyond its time (three nodes of 0.6 cores on two CPUs), all nodes of the lab get all
    CPUs. Otherwise they could not have what the file states.

    Args:
        cores: Cores of each node.
        core_of_cpu: The CPUs, and the core of each.
        claimed: Cores claimed by nodes of other labs, by CPU.
    """
    load = {cpu: claimed.get(cpu, 0.0) for cpu in core_of_cpu}
    of_core = dict.fromkeys(core_of_cpu.values(), 0.0)
    for cpu, cpu_load in load.items():
        of_core[core_of_cpu[cpu]] += cpu_load
    cpus_of_nodes: dict[str, tuple[int, ...]] = {}
    for node in sorted(cores, key=lambda name: -cores[name]):
        chosen: list[int] = []
        count = min(math.ceil(cores[node] - 1e-9), len(load))
        for _ in range(count):
            cpu = min(
                load.keys() - chosen, key=lambda cpu: (load[cpu], of_core[core_of_cpu[cpu]], cpu)
            )
            load[cpu] += cores[node] / count
            of_core[core_of_cpu[cpu]] += cores[node] / count
            chosen.append(cpu)
        cpus_of_nodes[node] = tuple(sorted(chosen)) if count < len(load) else ()
    return cpus_of_nodes if max(load.values()) <= 1.0 + 1e-9 else dict.fromkeys(cores, ())


def find() -> CgroupLayout:
    """Where the cgroups of nodes can be made.

    Raises:
        IsolationError: Cgroups cannot limit CPU and memory here.
    """
    layout = find_layout(CGROUPS)
    lacking = {"cpu", "memory"} - layout.bases.keys()
    if lacking:
        causes = "; ".join(
            dict.fromkeys(
                layout.missing.get(name, f"no {name} controller") for name in sorted(lacking)
            )
        )
        raise IsolationError(f"a lab needs cgroups for CPU and memory: {causes}; {CURE}")
    return CgroupLayout(
        layout.mode,
        {name: layout.bases[name] for name in CONTROLLERS if name in layout.bases},
        layout.vacate,
    )


def make(record: Record, nodes: list[Node], vacate: bool) -> None:
    """Make the cgroups of new nodes, without limits."""
    for node in nodes:
        cgroups = _of(record, node.name, vacate)
        cgroups.create()
        for folder in cgroups.unique_folders:
            # a machine that is out of memory kills a process, not all
            _optional(folder / "memory.oom.group", "0")
            (folder / SHELL).mkdir()
        if isinstance(cgroups, CgroupsV1) and "cpuset" in cgroups.folders:
            for write in inherit_cpuset(cgroups.folders["cpuset"] / SHELL):
                write.path.write_text(write.text)


def put(record: Record, node: Node) -> tuple[str, ...]:
    """Apply the limits of a node while its tasks run.

    Returns:
        A line for each limit that is not possible here.

    Raises:
        IsolationError: The kernel refused a limit, such as a memory limit below the present usage.
            The others are applied.
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
    notes = (*cgroups.apply(share), *confine(record, node.name))
    cgroups.weigh_group(WEIGHT_PER_CORE)
    if isinstance(cgroups, CgroupsV1) and cgroups.disk is not None and "blkio" in cgroups.folders:
        # Under v1 a disk rate only holds for one cgroup, not for those below it.
        for folder in _descendants(cgroups.folders["blkio"]):
            CgroupsV1({"blkio": folder}, Fallbacks(Cores()), cgroups.disk).apply(
                Share(disk_bytes_per_second=disk)
            )
    return tuple(f"{node.name}: {note}" for note in notes)


def confine(record: Record, node: str) -> tuple[Uncontrolled, ...]:
    """Restrict a node to its CPUs while its tasks run. A task pinned to some of them stays pinned
    if possible.

    Returns:
        Warnings, if any.
    """
    cgroups, cpus = _of(record, node), frozenset(record.nodes[node].cpus) or None
    folder = cgroups.folders.get("cpuset")
    if folder is None or not isinstance(cgroups, CgroupsV1):
        return cgroups.pin(cpus)
    # Under v1 a cpuset always has to be within its parent's.
    [write] = cgroups.pin_writes(cpus) or ()
    within = parse_list(write.text)
    files = [group / write.path.name for group in (*_descendants(folder), folder)]
    had = {file: parse_list(file.read_text()) for file in files}
    for file in reversed(files):
        file.write_text(cpu_list(had[file] | within))
    for file in files:
        pinned = had[file] & within if had[file] != had[write.path] else within
        file.write_text(cpu_list(pinned or within))
    return ()


def lower_caps(cpu: Path, cores: float) -> None:
    """Lower the caps below a cgroup to `cores`, from the bottom up, because v1 refuses a cap below
    that of a child.
    """
    for folder in _descendants(cpu):
        quota, period = (
            read_number(folder / "cpu.cfs_quota_us"),
            read_number(folder / "cpu.cfs_period_us"),
        )
        if quota is not None and period and quota > cores * period:
            lower, again = cap_microseconds(cores)
            _optional(folder / "cpu.cfs_quota_us", "-1")
            _optional(folder / "cpu.cfs_period_us", str(again))
            _optional(folder / "cpu.cfs_quota_us", str(lower))


def used(record: Record, node: str) -> tuple[float, int]:
    """CPU seconds that a node has used, and its present memory in bytes."""
    cgroups = _of(record, node)
    return cgroups.cpu_seconds() or 0.0, cgroups.memory_now() or 0


def pids(record: Record, node: str) -> list[int]:
    """Processes in the cgroups of a node."""
    return _of(record, node).pids()


def kill(record: Record, node: str) -> None:
    """End every process in the cgroups of a node, including those forked meanwhile."""
    _of(record, node).kill()


def there(record: Record, node: str) -> bool:
    return all((folder / SHELL).is_dir() for folder in record.cgroups(node).values())


def remove(record: Record, node: str) -> None:
    """Remove the cgroups of a node whose processes have ended."""
    cgroups = _of(record, node)
    cgroups.remove()
    cgroups.weigh_group(WEIGHT_PER_CORE)
    left = [str(folder) for folder in cgroups.unique_folders if folder.exists()]
    if left:
        raise HeadgateError(
            f"node {node!r} cannot be removed: processes are still in {', '.join(left)}; end "
            "them, then try again"
        )


def enter(record: Record, node: str) -> None:
    """Put this process into the cgroups of a node."""
    cgroups = record.cgroups(node)
    if "cpuset" not in cgroups and (cpus := record.nodes[node].cpus):
        os.sched_setaffinity(0, cpus)
    for name, folder in cgroups.items():
        # Under v1 the node's disk rate only holds for processes in its own folder.
        (folder / ("." if name == "blkio" else SHELL) / "cgroup.procs").write_text(str(os.getpid()))


def nodes_found(record: Record) -> list[str]:
    groups = {Path(base) / record.names.group for base in record.bases.values()}
    return sorted(
        {
            entry.name
            for group in groups
            if group.is_dir()
            for entry in group.iterdir()
            if entry.is_dir()
        }
    )


def _of(record: Record, node: str, vacate: bool = False) -> Cgroups:
    folders: Mapping[str, Path] = record.cgroups(node)
    fallbacks, disk = Fallbacks(Cores()), disks.number_of(runs.home())
    if record.mode == "v1":
        return CgroupsV1(folders, fallbacks, disk)
    return CgroupsV2(folders, fallbacks, disk, vacate)


def _descendants(folder: Path) -> Iterator[Path]:
    """The cgroups below one, the deepest first."""
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        if entry.is_dir():
            yield from _descendants(entry)
            yield entry


def _optional(path: Path, text: str) -> None:
    """Write a file that some kernels lack, or whose cgroup may disappear meanwhile."""
    try:
        if path.exists():
            path.write_text(text)
    except OSError:
        return
