"""The readings that this machine has, and what is lost without each."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from headgate.machine.files import content
from headgate.sampling import perf_events, resctrl
from headgate.sampling.gpu import open_nvml
from headgate.sampling.waiting import accounts_for_delays

_RESCTRL_FLAGS = {"cqm_mbm_total", "cqm_llc"}
"""Flags in /proc/cpuinfo of a CPU with counters for resctrl."""


@dataclass(frozen=True, slots=True)
class MachineReading:
    """A reading that helps to explain slow jobs.

    Args:
        name: Its name in doctor and docs/telemetry.md.
        there: Whether this machine has it.
        without: What is lost without it.
        cure: How to enable it; empty if it is available, or impossible on this machine.
    """

    name: str
    there: bool
    without: str
    cure: str


def survey(controllers: Collection[str], root: Path = Path("/")) -> tuple[MachineReading, ...]:
    """All readings, in the order of docs/telemetry.md.

    Args:
        controllers: The cgroup controllers of tasks.
        root: Where /proc and /sys are mounted.
    """
    return tuple(_readings(controllers, root))


def _readings(controllers: Collection[str], root: Path) -> Iterator[MachineReading]:
    def reading(name: str, is_there: bool, without: str, cure: str) -> MachineReading:
        return MachineReading(name, is_there, without, "" if is_there else cure)

    yield reading(
        "schedstat",
        (root / "proc/self/schedstat").exists(),
        "how long threads wait for a core is not known, so no loss through cores is counted",
        (
            "use a kernel built with CONFIG_SCHED_INFO; those of all distributions are; some "
            "sandboxes lack it"
        ),
    )
    yield reading(
        "throttling",
        "cpu" in controllers,
        "time in which a job's own cap held it back is unexplained",
        (
            "mount the cgroup controller `cpu`, or have it delegated: `Delegate=yes` of the "
            "systemd unit"
        ),
    )
    yield reading(
        "delay accounting",
        accounts_for_delays(root),
        "time blocked on disks is known only as pressure, not by thread",
        "sysctl kernel.task_delayacct=1",
    )
    yield reading(
        "PSI",
        _readable(root / "proc/pressure/io"),
        "the pressure of CPU, memory and disks on the node is not known",
        "boot with `psi=1`",
    )
    yield reading(
        "refaults",
        "memory" in controllers,
        "a memory limit that makes a job read its files again cannot be told from a slow disk",
        (
            "mount the cgroup controller `memory`, or have it delegated: `Delegate=yes` of the "
            "systemd unit"
        ),
    )
    yield reading(
        "retransmits",
        "RetransSegs" in content(root / "proc/self/net/snmp"),
        "a network that loses packets cannot be told from one that is full",
        "mount /proc with the network's files (`net/snmp`)",
    )
    stat = content(root / "proc/stat").split("\n", 1)[0].split()
    yield reading(
        "steal",
        len(stat) > 8,
        "time that a hypervisor kept from the node is unexplained",
        "use a kernel whose /proc/stat has it, and a hypervisor that reports it: some always say 0",
    )
    yield reading(
        "resctrl",
        resctrl.monitors(root),
        (
            "memory bandwidth and cache of each job are not known; steps that take more CPU time "
            "are only compared"
        ),
        _resctrl_cure(root),
    )
    refused = perf_events.refusal()
    yield reading(
        "hardware counters",
        refused is None,
        (
            "cycles per instruction of each job are not known; steps that take more CPU time are "
            "only compared"
        ),
        _counters_cure(refused),
    )
    yield reading(
        "NVML",
        open_nvml() is not None,
        "the use of GPUs is not known",
        "install NVIDIA's driver, where the machine has such a GPU",
    )


def _readable(path: Path) -> bool:
    return bool(content(path))


def _resctrl_cure(root: Path) -> str:
    if set(content(root / "proc/cpuinfo").split()) & _RESCTRL_FLAGS:
        return "mount -t resctrl resctrl /sys/fs/resctrl"
    return ""


def _counters_cure(refused: int | None) -> str:
    if refused in (errno.EACCES, errno.EPERM):
        return "sysctl kernel.perf_event_paranoid=0"
    return ""
