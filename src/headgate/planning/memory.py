"""Predict the memory of a plan's tasks from a measured worker."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.model.cluster import Node
from headgate.model.limits import Limits
from headgate.model.profiles import Profile
from headgate.model.reasons import Facts, Refusal, RefusalKind
from headgate.model.units import say_bytes

PROCESS = 300 << 20  # a framework without a model
_SERVER = 150 << 20  # a server without a model
# the process that hosts torchrun's store, which imports torch, and its parent
STORE = 170 << 20
_CONTEXT = 768 << 20
"""GPU memory of CUDA, cuBLAS and their kernels besides the framework's allocations: 740 MiB on an
H100.
"""


@dataclass(frozen=True, slots=True)
class GpuNeed:
    """Expected memory of a worker on each of its GPUs.

    Args:
        memory_bytes: The memory; None: unknown.
        known: Origin of the figure, in words.
    """

    memory_bytes: int | None
    known: str

    def in_words(self) -> str:
        """The sentence of `run --dry-run`."""
        if self.memory_bytes is None:
            return f"not known: {self.known}"
        return f"{say_bytes(self.memory_bytes)} on each of its GPUs, {self.known}"


def gpu_need(limits: Limits, profile: Profile | None, before: int | None) -> GpuNeed:
    """The expected memory of a worker on each of its GPUs.

    Args:
        limits: Limits of the job.
        profile: Profile of the job; None: it has none.
        before: Peak memory of a worker in earlier runs; None: unknown.
    """
    if limits.gpu_memory_bytes is not None:
        return GpuNeed(limits.gpu_memory_bytes, "as its limits say")
    on_gpu = profile.gpu_memory_peak_bytes if profile is not None else None
    profiled = on_gpu + _CONTEXT if on_gpu else 0
    if profiled >= (before or 0) and profiled:
        return GpuNeed(profiled, "as its profile says")
    if before:
        return GpuNeed(before, "as it held before")
    return GpuNeed(
        None,
        "it gets a GPU that no other job has, or one where it is seen what they hold and what they "
        "leave; `limits: {gpu_memory: …}` or --gpu-memory says it",
    )


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, by what they grow with.

    Args:
        worker: A worker, regardless of its batch.
        sparse: Sparse tables and their gradients; with parameter servers the servers hold them.
        sample: Each sample of a worker's batch.
        server: A server, regardless of its part.
        served: Parameters, gradients and optimizer state, divided among servers.
        gpu: A worker on its GPU, regardless of its batch; None: not measured.
        gpu_sample: Each sample on the GPU.
        sharded: Parameters, gradients and optimizer state, sharded among workers.
        gpu_sharded: The same on their GPUs.
    """

    worker: float
    sparse: float
    sample: float
    server: float
    served: float
    gpu: float | None
    gpu_sample: float
    sharded: float = 0.0
    gpu_sharded: float = 0.0

    def of_worker(self, batch: float, served: bool, workers: int = 1) -> float:
        """Bytes of each worker. `served`: with parameter servers."""
        return (
            self.worker
            + self.sample * batch
            + (0.0 if served else self.sparse)
            + self.sharded / workers
        )

    def of_server(self, servers: int) -> float:
        """Bytes of each server."""
        return self.server + self.served / max(servers, 1)


def memory(profile: Profile) -> Memory:
    """The memory of a job by cause. Parameters, gradients and optimizer state are computed. The
    rest of the measurement is assumed to grow with the batch.
    """
    dense, sparse = float(profile.dense_bytes or 0), float(profile.sparse_bytes or 0)
    state = float(profile.optimizer_state_bytes or 0)
    model = 2 * dense + state
    batch = profile.batch or max((step.batch for step in profile.step_times), default=1)
    peak = profile.memory_peak_bytes
    measured = float(peak) if peak is not None else PROCESS + model + sparse
    fixed = min(PROCESS + model, max(measured - sparse, 0.0))
    on_gpu = profile.gpu_memory_peak_bytes
    gpu = _CONTEXT + min(model + sparse, float(on_gpu)) if on_gpu is not None else None
    sharded = min(model, fixed) if profile.sharded else 0.0
    gpu_sharded = min(model, gpu or 0.0) if profile.sharded else 0.0
    return Memory(
        worker=fixed - sharded,
        sparse=min(sparse, measured),
        sample=max(measured - fixed - sparse, 0.0) / batch,
        server=float(_SERVER),
        served=model + sparse,
        gpu=gpu - gpu_sharded if gpu is not None else None,
        gpu_sample=(_CONTEXT + float(on_gpu) - gpu) / batch
        if on_gpu is not None and gpu is not None
        else 0.0,
        sharded=sharded,
        gpu_sharded=gpu_sharded,
    )


def most_gpu_bytes(node: Node) -> float:
    """Memory of the smallest GPU of a node."""
    return float(min((gpu.memory_bytes for gpu in node.gpus), default=0))


def misfit(node: Node, limits: Limits, name: str = "") -> Refusal | None:
    """Why a task of a job does not fit on a node; None: it fits.

    Args:
        name: Name of the node in the message; empty: its own.
    """
    name, gpus = name or node.name, len(node.gpus)
    if limits.gpus is not None and limits.gpus > gpus:
        facts: Facts = {"node": name, "has": gpus, "asked": limits.gpus}
        return Refusal(RefusalKind.TOO_FEW_GPUS, facts)
    if limits.exclusive and gpus < (limits.gpus or 1):
        return Refusal(RefusalKind.TOO_FEW_GPUS, {"node": name, "has": gpus})
    if limits.memory_bytes is not None and limits.memory_bytes > node.memory_bytes:
        asked, has = limits.memory_bytes, node.memory_bytes
        facts = {"node": name, "has_bytes": has, "asked_bytes": asked}
        return Refusal(RefusalKind.TOO_LITTLE_MEMORY, facts)
    if (needs := limits.gpu_memory_bytes) is not None:
        sizes = sorted((gpu.memory_bytes for gpu in node.gpus), reverse=True)
        count = limits.gpus or 1
        facts = {"node": name, "gpus": gpus, "count": count, "asked_bytes": needs}
        if gpus < count:
            return Refusal(RefusalKind.TOO_LITTLE_GPU_MEMORY, facts)
        if needs > sizes[count - 1]:
            facts = {**facts, "has_bytes": sizes[count - 1]}
            return Refusal(RefusalKind.TOO_LITTLE_GPU_MEMORY, facts)
    return None
