"""What a share of a whole job is for one of its tasks, and what jobs on one GPU have of its time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from headgate.controller.records import JobRecord, TaskRecord
from headgate.events import JobId
from headgate.shares import NOTHING, WEIGHT_DEFAULT, Share

_PINNED_WEIGHT = 10_000.0
"""Of a pinned job, which a cap holds to its slice: more than any other's, so that it gets as much."""
_LEFT_TO_OTHERS = 0.05
"""Of a GPU, whatever is pinned to it."""


def part(share: Share, job: JobRecord, task: TaskRecord, beside: int, cores: float) -> Share:
    """What a job is granted on one of its tasks, never above what the user allows: caps are divided among all tasks,
    the weight among the `beside` that are on one node. A job that is pinned has its slice of the node's `cores`."""
    most = job.allowed(task).cpu_cap_cores
    if (slice := job.spec.slice) is not None:
        own = slice * cores / beside
        own = min(own, most) if isinstance(most, int | float) else own
        return Share(cpu_weight=_PINNED_WEIGHT / beside, cpu_cap_cores=own)
    if share is NOTHING:
        return NOTHING
    cap, weight = share.cpu_cap_cores, share.cpu_weight
    if isinstance(cap, int | float):
        cap = cap / len(job.tasks)
        cap = min(cap, most) if isinstance(most, int | float) else cap
    elif cap is not None and most is not None:
        cap = most
    return Share(
        cpu_weight=max(weight / beside, 1.0) if weight is not None else None,
        cpu_cap_cores=cap,
        memory_bytes=share.memory_bytes if job.spec.limits.memory_bytes is None else None,
        disk_bytes_per_second=share.disk_bytes_per_second,
        gpu_fraction=share.gpu_fraction,
    )


def on_gpu(jobs: Collection[JobRecord]) -> Mapping[JobId, float]:
    """The fraction of a GPU's time that each of the jobs on it has: those that are pinned their slice, of the rest each
    by its weight. Not named are those of which the policy weighs nothing, or grants GPUs itself."""
    pinned = {job.id: slice for job in jobs if (slice := job.spec.slice) is not None}
    free = [job for job in jobs if job.id not in pinned and job.granted.gpu_fraction is None]
    usual = WEIGHT_DEFAULT if pinned else None
    weights = {job.id: weight for job in free if (weight := job.granted.cpu_weight or usual) is not None}
    left, total = max(1.0 - sum(pinned.values()), _LEFT_TO_OTHERS), sum(weights.values())
    return pinned | {id: left * weight / total for id, weight in weights.items()}
