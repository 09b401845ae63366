"""Nodes, and how they are joined."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

PARTS = 100
"""More GPUs than a machine has, and more parts than a GPU."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU, or a part of one that is divided (MIG).

    Args:
        index: Its number on its node, as NVML counts; of a part `PARTS` times one more than the
            number of its GPU, and which part it is.
        name: What it is.
        memory_bytes: Its memory.
        gflops: Its measured speed, float32 matrix product in GFLOP/s; None where not measured.
        uuid: As NVML tells it; empty where that is not known.
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
        """Of the GPU that it is or is a part of."""
        return self.index // PARTS - 1 if self.is_part else self.index


@dataclass(frozen=True, slots=True)
class GpuLink:
    """How the GPUs of a node reach each other.

    Args:
        bytes_per_second: That a GPU sends to the others, each direction; of a `measured` link what
            it sends in an all-reduce (the bus bandwidth of nccl-tests). None where only `how` is
            known.
        how: `nvlink`; `pcie` where the way is known to be that, `host` where it leads through the
            CPU (PHB, NODE or SYS in `nvidia-smi topo -m`); `measured`; None where only the rate is
            known.
    """

    bytes_per_second: float | None = None
    how: Literal["nvlink", "pcie", "host", "measured"] | None = None


@dataclass(frozen=True, slots=True)
class Nic:
    """A network interface; `bytes_per_second` each direction, None where the driver does not
    say.
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
    """Where on this machine the tasks of a node run, where that is not the machine as a whole: a
    lab node.

    Args:
        namespace: Path of its network namespace.
        hostname: The host name that its tasks see.
        hosts: Path of the file that its tasks see as `/etc/hosts`.
        cgroups: Folder of its cgroup by controller (`cpu`, `memory`, ..., `unified`), below which
            the boxes of its tasks go; a controller that is not named is used as on the machine
            itself.
        cpus: The CPUs that its tasks keep to; empty: all.
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
        name: Unique in its cluster.
        cores: Cores that may be used, fractions allowed.
        core_gflops: Measured speed of one core: float32 matrix product, GFLOP/s; None where not
            measured.
        memory_bytes: Memory that may be used.
        address: IP address that the other nodes reach it by.
        nic_bytes_per_second: Rate of its NIC, each direction; None where not known.
        disk_bytes_per_second: Rate of its disk; None where not known.
        physical_cores: Cores without counting SMT siblings.
        numa_nodes: Number of NUMA nodes.
        kind: Nodes of the same kind are alike; empty where nobody said.
        place: Where its tasks run on this machine; None: on the machine as it is.
        core_convolution_gflops: Measured speed of one core: float32 convolution, GFLOP/s.
        core_copy_bytes_per_second: Bytes that one core copies from memory to memory, measured.
        round_trip_seconds: A message to another node of its cluster and back, measured.
        gpu_link: How its GPUs reach each other; None where it is not known, or there are fewer than
            two.
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
        """The node of that name.

        Raises:
            KeyError: There is none.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        raise KeyError(name)
