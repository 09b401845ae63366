"""Where the tasks of a plan go whose user named no nodes: a simple rule, the same for the same cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace

from headgate.cluster import Node
from headgate.plans import Plan


def place(plan: Plan, nodes: Sequence[Node], beside: Mapping[str, int] | None = None) -> Plan:
    """A plan with a node for each task; one that names its nodes keeps them.

    Each worker in turn goes where it has the most cores to itself, each server where the fewest workers are.

    Args:
        plan: What to place.
        nodes: At least one.
        beside: How many tasks of other jobs each node has, which count as if they were workers of this one.
    """
    workers = plan.worker_nodes or with_more((), plan.workers, nodes, plan.cores_per_worker, beside)
    taken, servers = Counter(beside) + Counter(workers), list(plan.server_nodes)
    served = Counter(servers)
    while len(servers) < plan.servers:
        servers.append(for_server(nodes, taken, served))
        served[servers[-1]] += 1
    return replace(plan, worker_nodes=workers, server_nodes=tuple(servers))


def place_within(plan: Plan, nodes: Sequence[Node], fits: Callable[[str, int, int], bool]) -> Plan | None:
    """A plan placed by the same rule as far as there is room; None where there is not enough.

    Args:
        plan: What to place; the nodes that it names do not count.
        nodes: Where to.
        fits: Whether a node, by its name, has room for so many workers and so many servers of the plan.
    """
    workers: tuple[str, ...] = ()
    servers: list[str] = []
    while len(workers) < plan.workers:
        left = [node for node in nodes if fits(node.name, workers.count(node.name) + 1, 0)]
        if not left:
            return None
        workers = (*workers, for_worker(left, Counter(workers), plan.cores_per_worker))
    beside = Counter(workers)
    while len(servers) < plan.servers:
        left = [node for node in nodes if fits(node.name, beside[node.name], servers.count(node.name) + 1)]
        if not left:
            return None
        servers.append(for_server(left, beside, Counter(servers)))
    return replace(plan, worker_nodes=workers, server_nodes=tuple(servers))


def grouped(workers: Sequence[str]) -> tuple[str, ...]:
    """Nodes of workers with those of one node side by side, as launchers count them."""
    first = list(dict.fromkeys(workers))
    return tuple(sorted(workers, key=first.index))


def unplaced(plan: Plan) -> Plan:
    """A plan without nodes."""
    return replace(plan, worker_nodes=(), server_nodes=())


def with_more(
    taken: Sequence[str],
    count: int,
    nodes: Sequence[Node],
    cores: float | None = None,
    beside: Mapping[str, int] | None = None,
) -> tuple[str, ...]:
    """Nodes of `count` workers whose first ones, `taken`, are placed already; `beside` as of `place`."""
    workers = list(taken[:count])
    there = Counter(beside) + Counter(workers)
    ranked = [(_rank(node, there[node.name], cores), place) for place, node in enumerate(nodes)]
    heapify(ranked)
    while len(workers) < count:
        place = ranked[0][1]
        node = nodes[place]
        workers.append(node.name)
        there[node.name] += 1
        heapreplace(ranked, (_rank(node, there[node.name], cores), place))
    return tuple(workers)


def for_worker(nodes: Sequence[Node], workers: Mapping[str, int], cores: float | None = None) -> str:
    """The node on which one more worker has the most cores: an equal part of them, or with `cores` for each what is
    left. Among equals it is the node with the fewest workers, then the first."""
    return min(nodes, key=lambda node: _rank(node, workers.get(node.name, 0), cores)).name


def _rank(node: Node, there: int, cores: float | None) -> tuple[float, int]:
    """How soon a node with so many workers gets one more: the lowest first."""
    room = node.cores / (there + 1) if cores is None else node.cores - cores * there
    return -round(room, 6), there


def for_server(nodes: Sequence[Node], workers: Mapping[str, int], servers: Mapping[str, int]) -> str:
    """The node with the fewest workers; of equal ones that with the fewest servers, then the most cores, then the
    first."""
    return min(nodes, key=lambda node: (workers.get(node.name, 0), servers.get(node.name, 0), -node.cores)).name
