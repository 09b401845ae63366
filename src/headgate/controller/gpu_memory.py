"""Memory of GPUs that jobs share by turns: reservations of admitted jobs, and what is left."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from headgate.controller.shortage import Shortage, ShortageKind
from headgate.model.cluster import Node

_LITTLE = 0.02
"""Fraction of a GPU's memory below which unreserved use is not reported."""
_LEAST_FREE = 1 / 4
"""Fraction of a GPU's memory that has to be free for a job of unknown need."""
_STEPS = 16
"""GPUs with equally many tasks count as alike if this many parts of their memory agree."""
_LIKE_OTHERS = 1.05
"""A job of unknown need requires this many times the mean of the jobs on a GPU."""


class GpuRequest(NamedTuple):
    """What a worker needs of GPU memory.

    Args:
        memory_bytes: On each of its GPUs; 0: unknown.
        gpus: Number of GPUs.
        of: GPUs of a node that it may use, in order of preference; None: all.
        apart: Whether workers on one node need different GPUs.
        known: Whether its need is known. If not, it gets a GPU without other jobs until its use is
            observed.
        alone: Whether no other job may use these GPUs.
    """

    memory_bytes: int
    gpus: int
    of: tuple[int, ...] | None = None
    apart: bool = False
    known: bool = True
    alone: bool = False


class WorkerSlot(NamedTuple):
    """The place of a worker: its node, and the shared GPUs with memory reserved for it."""

    node: str
    gpus: tuple[int, ...] = ()


def _nobody(_: str) -> Counter[int]:
    return Counter()


class GpuMemory:
    """The GPU memory of nodes.

    A worker gets GPUs with enough memory: first those with the fewest tasks, then those with
    clearly most memory left.

    Attributes:
        others: Gives the number of tasks without a reservation on each GPU of a node.
    """

    def __init__(self) -> None:
        self.others: Callable[[str], Counter[int]] = _nobody
        self._sizes: dict[str, dict[int, int]] = {}
        # Lost nodes are kept in these. Workers with a reservation:
        self._kept: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._tasks: defaultdict[str, Counter[int]] = defaultdict(Counter)
        # workers of unknown need
        self._unseen: defaultdict[str, Counter[int]] = defaultdict(Counter)
        # workers that need the GPU for themselves
        self._alone: defaultdict[str, Counter[int]] = defaultdict(Counter)
        # bytes in use without a reservation
        self._besides: defaultdict[str, dict[int, float]] = defaultdict(dict)
        # bytes in use by all programs
        self._used: defaultdict[str, dict[int, float]] = defaultdict(dict)
        # GPUs whose compute mode allows one process at a time
        self._single: dict[str, frozenset[int]] = {}
        # GPUs whose compute mode now allows no further process
        self._closed: dict[str, frozenset[int]] = {}

    def join(self, node: Node) -> None:
        """Add or update a node."""
        self._sizes[node.name] = {gpu.index: gpu.memory_bytes for gpu in node.gpus}

    def leave(self, name: str) -> None:
        """Remove a node."""
        self._sizes.pop(name, None)

    def change(self, request: GpuRequest, slot: WorkerSlot, sign: int) -> None:
        """Reserve memory for a worker; `sign` -1 releases it."""
        for gpu in slot.gpus:
            self._kept[slot.node][gpu] += sign * request.memory_bytes
            self._tasks[slot.node][gpu] += sign
            self._unseen[slot.node][gpu] += 0 if request.known else sign
            self._alone[slot.node][gpu] += sign if request.alone else 0

    def observe(self, name: str, used: Mapping[int, float], held: Mapping[int, float]) -> bool:
        """Record the bytes in use. Returns whether more is left than before.

        Args:
            name: Name of the node.
            used: Bytes used by all programs on each known GPU.
            held: Bytes used by tasks with a reservation, at most what is reserved. In a container
                they cannot be told apart: then what was in use before such a task came still counts
                as used by others.
        """
        before = self._besides[name]
        seen_bytes = dict(before)  # a GPU without a reading keeps its latest one
        for gpu, size in used.items():
            kept = self._kept[name][gpu]
            if not kept:
                seen_bytes[gpu] = size
            elif held.get(gpu):
                seen_bytes[gpu] = max(size - held[gpu], 0.0)
            else:
                seen_bytes[gpu] = max(min(before.get(gpu, 0.0), size), size - kept)
        self._besides[name] = seen_bytes
        self._used[name] |= used
        return any(size < before.get(gpu, 0.0) for gpu, size in seen_bytes.items())

    def settle(self, name: str, held: Mapping[int, float]) -> None:
        """Reserve the memory that a job was observed to hold, which so far counted as
        unreserved.
        """
        besides = self._besides[name]
        besides |= {gpu: max(besides.get(gpu, 0.0) - size, 0.0) for gpu, size in held.items()}

    def limit(self, name: str, single: frozenset[int], closed: frozenset[int]) -> bool:
        """Record the compute modes of a node's GPUs. Returns whether they changed."""
        before = self._single.get(name), self._closed.get(name)
        self._single[name], self._closed[name] = single, closed
        return before != (single, closed)

    def observed(self, names: Iterable[str]) -> bool:
        """Whether there are readings of GPU memory from all these nodes."""
        return all(self._besides.get(name) for name in names)

    def besides(self, name: str, gpu: int) -> float:
        """Bytes of a GPU used by programs without a reservation."""
        return self._besides[name].get(gpu, 0.0)

    def used(self, name: str, gpu: int) -> float:
        """Known bytes of a GPU used by all programs."""
        return self._used[name].get(gpu, 0.0)

    def is_crowded(self, name: str, gpu: int) -> bool:
        """Whether a GPU has too little left for a job of unknown need."""
        size = self._sizes.get(name, {}).get(gpu, 0)
        return size - self._kept[name][gpu] - self.besides(name, gpu) < _LEAST_FREE * size

    def free(self, request: GpuRequest, name: str, *, whole: bool = False) -> dict[int, float]:
        """Bytes left on each GPU of a node that a worker may use; may be negative. `whole`: as if
        all GPUs were unused.
        """
        sizes = self._sizes.get(name, {})
        usable = sizes if request.of is None else [gpu for gpu in request.of if gpu in sizes]
        if whole:
            return {gpu: float(sizes[gpu]) for gpu in usable}
        kept, besides = self._kept[name], self._besides[name]
        return {gpu: sizes[gpu] - kept[gpu] - besides.get(gpu, 0.0) for gpu in usable}

    def most(self, request: GpuRequest, name: str, workers: int) -> int:
        """The most bytes that each of `workers` workers could have on each of its GPUs; 0: too few
        GPUs.
        """
        sizes = sorted(self.free(request, name, whole=True).values(), reverse=True)
        places = workers * request.gpus
        if request.gpus > len(sizes) or (
            (request.apart or not request.known) and places > len(sizes)
        ):
            return 0
        return int(
            sizes[places - 1] if places <= len(sizes) else sizes[-1] // -(-places // len(sizes))
        )

    def room(self, request: GpuRequest, name: str, most: int, *, whole: bool = False) -> int:
        """How many workers fit, at most `most`."""
        free, most_room = self.free(request, name, whole=whole), 0
        if not whole:
            free = {
                gpu: size for gpu, size in free.items() if self.is_open(request, name, gpu, size)
            }
        apart = request.apart or request.alone or not request.known
        while most_room < most:
            best = sorted(
                (gpu for gpu in free if free[gpu] >= request.memory_bytes), key=free.__getitem__
            )
            if len(best) < request.gpus:
                break
            for gpu in best[-request.gpus :]:
                if apart:
                    del free[gpu]
                else:
                    free[gpu] -= request.memory_bytes
            most_room += 1
        return most_room

    def choose(
        self, request: GpuRequest, name: str, beside: Iterable[WorkerSlot]
    ) -> tuple[int, ...] | None:
        """The GPUs for a worker, in the order of its allowed GPUs; None: no room.

        Args:
            beside: Places of the job's workers so far.
        """
        free = self.free(request, name)
        used = self._tasks[name] + self.others(name)
        taken = (
            {gpu for slot in beside if slot.node == name for gpu in slot.gpus}
            if request.apart
            else ()
        )
        fitting = [
            gpu
            for gpu, size in free.items()
            if gpu not in taken and self.is_open(request, name, gpu, size)
        ]
        if len(fitting) < request.gpus:
            return None
        sizes = self._sizes[name]
        order = {gpu: (used[gpu], -int(_STEPS * free[gpu] / (sizes[gpu] or 1))) for gpu in fitting}
        chosen = sorted(fitting, key=order.__getitem__)[: request.gpus]
        return tuple(gpu for gpu in free if gpu in chosen)

    def roomiest(
        self, request: GpuRequest, name: str, but: Collection[int]
    ) -> tuple[int, int] | None:
        """The free GPU of a node with most memory left, except those in `but`, and its bytes left;
        None: no such GPU.
        """
        free = self.free(request, name)
        fitting = [
            gpu
            for gpu, size in free.items()
            if gpu not in but and self.is_open(request, name, gpu, size)
        ]
        gpu = max(fitting, key=free.__getitem__, default=None)
        return (gpu, int(free[gpu])) if gpu is not None else None

    def shortage(self, request: GpuRequest, nodes: Mapping[str, int]) -> Shortage | None:
        """What some nodes lack for the given number of workers on each; None: nothing."""
        for name, workers in nodes.items():
            free = self.free(request, name)
            if not free or self.room(request, name, workers) >= workers:
                continue
            obstacles = {
                gpu: self._obstacle(request, name, gpu, size) for gpu, size in free.items()
            }
            count = workers * request.gpus
            for kind in ("gpu-unseen", "gpu-alone"):
                if gpus := tuple(gpu for gpu, obstacle in obstacles.items() if obstacle == kind):
                    return Shortage(
                        kind, request.memory_bytes, count, name, gpus=gpus, is_known=request.known
                    )
            gpu = max(free, key=free.__getitem__)
            besides = self._besides[name].get(gpu, 0.0)
            others = int(besides) if besides > _LITTLE * self._sizes[name][gpu] else None
            left, needs = (
                int(max(free[gpu], 0)),
                request.memory_bytes or int(self._wanted(name, gpu)),
            )
            return Shortage("gpu-memory", needs, count, name, gpu, left, others, request.known)
        return None

    def is_open(self, request: GpuRequest, name: str, gpu: int, free: float) -> bool:
        """Whether a worker may have a GPU with this many bytes free."""
        return self._obstacle(request, name, gpu, free) is None

    def _obstacle(
        self, request: GpuRequest, name: str, gpu: int, free: float
    ) -> ShortageKind | None:
        """What keeps a worker from a GPU with this many bytes free; None: nothing."""
        tasks = self._tasks[name][gpu]
        others = self.others(name)[gpu] if request.alone else 0
        closed = gpu in self._closed.get(name, ()) or (tasks and gpu in self._single.get(name, ()))
        if closed or self._alone[name][gpu] or (request.alone and (tasks or others)):
            return "gpu-alone"
        if self._unseen[name][gpu]:
            return "gpu-unseen"
        wanted = request.memory_bytes if request.known else self._wanted(name, gpu)
        return None if free >= wanted else "gpu-memory"

    def _wanted(self, name: str, gpu: int) -> float:
        """Bytes of a GPU that have to be free for a job of unknown need."""
        kept, tasks = self._kept[name][gpu], self._tasks[name][gpu]
        return max(
            _LEAST_FREE * self._sizes[name][gpu], _LIKE_OTHERS * kept / tasks if tasks else 0.0
        )
