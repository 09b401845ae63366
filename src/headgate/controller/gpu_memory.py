"""Memory of GPUs that jobs compute on by turns: what is kept for jobs that were admitted, and what
is left of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from headgate.controller.shortage import Shortage, ShortageKind
from headgate.model.cluster import Node

_LITTLE = 0.02
"""Of the memory of a GPU: what is in use besides is not told of below that."""
_LEAST_FREE = 1 / 4
"""Of the memory of a GPU: so much has to be free for a job whose need is not known."""
_STEPS = 16
"""Of GPUs that as many tasks use, those are alike that have as many such parts of their memory
left.
"""
_LIKE_OTHERS = 1.05
"""Times the mean of what jobs on a GPU hold: so much has to be free there for one whose need is not
known.
"""


class GpuRequest(NamedTuple):
    """What a worker needs of the memory of GPUs.

    Args:
        memory_bytes: On each of its GPUs; 0 where that is not known.
        gpus: How many those are.
        of: The GPUs of a node that it may use, the first first; None: all.
        apart: Whether workers on one node have to have different ones.
        known: Whether its need is known. If not, it has a GPU without other jobs, until it is seen
            what it holds.
        alone: Whether no other job may use these GPUs.
    """

    memory_bytes: int
    gpus: int
    of: tuple[int, ...] | None = None
    apart: bool = False
    known: bool = True
    alone: bool = False


class WorkerSlot(NamedTuple):
    """Where a worker has room: its node and, of the GPUs there that it shares, those that keep
    memory for it.
    """

    node: str
    gpus: tuple[int, ...] = ()


def _nobody(_: str) -> Counter[int]:
    return Counter()


class GpuMemory:
    """The memory of the GPUs of nodes.

    A worker gets the GPUs that have enough; of these, those that the fewest tasks use, and then
    those with clearly most left.

    Attributes:
        others: Tells how many tasks for which nothing is kept use each GPU of a node.
    """

    def __init__(self) -> None:
        self.others: Callable[[str], Counter[int]] = _nobody
        self._sizes: dict[str, dict[int, int]] = {}
        # Of nodes that are gone too:
        self._kept: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self._tasks: defaultdict[str, Counter[int]] = defaultdict(Counter)
        # of these, those of unknown need
        self._unseen: defaultdict[str, Counter[int]] = defaultdict(Counter)
        # and those that are to be alone there
        self._alone: defaultdict[str, Counter[int]] = defaultdict(Counter)
        # in use, with nothing kept for it
        self._besides: defaultdict[str, dict[int, float]] = defaultdict(dict)
        self._used: defaultdict[str, dict[int, float]] = defaultdict(dict)  # by everybody
        # by their compute mode: for one process at a time,
        self._single: dict[str, frozenset[int]] = {}
        self._closed: dict[str, frozenset[int]] = {}  # and for none more now

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
            self._unseen[slot.node][gpu] += 0 if request.known else sign
            self._alone[slot.node][gpu] += sign if request.alone else 0

    def observe(self, name: str, used: Mapping[int, float], held: Mapping[int, float]) -> bool:
        """Take note of what is in use; whether more is left now than before.

        Args:
            name: Of a node.
            used: By all programs, on each GPU that is known of.
            held: Of that, by tasks for which memory is kept, and no more than that. Where none of
                it can be told apart (a container does not see whose memory it is), what was in use
                before such a task came still is.
        """
        before = self._besides[name]
        seen_bytes = dict(before)  # of a GPU that gives no reading now, the latest counts
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
        """From now on memory is kept for a job that holds so much of GPUs, which counted as used
        besides until then.
        """
        besides = self._besides[name]
        besides |= {gpu: max(besides.get(gpu, 0.0) - size, 0.0) for gpu, size in held.items()}

    def limit(self, name: str, single: frozenset[int], closed: frozenset[int]) -> bool:
        """Take note of what the compute modes of a node's GPUs allow; whether that has changed."""
        before = self._single.get(name), self._closed.get(name)
        self._single[name], self._closed[name] = single, closed
        return before != (single, closed)

    def observed(self, names: Iterable[str]) -> bool:
        """Whether it is known of all these nodes what of their GPUs is in use."""
        return all(self._besides.get(name) for name in names)

    def besides(self, name: str, gpu: int) -> float:
        """Bytes of a GPU in use by programs for which none are kept."""
        return self._besides[name].get(gpu, 0.0)

    def used(self, name: str, gpu: int) -> float:
        """Bytes of a GPU in use by everybody, as far as is known."""
        return self._used[name].get(gpu, 0.0)

    def is_crowded(self, name: str, gpu: int) -> bool:
        """Whether a GPU has too little left for a job whose need is not known."""
        size = self._sizes.get(name, {}).get(gpu, 0)
        return size - self._kept[name][gpu] - self.besides(name, gpu) < _LEAST_FREE * size

    def free(self, request: GpuRequest, name: str, *, whole: bool = False) -> dict[int, float]:
        """Bytes left of each GPU of a node that a worker may use, which may be below 0; `whole`: if
        nobody used any.
        """
        sizes = self._sizes.get(name, {})
        usable = sizes if request.of is None else [gpu for gpu in request.of if gpu in sizes]
        if whole:
            return {gpu: float(sizes[gpu]) for gpu in usable}
        kept, besides = self._kept[name], self._besides[name]
        return {gpu: sizes[gpu] - kept[gpu] - besides.get(gpu, 0.0) for gpu in usable}

    def most(self, request: GpuRequest, name: str, workers: int) -> int:
        """The most that each of so many workers could have on each of its GPUs there; 0: there are
        too few.
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
        """For how many workers there is room, at most for so many."""
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
        """The GPUs for a worker, in the order of those that it may use; None where there is no
        room.

        Args:
            beside: Of the workers of its job that have been given theirs.
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
        """Of the GPUs of a node that a worker may have now, without some: the one with most left,
        and how much that is; None: there is none.
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
        """What is missing of some nodes for so many workers on each; None where each has enough."""
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
        """Whether a worker may have a GPU with so many bytes free."""
        return self._obstacle(request, name, gpu, free) is None

    def _obstacle(
        self, request: GpuRequest, name: str, gpu: int, free: float
    ) -> ShortageKind | None:
        """What keeps a worker from a GPU with so many bytes free; None: nothing."""
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
        """Bytes of a GPU that have to be free for a job whose need is not known."""
        kept, tasks = self._kept[name][gpu], self._tasks[name][gpu]
        return max(
            _LEAST_FREE * self._sizes[name][gpu], _LIKE_OTHERS * kept / tasks if tasks else 0.0
        )
