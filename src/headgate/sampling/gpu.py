"""GPU utilization and memory in use, through NVML."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from headgate.machine.files import content
from headgate.model.cluster import PARTS, Gpu, GpuLink
from headgate.sampling.base import Sampler, Target
from headgate.sampling.columns import Column
from headgate.sampling.sources import PlacedNode

_NVLINK = 25e9  # bytes a second each direction of one NVLink from its second generation on
_LOOK_SECONDS = 0.1
_SINGLE, _PROHIBITED = (1, 3), 2
"""Compute modes of NVML."""
_WINDOW_MICROSECONDS = 150_000
"""Windows that began within this time of each other are the same."""


def open_nvml() -> Any | None:
    """NVIDIA's management library, initialised. None if the optional package, the driver or every
    GPU is missing.
    """
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
    """The GPUs of this machine, without those that NVML cannot describe. Parts of a divided GPU
    (MIG) count as GPUs.
    """
    if nvml is None:
        return ()
    gpus_found = []
    for index, handle in handles(nvml).items():
        try:
            name = nvml.nvmlDeviceGetName(handle)
            memory = int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
        except nvml.NVMLError:
            continue
        uuid = ask(nvml, "nvmlDeviceGetUUID", handle) or ""
        # Older bindings return bytes.
        name, uuid = (
            text.decode() if isinstance(text, bytes) else str(text) for text in (name, uuid)
        )
        gpus_found.append(Gpu(index, name, memory, uuid=uuid))
    return tuple(gpus_found)


def handles(nvml: Any) -> dict[int, Any]:
    """The NVML handle of each GPU, or of each part of a divided one, by index."""
    handles_by_number: dict[int, Any] = {}
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        mode = ask(nvml, "nvmlDeviceGetMigMode", handle)
        if mode is None or not mode[0]:
            handles_by_number[number] = handle
            continue
        for part in range(ask(nvml, "nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
            if (
                within := ask(nvml, "nvmlDeviceGetMigDeviceHandleByIndex", handle, part)
            ) is not None:
                handles_by_number[PARTS * (number + 1) + part] = within
    return handles_by_number


def ask(nvml: Any, function: str, *arguments: Any) -> Any | None:
    """The answer of NVML; None if NVML or the GPU has none."""
    try:
        return getattr(nvml, function)(*arguments)
    except (AttributeError, nvml.NVMLError):  # an older one has no such function
        return None


def device_numbers(nvml: Any | None) -> Mapping[int, int]:
    """The number of each GPU's device file, by the GPU's index. GPUs without a known number are
    left out.
    """
    if nvml is None:
        return {}
    numbers_by_device: dict[int, int] = {}
    for index in range(nvml.nvmlDeviceGetCount()):
        with contextlib.suppress(nvml.NVMLError):
            numbers_by_device[index] = int(
                nvml.nvmlDeviceGetMinorNumber(nvml.nvmlDeviceGetHandleByIndex(index))
            )
    return numbers_by_device


def gpu_link(nvml: Any | None) -> GpuLink | None:
    """The link between this machine's GPUs. None with fewer than two, or if NVML does not report
    it.

    It is NVLink if a ring of it joins all GPUs. Otherwise it is the slowest of their PCIe links,
    through the CPU if a pair of GPUs has no common switch.
    """
    count = nvml.nvmlDeviceGetCount() if nvml is not None else 0
    if nvml is None or count < 2:
        return None
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        nvlink = min(_nvlinks(nvml, handle) for handle in handles)
        if nvlink > 0 and _in_a_ring(nvml, handles):
            return GpuLink(nvlink, "nvlink")
        rate = min(_pcie(nvml, handle) for handle in handles)
        # PIX and PXB of `nvidia-smi topo -m` are levels up to MULTIPLE; PHB, NODE and SYS are
        # beyond.
        behind = all(
            nvml.nvmlDeviceGetTopologyCommonAncestor(handle, other) <= nvml.NVML_TOPOLOGY_MULTIPLE
            for i, handle in enumerate(handles)
            for other in handles[:i]
        )
    except (AttributeError, nvml.NVMLError):  # an older one has no such function
        return None
    return GpuLink(rate, "pcie" if behind else "host")


def _nvlinks(nvml: Any, handle: Any) -> float:
    """Bytes a second, in each direction, of all active NVLinks of a GPU."""
    up = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        with contextlib.suppress(nvml.NVMLError):  # it has fewer, or none
            up += int(nvml.nvmlDeviceGetNvLinkState(handle, link) == nvml.NVML_FEATURE_ENABLED)
    if not up:
        return 0.0
    field = nvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON
    with contextlib.suppress(nvml.NVMLError, AttributeError, IndexError):  # an old driver
        [answer] = nvml.nvmlDeviceGetFieldValues(handle, [field])
        if answer.nvmlReturn == nvml.NVML_SUCCESS and answer.value.uiVal > 0:
            return up * float(answer.value.uiVal) * 1e6
    return up * _NVLINK


def _in_a_ring(nvml: Any, handles: Sequence[Any]) -> bool:
    """Whether NVLinks, or their switches, form a ring through all GPUs."""
    count, index = len(handles), nvml.NVML_P2P_CAPS_INDEX_NVLINK
    joined = [
        [
            i != j and nvml.nvmlDeviceGetP2PStatus(handle, other, index) == 0
            for j, other in enumerate(handles)
        ]
        for i, handle in enumerate(handles)
    ]

    def goes_on(way: list[int]) -> bool:
        if len(way) == count:
            return joined[way[-1]][0]
        return any(goes_on([*way, n]) for n in range(count) if n not in way and joined[way[-1]][n])

    return goes_on([0])


def _pcie(nvml: Any, handle: Any) -> float:
    """Bytes a second, in each direction, of a GPU's PCIe link in its fastest state. An idle link is
    slowed down.
    """
    generation, lanes = (
        nvml.nvmlDeviceGetMaxPcieLinkGeneration(handle),
        nvml.nvmlDeviceGetMaxPcieLinkWidth(handle),
    )
    of_lane = 0.25e9 * generation if generation < 3 else 0.985e9 * 2.0 ** (generation - 3)
    return float(lanes * of_lane)


@dataclass(slots=True)
class _State:
    """The readings of one GPU in one round; None if it gives none (MIG, an old driver). `taken` is
    memory in use or reserved by the driver.
    """

    busy: float | None
    memory: float | None
    taken: float | None
    memory_by_pid: Mapping[int, float]
    busy_by_pid: Mapping[int, float]


class _Division:
    """The division of a GPU's time among its processes.

    The processes take turns. NVML measures windows of a fifth of a second, and reports for each
    process the latest window in which it ran. With one reading a second, two alternating processes
    would both count as busy all the time. So a thread reads more often, and counts for each process
    the windows that were the newest.
    """

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        self._since = 0
        self._lock = threading.Lock()
        self._windows = 0
        self._busy: dict[int, float] = {}
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="headgate-gpu", daemon=True).start()

    def take(self) -> dict[int, float]:
        """The fraction of the time since the last call in which kernels of each process ran."""
        with self._lock:
            busy, windows = self._busy, self._windows
            self._busy, self._windows = {}, 0
        return {pid: total / windows for pid, total in busy.items()} if windows else {}

    def close(self) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            # NVML also returns an error if nothing ran since then.
            samples = (
                ask(self._nvml, "nvmlDeviceGetProcessUtilization", self._handle, self._since) or ()
            )
            newest = max((sample.timeStamp for sample in samples), default=0)
            if newest <= self._since:
                continue
            with self._lock:
                self._windows += 1
                for sample in samples:
                    if newest - sample.timeStamp < _WINDOW_MICROSECONDS:
                        self._busy[sample.pid] = self._busy.get(sample.pid, 0.0) + min(
                            1.0, sample.smUtil / 100
                        )
            self._since = newest


class GpuSampler(Sampler):
    """Reads `gpu_busy` and `gpu_memory_bytes`.

    For this machine: over all GPUs, or those in its target. For a task, and for a place on this
    machine: NVML's accounts of its processes, over the GPUs on which they hold memory; nothing
    without any. A process that is alone on a GPU gets all of the GPU's busy time. Without NVML or a
    GPU there are no readings, which is no error.

    Args:
        nvml: The `pynvml` module, initialised; None: look for it at the first reading.
    """

    name = "gpu"

    def __init__(self, nvml: Any | None = None) -> None:
        self._nvml = nvml
        self._looked = nvml is not None
        self._handles: dict[int, Any] = {}
        self._divisions: dict[int, _Division] = {}
        self._since: dict[int, int] = {}
        self.used: Mapping[int, float] = {}
        """Bytes in use on each GPU at the last reading, including the driver's reserve,"""
        self.held: Mapping[str, Mapping[int, float]] = {}
        """and of these the bytes of each task, by its target's id, as far as NVML reports."""
        self.others: Mapping[int, Mapping[int, float]] = {}
        """The fraction of the time in which kernels of processes in no target ran, by GPU and
        process."""
        self.single: frozenset[int] = frozenset()
        """GPUs on which only one process may compute at a time, by their compute mode,"""
        self.closed: frozenset[int] = frozenset()
        """and those on which no further process may start to compute."""

    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        del now  # NVML averages by itself
        self.used, self.held, self.others = {}, {}, {}
        self.single = self.closed = frozenset()
        if not self._looked:
            self._nvml, self._looked = open_nvml(), True
        if self._nvml is None:
            return {}
        if not targets:
            self._divide(())
            return {}
        if not self._handles:
            self._handles = handles(self._nvml)
        states = {
            index: self._state(self._nvml, index, handle) for index, handle in self._handles.items()
        }
        if any(target.box is not None or target.place is not None for target in targets):
            self._divide([index for index, state in states.items() if len(state.memory_by_pid) > 1])
        self._read_modes(self._nvml, states)
        self.used = {
            index: state.taken for index, state in states.items() if state.taken is not None
        }
        self.held = {
            target.id: _by_gpu(states, frozenset(target.box.pids()))
            for target in targets
            if target.box is not None
        }
        own = {pid for target in targets if target.box is not None for pid in target.box.pids()}
        self.others = {
            index: {pid: part for pid, part in state.busy_by_pid.items() if pid not in own}
            for index, state in states.items()
        }
        readings: dict[str, Mapping[Column, float]] = {}
        for target in targets:
            box = target.box if target.place is None else PlacedNode(target.place)
            seen = [
                state
                for index, state in states.items()
                if target.gpus is None or index in target.gpus
            ]
            values = _of_node(seen) if box is None else _of_task(seen, frozenset(box.pids()))
            if values:
                readings[target.id] = values
        return readings

    def _read_modes(self, nvml: Any, states: Mapping[int, _State]) -> None:
        """Read the compute modes of the GPUs. Under the MPS server they have several processes."""
        single, closed = set(), set()
        for index, handle in self._handles.items():
            mode, pids = ask(nvml, "nvmlDeviceGetComputeMode", handle), states[index].memory_by_pid
            if mode == _PROHIBITED:
                closed.add(index)
            elif mode in _SINGLE and not any(_is_mps(pid) for pid in pids):
                single.add(index)
                closed.update([index] if pids else ())
        self.single, self.closed = frozenset(single), frozenset(closed)

    def _divide(self, shared: Collection[int]) -> None:
        """Measure the division of these GPUs, and of no others."""
        for index in [index for index in self._divisions if index not in shared]:
            self._divisions.pop(index).close()
        for index in shared:
            if index not in self._divisions:
                self._divisions[index] = _Division(self._nvml, self._handles[index])

    def _state(self, nvml: Any, index: int, handle: Any) -> _State:
        busy, memory = self._busy(nvml, index, handle), _memory(nvml, handle)
        holders = {
            process.pid: float(process.usedGpuMemory or 0)
            for process in ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle) or ()
        }
        if index in self._divisions:
            by_pid = self._divisions[index].take()
        else:
            by_pid = dict.fromkeys(holders, busy or 0.0) if len(holders) == 1 else {}
        if memory is None:
            return _State(busy, None, None, holders, by_pid)
        used = float(memory.used)
        return _State(busy, used, used + float(getattr(memory, "reserved", 0)), holders, by_pid)

    def _busy(self, nvml: Any, index: int, handle: Any) -> float | None:
        """Fraction of the time since the last reading in which a kernel ran; for an old GPU the
        latest fifth of a second.
        """
        since = self._since.get(index)
        answer = ask(
            nvml, "nvmlDeviceGetSamples", handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, since or 0
        )
        samples = answer[1] if answer is not None else ()
        if samples:
            self._since[index] = max(sample.timeStamp for sample in samples)
        if samples and since is not None:  # the first answer holds what was before
            return float(sum(sample.sampleValue.uiVal for sample in samples)) / len(samples) / 100
        rates = ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
        return float(rates.gpu) / 100 if rates is not None else None


def _is_mps(pid: int) -> bool:
    return content(Path(f"/proc/{pid}/comm")).startswith("nvidia-cuda-mps")


def _memory(nvml: Any, handle: Any) -> Any | None:
    """Total and used bytes of a GPU. The first version of the call counts the driver's reserve as
    used.
    """
    version = getattr(nvml, "nvmlMemory_v2", None)
    memory_info = (
        ask(nvml, "nvmlDeviceGetMemoryInfo", handle, version) if version is not None else None
    )
    return memory_info if memory_info is not None else ask(nvml, "nvmlDeviceGetMemoryInfo", handle)


def _by_gpu(states: Mapping[int, _State], pids: frozenset[int]) -> dict[int, float]:
    """Bytes that processes hold on each GPU, without GPUs on which they hold none."""
    held = {
        index: sum(size for pid, size in state.memory_by_pid.items() if pid in pids)
        for index, state in states.items()
    }
    return {index: size for index, size in held.items() if size}


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
    divided = [
        state for state in used if state.busy is not None and (state.busy_by_pid or not state.busy)
    ]
    if divided:
        busy = [
            sum(part for pid, part in state.busy_by_pid.items() if pid in pids) for state in divided
        ]
        readings["gpu_busy"] = min(1.0, sum(busy) / len(busy))
    return readings
