"""Place the tasks of a plan whose user named no nodes, by a simple deterministic rule."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from math import inf

from headgate.model.cluster import Node
from headgate.model.identifiers import TaskName
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.reasons import Refusal, RefusalKind
from headgate.model.refused import RefusedError
from headgate.model.roles import Role


def place(plan: Plan, nodes: Sequence[Node], beside: Mapping[str, float] | None = None) -> Plan:
    """Give each task of a plan a node. A plan that names its nodes keeps them.

    Each worker in turn goes to the node where it has the most cores, each server to the node with
    the fewest workers.

    Args:
        plan: The plan to place.
        nodes: At least one node.
        beside: How many workers of this job the other jobs on each node count as.
    """
    workers = plan.worker_nodes or with_more((), plan.workers, nodes, plan.cores_per_worker, beside)
    taken, servers = _with(beside, workers), list(plan.server_nodes)
    served = Counter(servers)
    while len(servers) < plan.servers:
        servers.append(for_server(nodes, taken, served))
        served[servers[-1]] += 1
    return replace(plan, worker_nodes=workers, server_nodes=tuple(servers))


@dataclass(slots=True)
class _Room:
    """Free resources of a node."""

    cores: float
    memory_bytes: float
    gpus: int
    nic_bytes_per_second: float

    def lacks(
        self, role: Role, memory_bytes: int | None, gpus: int | None
    ) -> dict[str, object] | None:
        """The resource that a task lacks, and how much it asks for; None: it fits."""
        if (gpus or 0) > self.gpus:
            return {"resource": "gpus", "count": gpus}
        if (memory_bytes or 0) > self.memory_bytes:
            return {"resource": "memory", "bytes": memory_bytes}
        if (role.nic_bytes_per_second or 0.0) > self.nic_bytes_per_second:
            return {"resource": "nic", "bytes": int(role.nic_bytes_per_second or 0)}
        return None


def place_roles(job: Job, nodes: Sequence[Node], beside: Mapping[str, float] | None = None) -> Plan:
    """Place a job made of roles: a node for each task, in the order of the roles.

    The most demanding tasks go first. Each goes to the node with the most cores left, among nodes
    with enough memory, GPUs and NIC rate. A task without stated cores counts as one core.

    Args:
        job: The job.
        nodes: At least one node.
        beside: How many tasks of other jobs each node has; each counts as a core.

    Raises:
        RefusedError: A task fits on no node, or names an unknown node.
    """
    rooms = {
        node.name: _Room(
            node.cores - (beside or {}).get(node.name, 0),
            node.memory_bytes,
            len(node.gpus),
            inf if node.nic_bytes_per_second is None else node.nic_bytes_per_second,
        )
        for node in nodes
    }
    tasks = [(name, role) for role in job.roles for name in role.tasks()]
    wants = {name: job.limits_of(name) for name, _ in tasks}

    def size(task: tuple[TaskName, Role]) -> tuple[bool, float, float, float]:
        limits = wants[task[0]]
        return (
            not task[1].nodes,
            -(limits.gpus or 0),
            -(limits.memory_bytes or 0),
            -(limits.cores or 1.0),
        )

    goes_to: dict[TaskName, str] = {}
    for name, role in sorted(tasks, key=size):
        limits = wants[name]
        named = role.nodes[name.index % len(role.nodes)] if role.nodes else None
        if named is not None and named not in rooms:
            raise RefusedError.of(
                RefusalKind.UNKNOWN_NODE,
                job=job.name,
                role=role.name,
                node=named,
                nodes=tuple(rooms),
            )
        lacks = {
            node_name: room.lacks(role, limits.memory_bytes, limits.gpus)
            for node_name, room in rooms.items()
            if named in (None, node_name)
        }
        fitting = [node_name for node_name, lack in lacks.items() if lack is None]
        if not fitting:
            node = {} if named is None else {"node": named}
            facts = {"job": job.name, "task": name, "lacks": tuple(lacks.values()), **node}
            raise RefusedError(Refusal(RefusalKind.NO_ROOM_LEFT, facts))
        best = goes_to[name] = max(fitting, key=lambda room_item: round(rooms[room_item].cores, 6))
        room = rooms[best]
        room.cores -= limits.cores or 1.0
        room.memory_bytes -= limits.memory_bytes or 0
        room.gpus -= limits.gpus or 0
        room.nic_bytes_per_second -= role.nic_bytes_per_second or 0.0
    placed = tuple(goes_to[name] for name, _ in tasks)
    return Plan(strategy="roles", workers=len(tasks), batch_per_worker=None, worker_nodes=placed)


def place_job(job: Job, plan: Plan, nodes: Sequence[Node]) -> Plan:
    """Place the plan of a job on these nodes. Placed tasks move only if the job has roles.

    Raises:
        RefusedError: A task of a role fits on no node.
    """
    return place_roles(job, nodes) if job.roles else place(plan, nodes)


def place_within(
    plan: Plan, nodes: Sequence[Node], fits: Callable[[str, int, int], bool]
) -> Plan | None:
    """Place a plan by the same rule within the available room; None: not enough room.

    Args:
        plan: The plan; nodes that it names are ignored.
        nodes: The nodes.
        fits: Whether a node has room for this many workers and servers of the plan.
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
        left = [
            node
            for node in nodes
            if fits(node.name, beside[node.name], servers.count(node.name) + 1)
        ]
        if not left:
            return None
        servers.append(for_server(left, beside, Counter(servers)))
    return replace(plan, worker_nodes=workers, server_nodes=tuple(servers))


def grouped(workers: Sequence[str]) -> tuple[str, ...]:
    """Nodes of workers, grouped by node, as launchers number them."""
    first = list(dict.fromkeys(workers))
    return tuple(sorted(workers, key=first.index))


def unplaced(plan: Plan) -> Plan:
    """A copy of the plan without nodes."""
    return replace(plan, worker_nodes=(), server_nodes=())


def with_more(
    taken: Sequence[str],
    count: int,
    nodes: Sequence[Node],
    cores: float | None = None,
    beside: Mapping[str, float] | None = None,
) -> tuple[str, ...]:
    """Nodes of `count` workers, the first ones on the nodes `taken`.

    Args:
        taken: Nodes of the workers that are placed already.
        count: Number of workers in all.
        nodes: The available nodes.
        cores: Cores of each worker, if stated.
        beside: As of `place`.
    """
    workers = list(taken[:count])
    cores_used = _with(beside, workers)
    ranked = [
        (_rank(node, cores_used[node.name], cores), place) for place, node in enumerate(nodes)
    ]
    heapify(ranked)
    while len(workers) < count:
        place = ranked[0][1]
        node = nodes[place]
        workers.append(node.name)
        cores_used[node.name] += 1
        heapreplace(ranked, (_rank(node, cores_used[node.name], cores), place))
    return tuple(workers)


def _with(beside: Mapping[str, float] | None, workers: Sequence[str]) -> defaultdict[str, float]:
    cores_used = defaultdict(float, beside or {})
    for name in workers:
        cores_used[name] += 1
    return cores_used


def for_worker(
    nodes: Sequence[Node], workers: Mapping[str, float], cores: float | None = None
) -> str:
    """The node on which one more worker has the most cores. Among equal nodes: the fewest workers,
    then the first.

    The worker gets an equal part of the cores, or with `cores` for each worker what is left.
    """
    return min(nodes, key=lambda node: _rank(node, workers.get(node.name, 0), cores)).name


def _rank(node: Node, cores_here: float, cores: float | None) -> tuple[float, float]:
    """Sort key of a node for one more worker: the lowest first."""
    room = node.cores / (cores_here + 1) if cores is None else node.cores - cores * cores_here
    return -round(room, 6), cores_here


def for_server(
    nodes: Sequence[Node], workers: Mapping[str, float], servers: Mapping[str, int]
) -> str:
    """The node with the fewest workers. Among equal nodes: the fewest servers, then the most cores,
    then the first.
    """
    return min(
        nodes, key=lambda node: (workers.get(node.name, 0), servers.get(node.name, 0), -node.cores)
    ).name
