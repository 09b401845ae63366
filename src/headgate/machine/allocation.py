"""The part of the machine allocated to this process: by its affinity, by cgroup limits or by a
batch system.

A hub serves one allocation. The tasks that it starts share its CPUs and its cgroup, and end with
them.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from headgate.machine import limits
from headgate.machine.files import content
from headgate.model.reasons import Reason, ReasonKind

BATCH_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "OAR_JOB_ID", "FLUX_JOB_ID", "COBALT_JOBID")
"""Variables with the id of a batch system's job."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A part of the machine. Processes with the same part have equal objects.

    Args:
        cpus: The CPUs of this part.
        everything: Whether these are all CPUs of the machine or container.
        groups: In each hierarchy, the nearest cgroup above this process with a limit.
        job: Variable and id of the batch job; empty: none.
    """

    cpus: frozenset[int]
    everything: bool
    groups: tuple[str, ...]
    job: str

    @property
    def key(self) -> str:
        """A short text for file names that identifies the allocation; empty for the whole
        machine.
        """
        if self.everything and not self.groups and not self.job:
            return ""
        # Several machines may see a folder, each with a part of a job.
        text = "\n".join([socket.gethostname(), say_cpus(self.cpus), *self.groups, self.job])
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        parts = [self.job] if self.job else []
        parts += [] if self.everything else [f"CPUs {say_cpus(self.cpus)}"]
        parts += [f"cgroup {group}" for group in self.groups]
        return ", ".join(parts) or "all of the machine"


def current(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> Allocation:
    """The allocation of this process.

    Args:
        root: Where /proc and /sys are mounted.
        environment: Variables that name the batch job.
    """
    cpus = limits.allowed_cpus(root)
    # In a container, the first process has all of the container's CPUs.
    first = limits.cpus_of(root / "proc/1/status") or limits.parse_list(
        content(root / "sys/devices/system/cpu/online")
    )
    if environment.get("HEADGATE_TASK"):  # what its box narrows is not for a hub of its own
        cpus = cpus | first
    groups = [] if environment.get("HEADGATE_TASK") else limits.limiting(limits.cgroups(root))
    job = next((f"{name}={environment[name]}" for name in BATCH_JOBS if environment.get(name)), "")
    return Allocation(cpus, cpus >= first, tuple(groups), job)


@dataclass(frozen=True, slots=True)
class SlurmShare:
    """The allocation of a Slurm job, from its variables; None: not stated.

    Args:
        job: Its id.
        cores: CPUs on this node.
        memory_bytes: Memory on this node.
        gpus: GPUs on this node.
        nodes: Names of its nodes, in Slurm's notation.
        count: Number of its nodes.
        here: Whether this process is on one of them.
    """

    job: str
    cores: int | None
    memory_bytes: int | None
    gpus: int | None
    nodes: str
    count: int
    here: bool

    def reason(self) -> Reason:
        """It as facts, which `model.reason_text` words."""
        return Reason.of(ReasonKind.SLURM_SHARE, **asdict(self))


def slurm_share(environment: Mapping[str, str] = os.environ) -> SlurmShare | None:
    """The allocation of this process's Slurm job. None outside of one, and in a task of
    Headgate's.
    """
    job = environment.get("SLURM_JOB_ID")
    if not job or environment.get("HEADGATE_TASK"):
        return None
    counts = [
        int(cpus)
        for cpus, times in re.findall(
            r"(\d+)(?:\(x(\d+)\))?", environment.get("SLURM_JOB_CPUS_PER_NODE", "")
        )
        for _ in range(int(times or 1))
    ]
    node = _whole(environment.get("SLURM_NODEID")) or 0
    cores = _whole(environment.get("SLURM_CPUS_ON_NODE")) or (
        counts[node] if node < len(counts) else None
    )
    mebibytes = _whole(environment.get("SLURM_MEM_PER_NODE"))
    if mebibytes is None and cores and (of_cpu := _whole(environment.get("SLURM_MEM_PER_CPU"))):
        mebibytes = of_cpu * cores
    names = environment.get("SLURM_JOB_NODELIST", "")
    return SlurmShare(
        job,
        cores,
        mebibytes << 20 if mebibytes else None,  # 0: all of the node's
        _whole(environment.get("SLURM_GPUS_ON_NODE")),
        names,
        _whole(environment.get("SLURM_JOB_NUM_NODES")) or 1,
        # Steps of the job have the first variable; salloc starts a shell on the submitting machine.
        "SLURMD_NODENAME" in environment
        or names in ("", socket.gethostname(), socket.gethostname().partition(".")[0]),
    )


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


def say_cpus(cpus: frozenset[int]) -> str:
    """CPU numbers as the kernel writes them: `0-3,8`."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
