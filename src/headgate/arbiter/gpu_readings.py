"""Reads which users' jobs use which GPU, from NVML."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from headgate.arbiter.events import GpuBytes
from headgate.sampling.gpu import ask, handles


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What is used of a GPU.

    Args:
        memory: Memory in use, and by jobs with a grant.
        is_outside: Whether a program without a grant computes on it.
        busy: Users whose jobs compute on it now.
    """

    memory: GpuBytes
    is_outside: bool
    busy: frozenset[str]


def read(
    nvml: Any,
    user_of: Callable[[int], str | None],
    granted: Mapping[int, Mapping[str, float]],
) -> dict[int, GpuReading]:
    """Read all GPUs; those without a reading are left out.

    Args:
        nvml: The module `pynvml`, initialised.
        user_of: The user in whose box a process is; None: it is in none.
        granted: Bytes that each user's jobs were granted, by GPU; infinite: the whole GPU.
    """
    readings = {}
    for gpu, handle in handles(nvml).items():
        memory, rates = (
            ask(nvml, f"nvmlDeviceGet{kind}", handle) for kind in ("MemoryInfo", "UtilizationRates")
        )
        if memory is None:
            continue
        users = granted.get(gpu, {})
        used, is_outside = dict.fromkeys(users, 0.0), False
        for process in ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ():
            user = user_of(process.pid)
            if user in used:
                used[user] += process.usedGpuMemory or 0
            else:
                is_outside = True
        held = sum(min(used[user], most) for user, most in users.items())
        is_busy = rates is not None and rates.gpu > 0
        busy = frozenset(user for user, size in used.items() if size and is_busy)
        readings[gpu] = GpuReading(GpuBytes(float(memory.used), held), is_outside, busy)
    return readings
