"""Memory that a plan's tasks take, from what a worker was measured to take."""

from __future__ import annotations

from dataclasses import dataclass

from headgate.cluster import Node
from headgate.profiles import Profile

_PROCESS = 300 << 20  # a framework without a model
_SERVER = 150 << 20  # a server without a model


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by what they grow with.

    Args:
        worker: A worker, whatever its batch.
        sparse: Sparse tables and their gradients; under parameter servers the servers hold them.
        sample: Each sample of a worker's batch.
        server: A server, whatever it holds.
        served: Parameters, gradients and optimizer state, divided among servers.
        gpu: A worker on its GPU, whatever its batch; None: not measured.
        gpu_sample: Each sample there.
        sharded: Parameters, gradients and optimizer state, divided among workers that keep a part of them each.
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
        """Bytes of each of so many workers; `served`: under parameter servers."""
        return self.worker + self.sample * batch + (0.0 if served else self.sparse) + self.sharded / workers

    def of_server(self, servers: int) -> float:
        """Bytes of each of so many servers."""
        return self.server + self.served / max(servers, 1)


def memory(profile: Profile) -> Memory:
    """What a job takes. Parameters, gradients and optimizer state are counted; what was measured beyond them, in a
    step of the script's own batch, is taken to grow with the batch."""
    dense, sparse = float(profile.dense_bytes or 0), float(profile.sparse_bytes or 0)
    state = float(profile.optimizer_state_bytes or 0)
    model = 2 * dense + state
    batch = profile.batch or max((step.batch for step in profile.step_times), default=1)
    peak = profile.memory_peak_bytes
    measured = float(peak) if peak is not None else _PROCESS + model + sparse
    fixed = min(_PROCESS + model, max(measured - sparse, 0.0))
    on_gpu = profile.gpu_memory_peak_bytes
    gpu = min(model + sparse, float(on_gpu)) if on_gpu is not None else None
    sharded = min(model, fixed) if profile.sharded else 0.0
    gpu_sharded = min(model, gpu or 0.0) if profile.sharded else 0.0
    return Memory(
        worker=fixed - sharded,
        sparse=min(sparse, measured),
        sample=max(measured - fixed - sparse, 0.0) / batch,
        server=float(_SERVER),
        served=model + sparse,
        gpu=gpu - gpu_sharded if gpu is not None else None,
        gpu_sample=(float(on_gpu) - gpu) / batch if on_gpu is not None and gpu is not None else 0.0,
        sharded=sharded,
        gpu_sharded=gpu_sharded,
    )


def most_gpu_bytes(node: Node) -> float:
    """Memory of the smallest GPU of a node."""
    return float(min((gpu.memory_bytes for gpu in node.gpus), default=0))
