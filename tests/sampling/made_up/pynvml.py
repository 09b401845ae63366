"""NVIDIA's management library as a machine with four GPUs has it, of which the last is divided in
two (MIG).

Processes hold memory of them as files in the folder `MADE_UP_GPU_MEMORY` say: named `GPU-PID`, with
a number of bytes.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

BUSY = (90, 80, 10, 0)
NVML_GPU_UTILIZATION_SAMPLES = 1


class NVMLError(Exception):
    pass


def nvmlInit() -> None:  # noqa: N802
    pass


def nvmlDeviceGetCount() -> int:  # noqa: N802
    return 4


def nvmlDeviceGetHandleByIndex(index: int) -> int:  # noqa: N802
    return index


def nvmlDeviceGetName(handle: int) -> str:  # noqa: N802
    return f"H{handle}"


def nvmlDeviceGetUUID(handle: int) -> str:  # noqa: N802
    return f"GPU-{handle}{handle}aa-{handle}" if handle < 10 else f"MIG-{handle}bb"


def nvmlDeviceGetMinorNumber(handle: int) -> int:  # noqa: N802
    return handle


def nvmlDeviceGetMigMode(handle: int) -> tuple[int, int]:  # noqa: N802
    if handle == 0:
        raise NVMLError("not supported")
    return (1, 1) if handle == 3 else (0, 0)


def nvmlDeviceGetMaxMigDeviceCount(handle: int) -> int:  # noqa: N802
    return 7 if handle == 3 else 0


def nvmlDeviceGetMigDeviceHandleByIndex(handle: int, index: int) -> int:  # noqa: N802
    if index > 1:
        raise NVMLError("not found")
    return 10 * handle + index


def nvmlDeviceGetMemoryInfo(handle: int) -> SimpleNamespace:  # noqa: N802
    held = sum(process.usedGpuMemory for process in nvmlDeviceGetComputeRunningProcesses(handle))
    return SimpleNamespace(total=80 << 30, used=(handle << 30) + held)


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:  # noqa: N802
    if handle >= 10:
        raise NVMLError("not supported")
    return SimpleNamespace(gpu=BUSY[handle])


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[SimpleNamespace]:  # noqa: N802
    folder = os.environ.get("MADE_UP_GPU_MEMORY")
    found = []
    for file in Path(folder).glob(f"{handle}-*") if folder else ():
        pid = int(file.name.partition("-")[2])
        if Path(f"/proc/{pid}").exists() and (text := file.read_text()):
            found.append(SimpleNamespace(pid=pid, usedGpuMemory=int(text)))
    return found


def nvmlDeviceGetProcessUtilization(handle: int, since: int) -> list[SimpleNamespace]:  # noqa: N802
    raise NVMLError("not found")
