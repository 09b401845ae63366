"""Nodes and their connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

PARTS = 100
"""More than the GPUs of any machine, and more than the parts of any GPU."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or one part of a divided GPU (MIG).

    Args:
        index: Its NVML number on its node; of a part: `PARTS` x (GPU number + 1) + the part's
            number.
        name: Its model.
        memory_bytes: Its memory.
        gflops: Measured speed of a float32 matrix product, GFLOP/s; None: not measured.
        uuid: Its NVML UUID; empty: not known.
    """

    index: int
    name: str
    memory_bytes: int
    gflops: float | None = None
    uuid: str = ""

    @property
    def is_part(self) -> bool:
        return self.index >= PARTS

    @property
    def number(self) -> int:
        """NVML number of the whole GPU."""
        return self.index // PARTS - 1 if self.is_part else self.index


@dataclass(frozen=True, slots=True)
class GpuLink:
    """How the GPUs of a node are connected.

    Args:
        bytes_per_second: Rate from a GPU to the others, each direction. Of a `measured` link: the
            rate in an all-reduce (bus bandwidth of nccl-tests). None: only `how` is known.
        how: `nvlink`, `pcie`, `host` (through the CPU: PHB, NODE or SYS in `nvidia-smi topo -m`) or
            `measured`; None: only the rate is known.
    """

    bytes_per_second: float | None = None
    how: Literal["nvlink", "pcie", "host", "measured"] | None = None


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface.

    Args:
        bytes_per_second: Its rate in each direction; None: the driver does not tell it.
    """

    name: str
    bytes_per_second: float | None
    virtual: bool = False


@dataclass(frozen=True, slots=True)
class Disk:
    name: str
    bytes: int
    rotational: bool | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A part of this machine in which a node's tasks run: a lab node.

    Args:
        namespace: Path of its network namespace.
        hostname: Host name that its tasks see.
        hosts: Path of the file that its tasks see as `/etc/hosts`.
        cgroups: Parent cgroup of its tasks, by controller (`cpu`, `memory`, ..., `unified`). Other
            controllers are used as on the machine itself.
        cpus: CPUs that its tasks are bound to; empty: all.
    """

    namespace: str
    hostname: str
    hosts: str
    cgroups: Mapping[str, str]
    cpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Node:
    """One machine.

    Args:
        name: Its name, unique in its cluster.
        cores: Usable cores; fractions are allowed.
        core_gflops: Measured speed of one core: float32 matrix product, GFLOP/s; None: not
            measured.
        memory_bytes: Usable memory.
        address: IP address for the other nodes.
        nic_bytes_per_second: Rate of its NIC in each direction; None: not known.
        disk_bytes_per_second: Rate of its disk; None: not known.
        physical_cores: Cores without SMT siblings.
        numa_nodes: Number of NUMA nodes.
        kind: Name shared by nodes with the same hardware; empty: not stated.
        place: Part of this machine in which its tasks run; None: the machine itself.
        core_convolution_gflops: Measured speed of one core: float32 convolution, GFLOP/s.
        core_copy_bytes_per_second: Measured memory copy rate of one core.
        round_trip_seconds: Measured round-trip time to another node of its cluster.
        gpu_link: How its GPUs are connected; None: not known, or fewer than two GPUs.
    """

    name: str
    cores: float
    memory_bytes: int
    core_gflops: float | None = None
    address: str = "127.0.0.1"
    nic_bytes_per_second: float | None = None
    disk_bytes_per_second: float | None = None
    gpus: tuple[Gpu, ...] = ()
    nics: tuple[Nic, ...] = ()
    disks: tuple[Disk, ...] = ()
    cpu_model: str = ""
    physical_cores: int | None = None
    numa_nodes: int = 1
    kind: str = ""
    place: Place | None = None
    core_convolution_gflops: float | None = None
    core_copy_bytes_per_second: float | None = None
    round_trip_seconds: float | None = None
    gpu_link: GpuLink | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes that jobs may use."""

    nodes: tuple[Node, ...]

    def node(self, name: str) -> Node:
        """The node of this name.

        Raises:
            KeyError: There is no such node.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
