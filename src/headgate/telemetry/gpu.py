"""GPU: how busy, and how much of its memory is in use, through NVML."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from headgate.cluster import Gpu
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
    """The GPUs of this machine; those that NVML cannot describe are left out."""
    if nvml is None:
        return ()
    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            name = nvml.nvmlDeviceGetName(handle)
            memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        except nvml.NVMLError:
            continue
        # Older bindings answer in bytes.
        found.append(Gpu(index, name.decode() if isinstance(name, bytes) else str(name), memory))
    return tuple(found)


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

    Of this machine: over all GPUs. Of a task, and of a node that is a place on this machine: what NVML accounts to its
    processes, over the GPUs that they hold memory on; nothing when they hold none. Without NVML or a GPU there are no
    readings, and that is no error.

    Args:
        nvml: The `pynvml` module, initialised; None to look for it at the first reading.
    """

    name = "gpu"

    def __init__(self, nvml: Any | None = None) -> None:
        self._nvml = nvml
        self._looked = nvml is not None
        self._handles: list[Any] = []
        self._since: dict[int, int] = {}

    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        del now  # NVML averages by itself
        if not self._looked:
            self._nvml, self._looked = open_nvml(), True
        if self._nvml is None or not targets:
            return {}
        if not self._handles:
            count = self._nvml.nvmlDeviceGetCount()
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        states = [self._state(self._nvml, index, handle) for index, handle in enumerate(self._handles)]
        readings: dict[str, Mapping[Column, float]] = {}
        for target in targets:
            box = target.box if target.place is None else PlacedNode(target.place)
            values = _of_node(states) if box is None else _of_task(states, frozenset(box.pids()))
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
