"""Tasks that run out of GPU memory: their reasons, and another try on a different GPU."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headgate.controller.allocation import Allocator
from headgate.controller.faults import among_workers
from headgate.controller.gpu_memory import GpuRequest
from headgate.controller.queueing import Queue
from headgate.controller.records import JobRecord
from headgate.controller.task_record import TaskRecord
from headgate.model.endings import Exit
from headgate.model.reasons import CureKind, Facts, Reason, ReasonKind
from headgate.model.units import size as read_size

# fraction of a task's GPU memory; others that held less did not cause the shortage
_LITTLE_OF_IT = 0.1
_LITTLE_BYTES = 1 << 30  # held by a driver and a display
# wording of PyTorch and JAX
_ASKED = re.compile(r"allocat(?:e|ing) (\d{1,9}(?:\.\d{1,9})? ?(?:[KMGT]i?)?B)\b")
_MORE = 1.25
"""If the failed request is unknown, another GPU needs this many times what the task held."""


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """A GPU of the same node with room."""

    gpu: int
    free_bytes: int


def explain(
    job: JobRecord, task: TaskRecord, exit: Exit, allocator: Allocator, queue: Queue | None
) -> Reason:
    """Explain how a task ran out of GPU memory: what it held, what others held, and what to do.

    If another GPU has room, the job is tried there, once.
    """
    node, tasks_on_node = (
        allocator.nodes.get(task.node),
        allocator.jobs.on.get(task.node, {}).values(),
    )
    has = {gpu.index: gpu.memory_bytes for gpu in (node.gpus if node is not None else ())}
    gpus = job.gpus_of(task) or tuple(has)
    size = min((has.get(gpu, 0) for gpu in gpus), default=0)
    besides = (
        sum(queue.gpu_memory.besides(task.node, gpu) for gpu in gpus) if queue is not None else 0.0
    )
    asked = _ASKED.search(exit.reason or "")  # the last line that the script printed
    held = task.most_gpu_bytes / _gpu_count(task)
    needed = held + read_size(asked[1]) if held and asked is not None else 0.0
    elsewhere = _roomiest(job, task, gpus, needed or _MORE * held, queue)
    others, is_crowd = _others(job, task, gpus, tasks_on_node, besides)
    kept = job.gpu_memory_bytes
    if elsewhere is not None:
        job.tries_elsewhere = job.moved_gpu = True
        job.needs_gpu_bytes = int(max(needed or _MORE * held, job.needs_gpu_bytes or 0)) or None
        allowed = job.gpus if job.gpus is not None else tuple(has)
        job.gpus = tuple(gpu for gpu in allowed if gpu not in gpus)
        cures: list[Facts] = [
            {
                "kind": CureKind.OTHER_GPU,
                "node": task.node,
                "gpu": elsewhere.gpu,
                "free_bytes": elsewhere.free_bytes,
            }
        ]
    else:
        cures = _cures(job, held, needed, is_crowd and needed <= (size or needed))
    return Reason.of(
        ReasonKind.OUT_OF_GPU_MEMORY,
        exit=exit.because(),
        node=task.node,
        gpus=gpus,
        gpu_count=_gpu_count(task),
        held_bytes=held or None,
        kept_bytes=kept or None,
        others=others,
        cures=cures,
    )


def _roomiest(
    job: JobRecord, task: TaskRecord, gpus: Sequence[int], needs: float, queue: Queue | None
) -> _Elsewhere | None:
    """The GPU for another try; None: there is none, or the job was already tried again."""
    if queue is None or job.moved_gpu or job.spec.roles or job.planned().tasks > 1 or not gpus:
        return None
    roomiest = queue.gpu_memory.roomiest(GpuRequest(int(needs), 1, job.gpus), task.node, gpus)
    return _Elsewhere(*roomiest) if roomiest is not None else None


def _others(
    job: JobRecord,
    task: TaskRecord,
    gpus: Sequence[int],
    others_on_node: Iterable[tuple[JobRecord, TaskRecord]],
    besides: float,
) -> tuple[list[Facts], bool]:
    """The other holders of memory on these GPUs, and whether they caused the shortage.

    Args:
        gpus: GPUs that the task computed on, or may use.
        others_on_node: Other tasks on its node, each with its job.
        besides: Bytes on these GPUs used by programs without a reservation.
    """
    others: dict[str | None, float] = {}
    for other, other_task in others_on_node:
        if other is not job and not set(gpus).isdisjoint(other.gpus_of(other_task) or gpus):
            used = other_task.used.gpu_memory_bytes if other_task.used is not None else 0.0
            others[other.spec.name] = others.get(other.spec.name, 0.0) + (
                used or other.gpu_memory_bytes or 0
            )
            besides -= _unkept(other, other_task, used)
    besides -= _unkept(job, task, task.most_gpu_bytes)
    if besides > _LITTLE_BYTES:
        others[None] = besides  # programs outside Headgate
    had: list[Facts] = [
        {"job": name, "bytes": size} if name is not None else {"bytes": size}
        for name, size in others.items()
        if size
    ]
    is_crowd = bool(had) and sum(others.values()) > _LITTLE_OF_IT * task.most_gpu_bytes
    return had, is_crowd


def _cures(job: JobRecord, held: float, needed: float, fits_alone: bool) -> list[Facts]:
    """What the user may do; `fits_alone`: the GPU would have room without the others."""
    kept = job.gpu_memory_bytes or 0
    if fits_alone:
        cure: dict[str, object] = {"kind": CureKind.STATE_GPU_MEMORY}
        if needed > kept:
            cure["least_bytes"] = needed
        elif kept:
            cure["more_than_bytes"] = max(held, kept)
        return [cure]
    cures: list[Facts] = [{"kind": CureKind.LESS_GPU_MEMORY}]
    return cures if job.spec.contract is None else [*cures, {"kind": among_workers(job)}]


def _gpu_count(task: TaskRecord) -> int:
    return max(len(task.computes_on), 1)


def _unkept(job: JobRecord, task: TaskRecord, used: float) -> float:
    """Unreserved bytes among a task's GPU memory."""
    return max(used - (job.gpu_memory_bytes or 0) * _gpu_count(task), 0.0) if job.slots else used
