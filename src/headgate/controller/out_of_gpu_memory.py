"""Tasks that run out of the memory of a GPU: what is said of it, and whether they are tried on
another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from headgate.controller.allocation import Allocator
from headgate.controller.faults import among_workers
from headgate.controller.gpu_memory import GpuRequest
from headgate.controller.queueing import Queue
from headgate.controller.records import JobRecord, TaskRecord
from headgate.model.events import NEXT, Exit
from headgate.model.units import say_bytes
from headgate.model.units import size as read_size

_LITTLE_OF_IT = 0.1  # of what a task held of a GPU: others that had less are not why it ran out
_LITTLE_BYTES = 1 << 30  # of a GPU: a driver and a display have some
# PyTorch's and JAX's words
_ASKED = re.compile(r"allocat(?:e|ing) (\d{1,9}(?:\.\d{1,9})? ?(?:[KMGT]i?)?B)\b")
_MORE = 1.25
"""Times what it held: so much is looked for on another GPU where it is not told what it asked
for.
"""


@dataclass(frozen=True, slots=True)
class _Elsewhere:
    """A GPU of the same node with room."""

    gpu: int
    free_bytes: int


def told(
    job: JobRecord, task: TaskRecord, exit: Exit, allocator: Allocator, queue: Queue | None
) -> Exit:
    """How a task ended that ran out of the memory of a GPU: with what it held, who else had how
    much, and what to do. Where another GPU has room, the job is tried there, once.
    """
    node, there = allocator.nodes.get(task.node), allocator.jobs.on.get(task.node, {}).values()
    has = {gpu.index: gpu.memory_bytes for gpu in (node.gpus if node is not None else ())}
    gpus = job.gpus_of(task) or tuple(has)
    size = min((has.get(gpu, 0) for gpu in gpus), default=0)
    besides = (
        sum(queue.gpu_memory.besides(task.node, gpu) for gpu in gpus) if queue is not None else 0.0
    )
    words = exit.in_words()
    asked = _ASKED.search(words)
    held = task.most_gpu_bytes / _gpu_count(task)
    needed = held + read_size(asked[1]) if held and asked is not None else 0.0
    elsewhere = _roomiest(job, task, gpus, needed or _MORE * held, queue)
    (who, is_crowd), need = _who(job, task, gpus, there, besides), _needed(job, task, held)
    if elsewhere is not None:
        job.tries_elsewhere = job.moved_gpu = True
        job.needs_gpu_bytes = int(max(needed or _MORE * held, job.needs_gpu_bytes or 0)) or None
        allowed = job.gpus if job.gpus is not None else tuple(has)
        job.gpus = tuple(gpu for gpu in allowed if gpu not in gpus)
        free = say_bytes(elsewhere.free_bytes)
        cure = (
            f"GPU {elsewhere.gpu} of node {task.node} has {free} free, and it is tried there once"
        )
    else:
        cure = _cure(job, held, needed, is_crowd and needed <= (size or needed))
    return replace(exit, reason=f"{words.rstrip('.')}. {need}. {who}{NEXT}{cure}")


def _roomiest(
    job: JobRecord, task: TaskRecord, gpus: Sequence[int], needs: float, queue: Queue | None
) -> _Elsewhere | None:
    """The GPU on which a job is to be tried; None: there is none, or it was tried once already."""
    if queue is None or job.moved_gpu or job.spec.roles or job.planned().tasks > 1 or not gpus:
        return None
    roomiest = queue.gpu_memory.roomiest(GpuRequest(int(needs), 1, job.gpus), task.node, gpus)
    return _Elsewhere(*roomiest) if roomiest is not None else None


def _needed(job: JobRecord, task: TaskRecord, held: float) -> str:
    """What a task held, and what it was taken to need."""
    kept, count = job.gpu_memory_bytes, _gpu_count(task)
    need = f"its need was {'not known' if not kept else f'taken to be {say_bytes(kept)}'}"
    each = f" on each of {count} GPUs" if count > 1 else ""
    return f"It held {say_bytes(held)}{each}, and {need}" if held else f"I{need[1:]}"


def _who(
    job: JobRecord,
    task: TaskRecord,
    gpus: Sequence[int],
    there: Iterable[tuple[JobRecord, TaskRecord]],
    besides: float,
) -> tuple[str, bool]:
    """Who else had memory of the GPUs, and whether that is why it ran out.

    Args:
        gpus: Those that it computed on, or may have.
        there: The tasks on its node, and the job of each.
        besides: Bytes of these GPUs in use by programs for which none are kept.
    """
    others: dict[str, float] = {}
    for other, its in there:
        if other is not job and not set(gpus).isdisjoint(other.gpus_of(its) or gpus):
            used = its.used.gpu_memory_bytes if its.used is not None else 0.0
            others[other.spec.name] = others.get(other.spec.name, 0.0) + (
                used or other.gpu_memory_bytes or 0
            )
            besides -= _unkept(other, its, used)
    besides -= _unkept(job, task, task.most_gpu_bytes)
    if besides > _LITTLE_BYTES:
        others["programs outside Headgate"] = besides
    where = (
        f"GPU {', '.join(map(str, gpus))} of node {task.node}"
        if gpus
        else f"the GPUs of node {task.node}"
    )
    names = [f"{name} had {say_bytes(size)}" for name, size in others.items() if size]
    is_crowd = bool(names) and sum(others.values()) > _LITTLE_OF_IT * task.most_gpu_bytes
    return f"On {where}, {' and '.join(names) or 'no other job had memory'}", is_crowd


def _cure(job: JobRecord, held: float, needed: float, fits_alone: bool) -> str:
    """What its user may do; `fits_alone`: the GPU would have enough without the others."""
    kept = job.gpu_memory_bytes
    if fits_alone:
        what = f"state more than {say_bytes(max(held, kept))}" if kept else "state what it needs"
        what = f"state at least {say_bytes(needed)}" if needed > (kept or 0) else what
        return (
            f"{what} (`limits: {{gpu_memory: …}}` or --gpu-memory), and it waits until that is free"
        )
    cure = "make its batch smaller, compute in bfloat16, or keep fewer activations (checkpointing)"
    return cure if job.spec.contract is None else f"{cure}; or {among_workers(job)}"


def _gpu_count(task: TaskRecord) -> int:
    return max(len(task.computes_on), 1)


def _unkept(job: JobRecord, task: TaskRecord, used: float) -> float:
    """Bytes of what a task uses of GPUs that are not kept for it."""
    return max(used - (job.gpu_memory_bytes or 0) * _gpu_count(task), 0.0) if job.slots else used
