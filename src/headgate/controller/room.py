"""What of the nodes is still free for jobs that have GPUs, or memory, to themselves."""

from __future__ import annotations

from typing import NamedTuple

from headgate.cluster import Node
from headgate.controller.records import JobRecord


class Ask(NamedTuple):
    """What a job needs before it can start.

    Args:
        workers: How many, all of them at once.
        gpus: Of each worker, on one node.
        memory_bytes: Of each worker; 0 where nobody said.
        fixed: The nodes of its workers, where they are settled.
        allowed: Names of the nodes it may use; None: any.
    """

    workers: int
    gpus: int
    memory_bytes: int
    fixed: tuple[str, ...]
    allowed: frozenset[str] | None

    @property
    def all_gpus(self) -> int:
        return self.workers * self.gpus

    def in_words(self) -> str:
        if self.gpus:
            return "1 GPU" if self.all_gpus == 1 else f"{self.all_gpus} GPUs"
        return f"{self.workers * self.memory_bytes / 2**30:.3g} GiB of memory"


def asked(job: JobRecord) -> Ask | None:
    """What a planned job has to itself; None where it shares all it uses."""
    limits, plan = job.spec.limits, job.planned()
    gpus, memory = limits.gpus or 0, limits.memory_bytes or 0
    if not (gpus or memory):
        return None
    own = job.spec.plan
    settled = not gpus or (own is not None and bool(own.worker_nodes))
    allowed = frozenset(job.nodes) if job.nodes and not settled else None
    return Ask(plan.workers, gpus, memory, plan.worker_nodes if settled else (), allowed)


class Room:
    """GPUs and memory of nodes, and how much of each is taken.

    A worker goes where the fewest GPUs are left that are enough for it (best fit), so that whole nodes stay free for
    those that need one; of equal nodes to the one that has been so for longest.
    """

    def __init__(self) -> None:
        self.free_gpus = 0
        self._nodes: dict[str, Node] = {}
        self._taken: dict[str, list[int]] = {}  # GPUs, bytes
        self._by_free: list[dict[str, None]] = [{}]

    def join(self, node: Node) -> None:
        """A node is there, or has changed; what is taken of it stays so."""
        self.leave(node.name)
        self._nodes[node.name] = node
        while len(self._by_free) <= len(node.gpus):
            self._by_free.append({})
        self._taken.setdefault(node.name, [0, 0])
        self._file(node.name, 1)

    def leave(self, name: str) -> None:
        """A node is gone."""
        if name in self._nodes:
            self._file(name, -1)
            del self._nodes[name]

    def could(self, ask: Ask) -> bool:
        """Whether there would be room if nothing ran."""
        places = 0
        for node in self._nodes.values():
            if ask.allowed is not None and node.name not in ask.allowed:
                continue
            here = len(node.gpus) // ask.gpus if ask.gpus else ask.workers
            places += min(here, node.memory_bytes // ask.memory_bytes) if ask.memory_bytes else here
        if any(name not in self._nodes for name in ask.fixed):
            return True  # whoever starts it settles what to do about a node that is gone
        for name in set(ask.fixed):
            node, here = self._nodes[name], ask.fixed.count(name)
            if len(node.gpus) < here * ask.gpus or node.memory_bytes < here * ask.memory_bytes:
                return False
        return bool(ask.fixed) or places >= ask.workers

    def seize(self, ask: Ask) -> tuple[str, ...] | None:
        """Take what is asked for: the node of each worker; None, with nothing taken, where there is no room now."""
        if ask.fixed:
            return self._seize_on(ask)
        if ask.all_gpus > self.free_gpus:
            return None
        found: list[str] = []
        for _ in range(ask.workers):
            name = self._best(ask)
            if name is None:
                self.give(ask, found)
                return None
            self.take(ask, (name,))
            found.append(name)
        return tuple(found)

    def take(self, ask: Ask, nodes: tuple[str, ...]) -> None:
        """Take what a worker asks for on each of these nodes."""
        self._change(ask, nodes, 1)

    def give(self, ask: Ask, nodes: tuple[str, ...] | list[str]) -> None:
        """Give it back."""
        self._change(ask, nodes, -1)

    def _seize_on(self, ask: Ask) -> tuple[str, ...] | None:
        for done, name in enumerate(ask.fixed):
            if name in self._nodes and not self._fits(ask, name):
                self.give(ask, ask.fixed[:done])
                return None
            self.take(ask, (name,))
        return ask.fixed

    def _best(self, ask: Ask) -> str | None:
        for bucket in self._by_free[ask.gpus :]:
            for name in bucket:
                if (ask.allowed is None or name in ask.allowed) and self._fits(ask, name):
                    return name
        return None

    def _fits(self, ask: Ask, name: str) -> bool:
        node, (gpus, memory) = self._nodes[name], self._taken[name]
        return len(node.gpus) - gpus >= ask.gpus and (
            not ask.memory_bytes or node.memory_bytes - memory >= ask.memory_bytes
        )

    def _change(self, ask: Ask, nodes: tuple[str, ...] | list[str], sign: int) -> None:
        for name in nodes:
            there = name in self._nodes
            if there:
                self._file(name, -1)
            taken = self._taken.setdefault(name, [0, 0])
            taken[0] += sign * ask.gpus
            taken[1] += sign * ask.memory_bytes
            if there:
                self._file(name, 1)

    def _file(self, name: str, sign: int) -> None:
        """Put a node among those with as many free GPUs, or take it out."""
        free = max(len(self._nodes[name].gpus) - self._taken[name][0], 0)
        self.free_gpus += sign * free
        if sign > 0:
            self._by_free[free][name] = None
        else:
            del self._by_free[free][name]
