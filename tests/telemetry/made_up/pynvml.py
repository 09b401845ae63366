"""NVIDIA's management library as a machine with four GPUs has it, of which the last is divided in two (MIG)."""

from __future__ import annotations

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
    return SimpleNamespace(total=80 << 30, used=handle << 30)


def nvmlDeviceGetUtilizationRates(handle: int) -> SimpleNamespace:  # noqa: N802
    if handle >= 10:
        raise NVMLError("not supported")
    return SimpleNamespace(gpu=BUSY[handle])


def nvmlDeviceGetComputeRunningProcesses(handle: int) -> list[SimpleNamespace]:  # noqa: N802
    return []


def nvmlDeviceGetProcessUtilization(handle: int, since: int) -> list[SimpleNamespace]:  # noqa: N802
    raise NVMLError("not found")
