"""Free GPUs and memory of nodes, for jobs that need them exclusively."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import NamedTuple

from headgate.controller.gpu_memory import GpuMemory, GpuRequest, WorkerSlot
from headgate.controller.records import JobRecord
from headgate.controller.shortage import Shortage
from headgate.controller.slots import Group, Slots
from headgate.model.cluster import Node
from headgate.model.roles import task_names


class ResourceRequest(NamedTuple):
    """What a job needs before it can start.

    Args:
        workers: Number of workers, all at once.
        gpus: GPUs of each worker, on one node.
        memory_bytes: Memory of each worker; 0: not stated.
        fixed: Nodes of its workers, if settled.
        allowed: Names of the nodes that it may use; None: any.
        on_gpus: GPU memory that each worker needs; None: unknown or none.
        guessed: Its memory need is unknown: `memory_bytes` counts until the use is observed.
        groups: Groups of jobs in which it takes a slot.
    """

    workers: int
    gpus: int
    memory_bytes: int
    fixed: tuple[str, ...]
    allowed: frozenset[str] | None
    on_gpus: GpuRequest | None = None
    guessed: bool = False
    groups: tuple[Group, ...] = ()

    @property
    def all_gpus(self) -> int:
        return self.workers * self.gpus

    @property
    def is_probe(self) -> bool:
        """Whether the job shows what memory its script needs, or waits for that."""
        return any(group.kind == "probe" for group in self.groups)

    def without_probe(self) -> ResourceRequest:
        """The request of the same job if it need not wait for that."""
        return self._replace(groups=tuple(group for group in self.groups if group.kind != "probe"))


def request_of(job: JobRecord, gpus_are_shared: bool = False) -> ResourceRequest | None:
    """What a planned job needs exclusively; None: it shares all that it uses."""
    limits, plan = job.spec.limits, job.planned()
    if job.spec.roles:
        return _request_of_roles(job, gpus_are_shared)
    gpus = 0 if gpus_are_shared else limits.gpus or 0
    memory = limits.memory_bytes or job.needs_bytes or 0
    on_gpus = _on_gpus(job, gpus_are_shared) if gpus or gpus_are_shared else None
    if not (gpus or memory or on_gpus):
        return None
    own = job.spec.plan
    settled = not gpus or (own is not None and bool(own.worker_nodes))
    allowed = frozenset(job.nodes) if job.nodes and not settled else None
    return ResourceRequest(
        plan.workers, gpus, memory, plan.worker_nodes if settled else (), allowed, on_gpus
    )


def _on_gpus(job: JobRecord, shared: bool) -> GpuRequest | None:
    """GPU memory that each worker of a job needs. If the user gives no number, one GPU is assumed;
    none if nothing says that the job uses GPUs.
    """
    limits, needs = job.spec.limits, job.gpu_memory_bytes
    uses = bool(
        needs or (shared and (limits.gpus or limits.exclusive or job.uses_gpus in ("maybe", "yes")))
    )
    if not uses or limits.gpus == 0:
        return None
    known, alone = bool(needs), limits.exclusive and shared
    return GpuRequest(needs or 0, limits.gpus or 1, job.gpus, job.sees_gpus_of_all, known, alone)


def _request_of_roles(job: JobRecord, gpus_are_shared: bool) -> ResourceRequest | None:
    """The request of a job made of roles, on the nodes of its plan. Each task counts as the mean on
    the node with most.
    """
    nodes = job.planned().worker_nodes
    wants = [job.spec.limits_of(name) for name in task_names(job.spec.roles)]
    memory = _evenly(nodes, [request.memory_bytes or 0 for request in wants])
    gpus = 0 if gpus_are_shared else _evenly(nodes, [request.gpus or 0 for request in wants])
    return ResourceRequest(len(nodes), gpus, memory, nodes, None) if gpus or memory else None


def _evenly(nodes: Sequence[str], amounts: Sequence[int]) -> int:
    sums = Counter[str]()
    for name, amount in zip(nodes, amounts):
        sums[name] += amount
    return max(-(-total // nodes.count(name)) for name, total in sums.items())


_NOTHING_ELSE = ResourceRequest(0, 0, 0, (), None)[2:]

_MARGIN = 1 / 20
_MARGIN_MOST = 1 << 30
"""Least free memory of a node beside running jobs: this fraction, at most this many bytes. Peaks
vary from run to run, and page tables and the like belong to no job.
"""
_MOST_KINDS = 1_000
"""Most requests for which it is kept whether they could fit."""
_STANDING = 1 / 8
_STANDING_LEAST, _STANDING_MOST = 512 << 20, 2 / 5
"""Memory held by others that never delays a job alone on its node: this many bytes, at most this
fraction. A system, a hub and its commands always hold some.
"""


class FreeResources:
    """GPUs and memory of nodes, and how much of each is taken.

    A worker goes to the node with the fewest GPUs left that are enough for it (best fit). So whole
    nodes stay free for jobs that need one. Among equal nodes it goes to the one that has been in
    this state longest.

    Attributes:
        gpu_memory: Memory of GPUs that jobs share by turns.
        slots: How many jobs of a group run.
    """

    def __init__(self) -> None:
        self.free_gpus = 0
        self.slots = Slots()
        self._nodes: dict[str, Node] = {}
        self._free: dict[str, int] = {}  # GPUs; negative after a node lost some
        self._taken: dict[str, list[int]] = {}  # GPUs and bytes, also of lost nodes
        self._by_free: list[dict[str, None]] = [{}]
        self._possible: dict[ResourceRequest, bool] = {}
        # bytes of a node for all jobs, without what others hold
        self._spare: dict[str, float] = {}
        self.gpu_memory = GpuMemory()

    def join(self, node: Node) -> None:
        """Add or update a node; what is taken of it stays taken."""
        spare = self._spare.get(node.name)
        self.leave(node.name)
        self._nodes[node.name] = node
        if spare is not None:
            self._spare[node.name] = spare
        self._possible.clear()
        self.gpu_memory.join(node)
        while len(self._by_free) <= len(node.gpus):
            self._by_free.append({})
        self._file(node.name, len(node.gpus) - self._taken.setdefault(node.name, [0, 0])[0])

    def leave(self, name: str) -> None:
        """Remove a node."""
        if name in self._nodes:
            free = self._free.pop(name)
            del self._by_free[max(free, 0)][name], self._nodes[name]
            self.gpu_memory.leave(name)
            self._spare.pop(name, None)
            self._possible.clear()
            self.free_gpus -= max(free, 0)

    def copy(self) -> FreeResources:
        """The same resources, to try on them what may be taken."""
        shared = {id(part): part for part in (self._possible, *self._nodes.values())}
        return deepcopy(self, shared)

    @property
    def cores(self) -> float:
        """Cores of all nodes together."""
        return sum(node.cores for node in self._nodes.values())

    def could(self, request: ResourceRequest) -> bool:
        """Whether the request would fit if nothing ran."""
        if request not in self._possible:
            if len(self._possible) >= _MOST_KINDS:
                self._possible.clear()
            has_whole_gpus = (
                self.held(request, name, len(node.gpus), node.memory_bytes, whole=True)
                for name, node in self._nodes.items()
            )
            self._possible[request] = sum(has_whole_gpus) >= request.workers
        return self._possible[request]

    def trimmed(self, request: ResourceRequest) -> ResourceRequest:
        """A request for settled nodes, reduced to the total memory of these nodes and their
        GPUs.
        """
        fixed_counts = {
            name: request.fixed.count(name) for name in request.fixed if name in self._nodes
        }
        if not fixed_counts:
            return request
        memory = min(
            self._nodes[name].memory_bytes // workers for name, workers in fixed_counts.items()
        )
        request = request._replace(memory_bytes=min(request.memory_bytes, memory))
        if (on_gpus := request.on_gpus) is None:
            return request
        most = min(
            self.gpu_memory.most(on_gpus, name, workers) for name, workers in fixed_counts.items()
        )
        # Without enough GPUs, nobody waits for their memory.
        fits = on_gpus._replace(memory_bytes=min(on_gpus.memory_bytes, most)) if most else None
        return request._replace(on_gpus=fits)

    def device(self, slot: WorkerSlot) -> str:
        """The name of a place in pair measurements: its GPU, or the kind of its node."""
        node = self._nodes[slot.node]
        return next((gpu.name for gpu in node.gpus if gpu.index in slot.gpus), node.kind)

    def shortage(self, request: ResourceRequest) -> Shortage:
        """What a request that does not fit lacks."""
        if (full := self.slots.full(request.groups)) is not None:
            return self.slots.shortage(full)
        if request.on_gpus is not None and not request.gpus:
            lacks = self.gpu_memory.shortage(request.on_gpus, Counter(request.fixed))
            if lacks is not None:
                return lacks
        total_need = self.as_a_whole(request)
        if total_need.kind != "memory":
            return total_need
        for name, workers in Counter(request.fixed).items():
            if (
                name not in self._spare
                or name not in self._nodes
                or self.has_place(request, name, workers)
            ):
                continue
            if (
                self._nodes[name].memory_bytes - self._taken[name][1]
                >= workers * request.memory_bytes
            ):
                free, others = max(self.left(name)[1], 0), int(self.others(name))
                return replace(total_need, node=name, free_bytes=free, others_bytes=others)
        return total_need

    @staticmethod
    def as_a_whole(request: ResourceRequest) -> Shortage:
        """All that is requested, on whatever node."""
        if request.gpus:
            return Shortage("gpus", count=request.all_gpus)
        if request.on_gpus is not None and not request.memory_bytes:
            return Shortage("gpu-memory", request.on_gpus.memory_bytes)
        return Shortage(
            "memory", request.memory_bytes, request.workers, is_known=not request.guessed
        )

    def held(
        self,
        request: ResourceRequest,
        name: str,
        gpus: int,
        memory_bytes: int,
        *,
        whole: bool = False,
    ) -> int:
        """How many workers fit on a node with these resources left; `whole`: and with all its GPU
        memory.
        """
        most = request.fixed.count(name) if request.fixed else request.workers
        if request.allowed is not None and name not in request.allowed:
            return 0
        if request.gpus:
            most = min(most, gpus // request.gpus)
        if request.on_gpus is not None:
            most = self.gpu_memory.room(
                request.on_gpus, name, most, whole=whole or bool(request.gpus)
            )
        return max(
            min(most, memory_bytes // request.memory_bytes) if request.memory_bytes else most, 0
        )

    def observe(self, name: str, available: float, held: float) -> bool:
        """Record the use of a node's memory. Returns whether jobs could have more than before.

        Args:
            name: Name of the node.
            available: Bytes still available.
            held: Bytes held by jobs with reserved memory, at most what is reserved.
        """
        before, self._spare[name] = self._spare.get(name, math.inf), available + held
        return self._spare[name] > before

    def observed(self, names: Iterable[str]) -> bool:
        """Whether there are memory readings from all these nodes."""
        return all(name in self._spare for name in names)

    def others(self, name: str) -> float:
        """Bytes of a node held by others: programs, shared memory, other hubs, and Headgate
        itself.
        """
        size = self._nodes[name].memory_bytes
        return max(size - self._spare.get(name, size), 0.0)

    def left(self, name: str, own: int = 0, guessed: bool = False) -> tuple[int, int]:
        """Free GPUs and bytes of an available node.

        Args:
            own: Bytes that the job has been given on it so far.
            guessed: The job's need is guessed: it waits for other jobs only, not for other
                programs.
        """
        size, taken = self._nodes[name].memory_bytes, self._taken[name][1]
        free = size - taken
        if name in self._spare:
            is_alone = taken <= own
            if not is_alone:
                free = min(free, int(self._spare[name] - min(_MARGIN * size, _MARGIN_MOST)) - taken)
            elif not guessed and self.others(name) > min(
                max(_STANDING * size, _STANDING_LEAST), _STANDING_MOST * size
            ):
                free = min(free, int(self._spare[name]) - taken)
        return self._free[name], free

    def has_place(self, request: ResourceRequest, name: str, workers: int) -> bool:
        """Whether this many workers fit on a node now."""
        left = self.left(name, guessed=request.guessed) if name in self._nodes else (0, 0)
        return name in self._nodes and self.held(request, name, *left) >= workers

    def places(self, request: ResourceRequest) -> int:
        """How many workers fit now."""
        if request.gpus and request[2:] == _NOTHING_ELSE:
            return sum(
                len(names) * (free // request.gpus) for free, names in enumerate(self._by_free)
            )
        return sum(self.held(request, name, *self.left(name)) for name in self._nodes)

    def is_there(self, name: str) -> bool:
        return name in self._nodes

    def seize(self, request: ResourceRequest) -> tuple[WorkerSlot, ...] | None:
        """Take the requested resources. Returns the place of each worker; None, with nothing taken:
        no room now.
        """
        if request.all_gpus > self.free_gpus or self.slots.full(request.groups) is not None:
            return None
        worker_slots: list[WorkerSlot] = []
        own = Counter[str]()
        for i in range(request.workers):
            name = request.fixed[i] if request.fixed else self._best(request, own)
            if name is None or name not in self._nodes or not self._fits(request, name, own[name]):
                self._change(request, -1, worker_slots)
                return None
            gpus: tuple[int, ...] | None = ()
            if request.on_gpus is not None and not request.gpus:
                gpus = self.gpu_memory.choose(request.on_gpus, name, worker_slots)
            if gpus is None:
                self._change(request, -1, worker_slots)
                return None
            slot = WorkerSlot(name, gpus)
            self._change(request, 1, (slot,))
            own[name] += request.memory_bytes
            worker_slots.append(slot)
        self.slots.take(request.groups)
        return tuple(worker_slots)

    def fits(self, request: ResourceRequest) -> bool:
        """Whether the request fits now."""
        slots = self.seize(request)
        if slots is not None:
            self.give(request, slots)
        return slots is not None

    def take(self, request: ResourceRequest, slots: Iterable[WorkerSlot]) -> None:
        """Take the resources of a job with one worker in each of these places."""
        self._change(request, 1, slots)
        self.slots.take(request.groups)

    def give(self, request: ResourceRequest, slots: Iterable[WorkerSlot]) -> None:
        """Return the resources of a job with one worker in each of these places."""
        self._change(request, -1, slots)
        self.slots.give(request.groups)

    def _best(self, request: ResourceRequest, own: Mapping[str, int]) -> str | None:
        for bucket in self._by_free[request.gpus :]:
            for name in bucket:
                if (request.allowed is None or name in request.allowed) and self._fits(
                    request, name, own[name]
                ):
                    return name
        return None

    def _fits(self, request: ResourceRequest, name: str, own: int) -> bool:
        gpus, memory_bytes = self.left(name, own, request.guessed)
        if gpus < request.gpus or (request.memory_bytes and memory_bytes < request.memory_bytes):
            return False
        return (
            request.on_gpus is None
            or self.gpu_memory.room(request.on_gpus, name, 1, whole=bool(request.gpus)) > 0
        )

    def _change(self, request: ResourceRequest, sign: int, slots: Iterable[WorkerSlot]) -> None:
        gpus = sign * request.gpus
        for slot in slots:
            name = slot.node
            taken = self._taken[name]
            taken[0] += gpus
            taken[1] += sign * request.memory_bytes
            if request.on_gpus is not None and slot.gpus:
                self.gpu_memory.change(request.on_gpus, slot, sign)
            free = self._free.get(name)
            if gpus and free is not None:
                del self._by_free[max(free, 0)][name]
                self.free_gpus -= max(free, 0)
                self._file(name, free - gpus)

    def _file(self, name: str, free: int) -> None:
        """Put a node among those with equally many free GPUs."""
        self._free[name] = free
        self._by_free[max(free, 0)][name] = None
        self.free_gpus += max(free, 0)


class Eviction:
    """Tests whether a request would fit if some jobs gave up their resources. Nothing is taken or
    returned.
    """

    def __init__(self, resources: FreeResources, request: ResourceRequest) -> None:
        self._resources, self._ask = resources, request
        self._given: dict[str, tuple[int, int]] = {}
        # workers that would fit on nodes that got resources back
        self._held: dict[str, int] = {}
        self._places = resources.places(request)

    @property
    def fits(self) -> bool:
        return self._places >= self._ask.workers

    def give(self, request: ResourceRequest, slots: Iterable[WorkerSlot], sign: int = 1) -> None:
        """A job gives up its resources in these places; `sign` -1: it keeps them after all."""
        for name, _ in slots:
            if self._resources.is_there(name):
                free_gpus, free_bytes = self._resources.left(name)
                if name not in self._held:
                    self._given[name] = 0, 0
                    self._held[name] = self._resources.held(self._ask, name, free_gpus, free_bytes)
                gpus, memory_bytes = self._given[name]
                gpus, memory_bytes = (
                    gpus + sign * request.gpus,
                    memory_bytes + sign * request.memory_bytes,
                )
                held = self._resources.held(
                    self._ask, name, free_gpus + gpus, free_bytes + memory_bytes
                )
                self._places += held - self._held[name]
                self._given[name], self._held[name] = (gpus, memory_bytes), held
