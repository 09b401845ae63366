"""Memory of GPUs that jobs compute on by turns: what is kept for jobs that were admitted, and what is left of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from headgate.cluster import Node
from headgate.controller.shortage import Shortage

_LITTLE = 0.02
"""Of the memory of a GPU: what is in use besides is not told of below that."""


class GpuRequest(NamedTuple):
    """What a worker needs of the memory of GPUs.

    Args:
        memory_bytes: On each of its GPUs.
        gpus: How many those are.
        of: The GPUs of a node that it may use, the first first; None: all.
        apart: Whether workers on one node have to have different ones.
    """

    memory_bytes: int
    gpus: int
    of: tuple[int, ...] | None = None
    apart: bool = False


class WorkerSlot(NamedTuple):
    """Where a worker has room: its node and, of the GPUs there that it shares, those that keep memory for it."""

    node: str
    gpus: tuple[int, ...] = ()


def _nobody(_: str) -> Counter[int]:
    return Counter()


class GpuMemory:
    """The memory of the GPUs of nodes.

    A worker gets the GPUs that have enough; of these, those that the fewest tasks use, and then those with most left.

    Attributes:
        others: Tells how many tasks for which nothing is kept use each GPU of a node.
    """

    def __init__(self) -> None:
        self.others: Callable[[str], Counter[int]] = _nobody
        self._sizes: dict[str, dict[int, int]] = {}
        # Of nodes that are gone too:
        self._kept: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._tasks: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._besides: defaultdict[str, dict[int, float]] = defaultdict(dict)  # in use, with nothing kept for it

    def join(self, node: Node) -> None:
        """A node is there, or has changed."""
        self._sizes[node.name] = {gpu.index: gpu.memory_bytes for gpu in node.gpus}

    def leave(self, name: str) -> None:
        """A node is gone."""
        self._sizes.pop(name, None)

    def change(self, request: GpuRequest, slot: WorkerSlot, sign: int) -> None:
        """Keep memory for a worker; with a sign of -1, no longer."""
        for gpu in slot.gpus:
            self._kept[slot.node][gpu] += sign * request.memory_bytes
            self._tasks[slot.node][gpu] += sign

    def observe(self, name: str, used: Mapping[int, float], held: Mapping[int, float]) -> bool:
        """Take note of what is in use; whether more is left now than before.

        Args:
            name: Of a node.
            used: By all programs, on each GPU that is known of.
            held: Of that, by tasks for which memory is kept, and no more than that. Where none of it can be told apart
                (a container does not see whose memory it is), what was in use before such a task came still is.
        """
        before = self._besides[name]
        found = dict(before)  # of a GPU that gives no reading now, the latest counts
        for gpu, size in used.items():
            kept = self._kept[name][gpu]
            if not kept:
                found[gpu] = size
            elif held.get(gpu):
                found[gpu] = max(size - held[gpu], 0.0)
            else:
                found[gpu] = max(min(before.get(gpu, 0.0), size), size - kept)
        self._besides[name] = found
        return any(size < before.get(gpu, 0.0) for gpu, size in found.items())

    def besides(self, name: str, gpu: int) -> float:
        """Bytes of a GPU in use by programs for which none are kept."""
        return self._besides[name].get(gpu, 0.0)

    def free(self, request: GpuRequest, name: str, *, whole: bool = False) -> dict[int, float]:
        """Bytes left of each GPU of a node that a worker may use, which may be below 0; `whole`: if nobody used any."""
        sizes = self._sizes.get(name, {})
        usable = sizes if request.of is None else [gpu for gpu in request.of if gpu in sizes]
        if whole:
            return {gpu: float(sizes[gpu]) for gpu in usable}
        kept, besides = self._kept[name], self._besides[name]
        return {gpu: sizes[gpu] - kept[gpu] - besides.get(gpu, 0.0) for gpu in usable}

    def most(self, request: GpuRequest, name: str, workers: int) -> int:
        """The most that each of so many workers could have on each of its GPUs there; 0: there are too few."""
        sizes = sorted(self.free(request, name, whole=True).values(), reverse=True)
        places = workers * request.gpus
        if request.gpus > len(sizes) or (request.apart and places > len(sizes)):
            return 0
        return int(sizes[places - 1] if places <= len(sizes) else sizes[-1] // -(-places // len(sizes)))

    def room(self, request: GpuRequest, name: str, most: int, *, whole: bool = False) -> int:
        """For how many workers there is room, at most for so many."""
        free, found = self.free(request, name, whole=whole), 0
        while found < most:
            best = sorted((gpu for gpu in free if free[gpu] >= request.memory_bytes), key=free.__getitem__)
            if len(best) < request.gpus:
                break
            for gpu in best[-request.gpus :]:
                free[gpu] -= request.memory_bytes if not request.apart else free[gpu]
            found += 1
        return found

    def choose(self, request: GpuRequest, name: str, beside: Iterable[WorkerSlot]) -> tuple[int, ...] | None:
        """The GPUs for a worker, in the order of those that it may use; None where there is no room.

        Args:
            beside: Of the workers of its job that have been given theirs.
        """
        free = self.free(request, name)
        used = self._tasks[name] + self.others(name)
        taken = {gpu for slot in beside if slot.node == name for gpu in slot.gpus} if request.apart else ()
        fitting = [gpu for gpu in free if free[gpu] >= request.memory_bytes and gpu not in taken]
        if len(fitting) < request.gpus:
            return None
        chosen = sorted(fitting, key=lambda gpu: (used[gpu], -free[gpu]))[: request.gpus]
        return tuple(gpu for gpu in free if gpu in chosen)

    def shortage(self, request: GpuRequest, nodes: Mapping[str, int]) -> Shortage | None:
        """What is missing of some nodes for so many workers on each; None where each has enough."""
        for name, workers in nodes.items():
            free = self.free(request, name)
            if not free or self.room(request, name, workers) >= workers:
                continue
            gpu = max(free, key=free.__getitem__)
            besides = self._besides[name].get(gpu, 0.0)
            others = int(besides) if besides > _LITTLE * self._sizes[name][gpu] else None
            left = int(max(free[gpu], 0))
            return Shortage("gpu-memory", request.memory_bytes, workers * request.gpus, name, gpu, left, others)
        return None
