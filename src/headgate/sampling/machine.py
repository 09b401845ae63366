"""This machine: its resources, the usable part, and the part in use."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from headgate.machine import limits
from headgate.machine.allocation import slurm_share
from headgate.machine.blocks import whole_disks
from headgate.machine.core_speed import core_gflops, known
from headgate.machine.files import content
from headgate.machine.gpu_visibility import missing, within
from headgate.machine.nics import counted, default_routes, interfaces, outward
from headgate.model.cluster import Disk, GpuLink, Nic, Node
from headgate.sampling.base import Target
from headgate.sampling.columns import Column
from headgate.sampling.cpu import CpuSampler
from headgate.sampling.gpu import gpu_link, gpus, open_nvml
from headgate.sampling.gpu_holders import GpuStatus, MissingNvml, missing_nvml, statuses
from headgate.sampling.memory import MemorySampler
from headgate.sampling.round import SamplingRound

CALIBRATED = ("core_convolution_gflops", "core_copy_bytes_per_second", "disk_bytes_per_second")
"""Fields of a `Node` that are known only after calibration."""
ALL_REDUCE = "all_reduce_bytes_per_second"
"""The measured field of the link between GPUs."""
_LOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Topology:
    """The usable CPUs, without limits on their time.

    Args:
        model: Name of the CPU model.
        online: CPUs of the machine.
        allowed: CPUs that this process may run on.
        physical: Number of their cores, SMT siblings counted once.
        numa_nodes: NUMA nodes of the allowed CPUs.
    """

    model: str
    online: int
    allowed: int
    physical: int
    numa_nodes: int

    @property
    def smt(self) -> bool:
        return self.physical < self.allowed


@dataclass(frozen=True, slots=True)
class Survey:
    """The machine as `headgate doctor` shows it.

    Args:
        node: The machine as a node.
        topology: Its CPUs.
        kernel: Release of the kernel.
        cgroups: Version, mount points and this process's folders.
        quota_cores: CPU time that this process's cgroup allows, in cores; None without a limit.
        memory_limit_bytes: Memory that this process's cgroup allows; None without a limit.
        machine_memory_bytes: Memory of the machine.
        pressure: Whether the kernel has pressure stall information.
        default_route: Interface of a default route; None without one.
        other_interfaces: Interfaces whose bytes are not counted: bonds, bridges, tunnels and the
            like.
        used_cores: Cores in use by all programs, over a quarter of a second; None if it cannot be
            read.
        used_memory_bytes: Memory in use by all programs, without page cache.
        gpus: The usable GPUs, and the processes that hold memory of each.
        machine_gpus: Number of the machine's GPUs, including those hidden by the environment.
        missing_nvml: Why no GPU is found on a machine with some; None: one is found, or it has
            none.
        missing_gpus: Entries of the environment that are no GPUs, with a remedy; empty: none.
    """

    node: Node
    topology: Topology
    kernel: str
    cgroups: limits.CgroupTree
    quota_cores: float | None
    memory_limit_bytes: int | None
    machine_memory_bytes: int
    pressure: bool
    default_route: str | None
    other_interfaces: tuple[str, ...]
    used_cores: float | None
    used_memory_bytes: float | None
    gpus: tuple[GpuStatus, ...]
    machine_gpus: int
    missing_nvml: MissingNvml | None
    missing_gpus: str


def detect(cache: Path | None = None, environment: Mapping[str, str] = os.environ) -> Node:
    """This machine as a node, with the results of `headgate calibrate`.

    Measures the speed of a core in half a second unless it is cached.

    Args:
        cache: A JSON file with the speed of a core; None: measure it.
        environment: Variables that restrict the usable GPUs.
    """
    node = describe()
    speed = core_gflops(cache, node.cpu_model, node.cores)
    measured = known(cache, node.cpu_model, node.cores)
    rates: Mapping[str, Any] = {
        name: rate
        for name in CALIBRATED
        if isinstance(rate := measured.get(name), float) and rate > 0
    }
    of_gpus = measured.get("gpus")
    by_name = of_gpus if isinstance(of_gpus, dict) else {}
    nvml = open_nvml()
    gpus_found = tuple(replace(gpu, gflops=by_name.get(gpu.name)) for gpu in gpus(nvml))
    node = within(
        replace(node, core_gflops=speed, address=_address(), gpus=gpus_found, **rates), environment
    )
    all_reduce = measured.get(ALL_REDUCE)
    if len(node.gpus) < 2:
        return node
    link = (
        GpuLink(all_reduce, "measured")
        if isinstance(all_reduce, float) and all_reduce > 0
        else gpu_link(nvml)
    )
    return replace(node, gpu_link=link)


def survey(cache: Path | None = None) -> Survey:
    """Survey this machine. Measures the present usage for a quarter of a second."""
    node = detect(cache)
    tree = limits.cgroups()
    routes = default_routes()
    carrying = {nic.name for nic in counted()}
    cpus, used, nvml = topology(), _present_usage(), open_nvml()
    every = gpus(nvml)
    # a moment without the CPU between the clock and the counters makes it more than there are
    used_cores = min(used["cpu_cores"], float(cpus.online)) if "cpu_cores" in used else None
    return Survey(
        node=node,
        topology=cpus,
        kernel=platform.release(),
        cgroups=tree,
        quota_cores=limits.quota_cores(tree),
        memory_limit_bytes=limits.memory_limit(tree),
        machine_memory_bytes=machine_memory(),
        pressure=Path("/proc/pressure/cpu").exists(),
        default_route=routes[0] if routes else None,
        other_interfaces=tuple(nic.name for nic in interfaces() if nic.name not in carrying),
        used_cores=used_cores,
        used_memory_bytes=used.get("memory_bytes"),
        gpus=tuple(statuses(nvml, node.gpus)),
        machine_gpus=len(every),
        missing_nvml=missing_nvml() if not every else None,
        missing_gpus=missing(os.environ, every),
    )


def describe(root: Path = Path("/")) -> Node:
    """A machine as files describe it, or the part that Slurm allocated to this process, which may
    not be enforced. All of its `Node` except GPUs, address and measured speed.

    Args:
        root: Where /proc and /sys are mounted.
    """
    tree = limits.cgroups(root)
    cpus = topology(root)
    memory = machine_memory(root)
    quota, limit = limits.quota_cores(tree), limits.memory_limit(tree)
    outer = outward(root)
    share = slurm_share()
    allotted = (
        (share.cores, share.memory_bytes) if share is not None and share.here else (None, None)
    )
    return Node(
        name=socket.gethostname(),
        cores=min(
            [float(cpus.allowed), *(float(cores) for cores in (quota, allotted[0]) if cores)]
        ),
        memory_bytes=min([memory, *(size for size in (limit, allotted[1]) if size)]),
        nic_bytes_per_second=outer.bytes_per_second if outer is not None else None,
        nics=tuple(
            Nic(nic.name, nic.bytes_per_second, virtual=not nic.physical) for nic in counted(root)
        ),
        disks=tuple(Disk(disk.name, disk.bytes, disk.rotational) for disk in whole_disks(root)),
        cpu_model=cpus.model,
        physical_cores=cpus.physical,
        numa_nodes=cpus.numa_nodes,
    )


def core_of_cpu(root: Path = Path("/")) -> dict[int, int]:
    """The core of each usable CPU, as the number of the core's first CPU."""
    folder = root / "sys/devices/system/cpu"
    # Without topology files (some containers and ARM boards) each CPU counts as a core.
    return {
        cpu: min(
            limits.parse_list(content(folder / f"cpu{cpu}/topology/thread_siblings_list")),
            default=cpu,
        )
        for cpu in limits.allowed_cpus(root)
    }


def topology(root: Path = Path("/")) -> Topology:
    """The usable CPUs, from /proc and /sys below `root`."""
    allowed = limits.allowed_cpus(root)
    folder = root / "sys/devices/system/cpu"
    online = limits.parse_list(content(folder / "online")) or allowed
    nodes = 0
    for path in sorted((root / "sys/devices/system/node").glob("node[0-9]*")):
        if limits.parse_list(content(path / "cpulist")) & allowed:  # a node may have memory only
            nodes += 1
    return Topology(
        model=_cpu_model(root),
        online=len(online),
        allowed=len(allowed),
        physical=len(set(core_of_cpu(root).values())),
        numa_nodes=max(1, nodes),
    )


def machine_memory(root: Path = Path("/")) -> int:
    """Bytes of memory of the whole machine."""
    for line in content(root / "proc/meminfo").splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    return 0


def _cpu_model(root: Path) -> str:
    for line in content(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "cpu model", "Model"):
            return value.strip()
    # An ARM kernel names no model, but its board may.
    return content(root / "proc/device-tree/model").strip("\0") or platform.machine()


def _address() -> str:
    """This machine's address towards other networks. Connecting a UDP socket looks up the route and
    sends nothing.
    """
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((far, 9))
                return str(probe.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def _present_usage() -> dict[Column, float]:
    """The machine's present usage by all processes, without values that cannot be read."""
    node = (Target("node", None),)
    everything = SamplingRound((CpuSampler(), MemorySampler()), lambda _text: None)
    everything.read(time.monotonic(), node)
    time.sleep(_LOOK_SECONDS)
    readings = everything.read(time.monotonic(), node).get("node", {})
    everything.read(time.monotonic(), ())  # closes what was opened
    return readings
