"""Utilization and processes of each GPU of this machine, and why no GPU is found if there are
some.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from headgate.machine.files import content
from headgate.model.cluster import Gpu
from headgate.model.extras import install
from headgate.model.paths import user_name
from headgate.sampling.gpu import ask, handles

NvmlFault = Literal["package", "driver", "access"]
_DEVICES = "nvidia[0-9]*"


@dataclass(frozen=True, slots=True)
class GpuHolder:
    """A process that holds memory of a GPU.

    Args:
        name: Name of its program; empty if it cannot be seen, as from within a container.
        user: Name or number of its user; empty if it cannot be seen.
        memory_bytes: Memory that it holds; None if NVML does not report it.
        task: Its Headgate task; empty: none, or its environment cannot be read.
    """

    pid: int
    name: str
    user: str
    memory_bytes: int | None
    task: str = ""


@dataclass(frozen=True, slots=True)
class GpuStatus:
    """The present state of a GPU, or of a part of one.

    Args:
        busy: 0 to 1; None without a reading.
        used_bytes: Bytes in use by all processes; None without a reading.
    """

    index: int
    name: str
    memory_bytes: int
    busy: float | None
    used_bytes: int | None
    holders: tuple[GpuHolder, ...]

    @property
    def untold_bytes(self) -> int:
        """Bytes in use beyond those reported for its processes."""
        return max(
            (self.used_bytes or 0) - sum(holder.memory_bytes or 0 for holder in self.holders), 0
        )


@dataclass(frozen=True, slots=True)
class MissingNvml:
    """Why no GPU is found.

    Args:
        kind: The Python package is missing, the driver's library is missing or broken, or no GPU
            may be used.
        devices: The files in /dev that show that there are GPUs.
        detail: The exception's message.
    """

    kind: NvmlFault
    devices: tuple[str, ...]
    detail: str

    def in_words(self) -> str:
        """What is missing, and the remedy."""
        devices_text = (
            f"{', '.join(self.devices)} {'is' if len(self.devices) == 1 else 'are'} there, "
            "but Headgate sees no GPU"
        )
        match self.kind:
            case "package":
                cure = (
                    "the package nvidia-ml-py is missing where Headgate is installed: "
                    f"{install('gpu')}"
                )
            case "driver":
                cure = (
                    f"NVIDIA's management library (libnvidia-ml) does not work: {self.detail}; "
                    "install the driver's, or give the container the driver capability `utility`"
                )
            case "access":
                cure = "its driver tells of none that may be used here: see what `nvidia-smi` says"
        return f"{devices_text}: {cure}"


def missing_nvml(dev: Path = Path("/dev")) -> MissingNvml | None:
    """Why no GPU is found on a machine with some. None: one is found, or there is none."""
    devices = tuple(sorted(f"/dev/{path.name}" for path in dev.glob(_DEVICES)))
    if not devices:
        return None
    try:
        nvml = import_module("pynvml")
    except Exception as error:  # noqa: BLE001  # whatever a broken package raises
        return MissingNvml("package", devices, str(error))
    try:
        nvml.nvmlInit()
        count = nvml.nvmlDeviceGetCount()
    except Exception as error:  # noqa: BLE001  # as above
        return MissingNvml("driver", devices, str(error))
    return None if count else MissingNvml("access", devices, "")


def statuses(nvml: Any | None, gpus: tuple[Gpu, ...]) -> Iterator[GpuStatus]:
    """The present state of these GPUs."""
    if nvml is None:
        return
    by_index: Mapping[int, Any] = handles(nvml)
    for gpu in gpus:
        handle = by_index[gpu.index]
        rates = ask(nvml, "nvmlDeviceGetUtilizationRates", handle)
        memory = ask(nvml, "nvmlDeviceGetMemoryInfo", handle)
        processes: dict[int, Any] = {}
        for kind in ("Compute", "Graphics"):
            for process in ask(nvml, f"nvmlDeviceGet{kind}RunningProcesses", handle) or ():
                processes.setdefault(process.pid, process.usedGpuMemory)
        yield GpuStatus(
            gpu.index,
            gpu.name,
            gpu.memory_bytes,
            float(rates.gpu) / 100 if rates is not None else None,
            int(memory.used) if memory is not None else None,
            tuple(_holder(pid, held) for pid, held in sorted(processes.items())),
        )


def _holder(pid: int, held: int | None) -> GpuHolder:
    folder = Path(f"/proc/{pid}")
    name, user, task = content(folder / "comm"), "", ""
    with suppress(OSError):  # it has ended, or is not seen from here
        user = user_name(folder.stat().st_uid)
    with suppress(OSError):  # somebody else's
        variables = (folder / "environ").read_bytes().split(b"\0")
        job_names = (
            variable.partition(b"=")[2]
            for variable in variables
            if variable.startswith(b"HEADGATE_TASK=")
        )
        task = os.fsdecode(next(job_names, b""))
    return GpuHolder(pid, name, user, int(held) if held is not None else None, task)
