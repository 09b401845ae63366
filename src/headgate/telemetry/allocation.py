"""The part of the machine that this process was allotted: by its affinity, by cgroup limits or by a batch system.

A hub serves one allocation: what it starts shares its CPUs and its cgroup, and ends with them.
"""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from headgate.telemetry import limits
from headgate.telemetry.files import content

BATCH_JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "OAR_JOB_ID", "FLUX_JOB_ID", "COBALT_JOBID")
"""Variables by which batch systems name a job."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A part of the machine. Processes that were allotted the same part have equal objects.

    Args:
        cpus: CPUs that may be used.
        everything: Whether these are all the CPUs of the machine or container.
        groups: In each hierarchy, the nearest cgroup above this process that sets a limit.
        job: Variable and id of the batch job; empty: none.
    """

    cpus: frozenset[int]
    everything: bool
    groups: tuple[str, ...]
    job: str

    @property
    def key(self) -> str:
        """A short text for file names that identifies the allocation; empty if it is the whole machine."""
        if self.everything and not self.groups and not self.job:
            return ""
        # A folder may be seen by several machines, each with a part of a job.
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
        root: Where /proc and /sys are found.
        environment: What names the batch job.
    """
    cpus = limits.allowed_cpus(root)
    # In a container the first process has what the container has.
    first = limits.cpus_of(root / "proc/1/status") or limits.parse_list(content(root / "sys/devices/system/cpu/online"))
    if environment.get("HEADGATE_TASK"):  # what its box narrows is not for a hub of its own
        cpus = cpus | first
    groups = [] if environment.get("HEADGATE_TASK") else limits.limiting(limits.cgroups(root))
    job = next((f"{name}={environment[name]}" for name in BATCH_JOBS if environment.get(name)), "")
    return Allocation(cpus, cpus >= first, tuple(groups), job)


def say_cpus(cpus: frozenset[int]) -> str:
    """CPU numbers as the kernel writes them: `0-3,8`."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
