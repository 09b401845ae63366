"""GPU: how busy, and how much of its memory is in use, through NVML."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from headgate.cluster import PARTS, Gpu
from headgate.telemetry.base import Sampler, Target
from headgate.telemetry.columns import Column
from headgate.telemetry.sources import PlacedNode


def open_nvml() -> Any | None:
    """NVIDIA's management library, initialised; None where the optional package, the driver or every GPU is missing."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001  # not installed, or whatever its loader raises where there is no driver
        return None
    try:
        return nvml if nvml.nvmlDeviceGetCount() else None
    except nvml.NVMLError:
        return None


def gpus(nvml: Any | None) -> tuple[Gpu, ...]:
    """The GPUs of this machine, of those that are divided (MIG) the parts; what NVML cannot describe is left out."""
    if nvml is None:
        return ()
    found = []
    for index, handle in _handles(nvml).items():
        try:
            name = nvml.nvmlDeviceGetName(handle)
            memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        except nvml.NVMLError:
            continue
        uuid = _ask(nvml, "nvmlDeviceGetUUID", handle) or ""
        # Older bindings answer in bytes.
        name, uuid = (text.decode() if isinstance(text, bytes) else str(text) for text in (name, uuid))
        found.append(Gpu(index, name, memory, uuid=uuid))
    return tuple(found)


def _handles(nvml: Any) -> dict[int, Any]:
    """What NVML knows each GPU by, or each part of one that is divided, by its index."""
    found: dict[int, Any] = {}
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        mode = _ask(nvml, "nvmlDeviceGetMigMode", handle)
        if mode is None or not mode[0]:
            found[number] = handle
            continue
        for part in range(_ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            if (within := _ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, part)) is not None:
                found[PARTS * (number + 1) + part] = within
    return found


def _ask(nvml: Any, function: str, *arguments: Any) -> Any | None:
    """What NVML answers; None where it, or the GPU, does not know."""
    try:
        return getattr(nvml, function)(*arguments)
    except (AttributeError, nvml.NVMLError):  # an older one has no such function
        return None


def device_numbers(nvml: Any | None) -> Mapping[int, int]:
    """The number in the name of each GPU's device file, by its index; those that NVML does not tell are left out."""
    if nvml is None:
        return {}
    found: dict[int, int] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):
            found[index] = int(nvml.nvmlDeviceGetMinorNumber(nvml.nvmlDeviceGetHandleByIndex(index)))
    return found


@dataclass(slots=True)
class _State:
    """What one GPU said in one round. None: it does not say (MIG, an old driver)."""

    busy: float | None
    memory: float | None
    memory_by_pid: dict[int, float]
    busy_by_pid: dict[int, float]


class GpuSampler(Sampler):
    """`gpu_busy` and `gpu_memory_bytes`.

    Of this machine: over all GPUs, or over those that its target names. Of a task, and of a node that is a place on
    this machine: what NVML accounts to its processes, over the GPUs that they hold memory on; nothing when they hold
    none. Without NVML or a GPU there are no readings, and that is no error.

    Args:
        nvml: The `pynvml` module, initialised; None to look for it at the first reading.
    """

    name = "gpu"

    def __init__(self, nvml: Any | None = None) -> None:
        self._nvml = nvml
        self._looked = nvml is not None
        self._handles: dict[int, Any] = {}
        self._since: dict[int, int] = {}

    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        del now  # NVML averages by itself
        if not self._looked:
            self._nvml, self._looked = open_nvml(), True
        if self._nvml is None or not targets:
            return {}
        if not self._handles:
            self._handles = _handles(self._nvml)
        states = {index: self._state(self._nvml, index, handle) for index, handle in self._handles.items()}
        readings: dict[str, Mapping[Column, float]] = {}
        for target in targets:
            box = target.box if target.place is None else PlacedNode(target.place)
            seen = [state for index, state in states.items() if target.gpus is None or index in target.gpus]
            values = _of_node(seen) if box is None else _of_task(seen, frozenset(box.pids()))
            if values:
                readings[target.id] = values
        return readings

    def _state(self, nvml: Any, index: int, handle: Any) -> _State:
        state = _State(None, None, {}, {})
        try:
            state.busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        except nvml.NVMLError:
            pass
        try:
            state.memory = float(nvml.nvmlDeviceGetMemoryInfo(handle).used)
        except nvml.NVMLError:
            pass
        try:
            for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle):
                state.memory_by_pid[process.pid] = float(process.usedGpuMemory or 0)
        except nvml.NVMLError:
            pass
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, self._since.get(index, 0))
        except nvml.NVMLError:
            samples = []  # also its answer where no process ran on it since then
        for sample in samples:
            self._since[index] = max(self._since.get(index, 0), sample.timeStamp)
            state.busy_by_pid[sample.pid] = min(1.0, sample.smUtil / 100)
        return state


def _of_node(states: Sequence[_State]) -> dict[Column, float]:
    readings: dict[Column, float] = {}
    busy = [state.busy for state in states if state.busy is not None]
    memory = [state.memory for state in states if state.memory is not None]
    if busy:
        readings["gpu_busy"] = sum(busy) / len(busy)
    if memory:
        readings["gpu_memory_bytes"] = sum(memory)
    return readings


def _of_task(states: Sequence[_State], pids: frozenset[int]) -> dict[Column, float]:
    used = [state for state in states if not pids.isdisjoint(state.memory_by_pid)]
    if not used:
        return {}
    memory = sum(size for state in used for pid, size in state.memory_by_pid.items() if pid in pids)
    readings: dict[Column, float] = {"gpu_memory_bytes": memory}
    if any(state.busy is not None for state in used):
        busy = [sum(share for pid, share in state.busy_by_pid.items() if pid in pids) for state in used]
        readings["gpu_busy"] = min(1.0, sum(busy) / len(busy))
    return readings
