"""What of a plan bears on its speed, as arrays over a space of plans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from headgate.cluster import Cluster, Node
from headgate.plans import Plan

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Traits:
    """Arrays with a row for each plan. Workers that are alike are one class; there are as many columns for classes as
    the most mixed plan has, the rest of them with count 0.

    Args:
        counts: Workers of each class, (plans, classes).
        batches: Samples of a step of each worker of the class.
        cores: Cores of each worker of the class; 1 where nobody said.
        kinds: Index of the kind of node that the class is on.
        kind_names: Names of the kinds.
        workers: Workers of the plan, (plans,).
        waited_for: Workers that a synchronous step waits for: all but the backups.
        servers: Parameter servers.
        ring: Copies of the model through each NIC in a ring over several nodes, for all-reduce.
        inside: The same where all workers are on one node.
        nodes: Nodes with workers.
        to_servers: Copies of the model each way through the busiest NIC of a node with servers, in units of the
            fastest NIC.
        to_workers: The same of a node without.
        server_cores: Cores of each server; 1 where nobody said.
        synchronous: 1 or 0.
        shape: Columns that tell plans apart for what physics leaves over: logarithms and flags; constant ones left out.
    """

    counts: Floats
    batches: Floats
    cores: Floats
    kinds: Indices
    kind_names: tuple[str, ...]
    workers: Floats
    waited_for: Floats
    servers: Floats
    ring: Floats
    inside: Floats
    nodes: Floats
    to_servers: Floats
    to_workers: Floats
    server_cores: Floats
    synchronous: Floats
    shape: Floats

    @property
    def samples(self) -> Floats:
        """Samples of a step that count, (plans,)."""
        return np.asarray((self.counts * self.batches).sum(1) * self.waited_for / self.workers)


def traits(space: Sequence[Plan], cluster: Cluster | None, batch: float) -> Traits:
    """The traits of plans.

    Args:
        space: At least one plan.
        cluster: Where they are placed; None: nothing is known of their nodes.
        batch: Samples of a step of a worker whose plan does not say.
    """
    nodes = {node.name: node for node in cluster.nodes} if cluster is not None else {}
    fastest = max((node.nic_bytes_per_second or 0.0 for node in nodes.values()), default=0.0)
    kinds = {_kind(node): None for node in nodes.values()} or {"": None}
    kind_names = tuple(kinds)
    rows = [_classes(plan, nodes, batch) for plan in space]
    width = max(len(row) for row in rows)
    counts, batches, cores = (np.zeros((len(space), width)) for _ in range(3))
    kind = np.zeros((len(space), width), np.intp)
    for i, row in enumerate(rows):
        for j, ((size, of_cores, name), count) in enumerate(sorted(row.items())):
            counts[i, j], batches[i, j], cores[i, j], kind[i, j] = count, size, of_cores, kind_names.index(name)
    cores[counts == 0] = 1.0
    loads = [_loads(plan, nodes, fastest) for plan in space]
    array = np.array(
        [
            (plan.workers, plan.workers - plan.backup_workers, plan.servers, *load, plan.synchronous)
            for plan, load in zip(space, loads)
        ],
        dtype=np.float64,
    ).T
    workers, waited_for, servers, ring, inside, on_nodes, to_servers, to_workers, synchronous = array
    return Traits(
        counts=counts,
        batches=batches,
        cores=cores,
        kinds=kind,
        kind_names=kind_names,
        workers=workers,
        waited_for=waited_for,
        servers=servers,
        ring=ring,
        inside=inside,
        nodes=on_nodes,
        to_servers=to_servers,
        to_workers=to_workers,
        server_cores=np.array([plan.cores_per_server or 1.0 for plan in space]),
        synchronous=synchronous,
        shape=_shape(space, rows, on_nodes, kind_names),
    )


def _kind(node: Node) -> str:
    gpus = "+".join(sorted(gpu.name for gpu in node.gpus))
    return node.kind or f"{gpus or node.cpu_model} {node.core_gflops or ''}".strip()


def _classes(plan: Plan, nodes: dict[str, Node], batch: float) -> Counter[tuple[float, float, str]]:
    """Workers by samples of a step, cores and kind of node."""
    there = Counter(plan.worker_nodes)
    found: Counter[tuple[float, float, str]] = Counter()
    for i in range(plan.workers):
        size = plan.batch_per_worker
        node = nodes.get(plan.worker_nodes[i]) if plan.worker_nodes else None
        own = node.cores / there[node.name] if node is not None and not node.gpus else 1.0
        cores = own if plan.cores_per_worker is None else plan.cores_per_worker
        samples = batch if size is None else size[i] if isinstance(size, tuple) else size
        found[float(samples), cores, _kind(node) if node is not None else next(map(_kind, nodes.values()), "")] += 1
    return found


def _loads(plan: Plan, nodes: dict[str, Node], fastest: float) -> tuple[float, float, float, float, float]:
    """Ring over nodes, ring inside one, nodes with workers, and what goes through the busiest NICs of nodes with
    servers and of those without. A plan that is not placed has each task on a node of its own."""

    def slowness(name: str) -> float:
        rate = nodes[name].nic_bytes_per_second if name in nodes else None
        return fastest / rate if rate else 1.0

    on = Counter(plan.worker_nodes or (f"worker {i}" for i in range(plan.workers)))
    if plan.strategy != "ps":
        ring = 2 * (plan.workers - 1) / plan.workers
        if len(on) == 1:
            return 0.0, ring, 1.0, 0.0, 0.0
        return ring * max(map(slowness, on)), 0.0, float(len(on)), 0.0, 0.0
    serving = Counter(plan.server_nodes or (f"server {j}" for j in range(plan.servers)))
    with_servers = without = 0.0
    for name in {*on, *serving}:
        away = plan.workers - on[name]
        load = slowness(name) * (serving[name] * away + on[name] * (plan.servers - serving[name])) / plan.servers
        if serving[name]:
            with_servers = max(with_servers, load)
        else:
            without = max(without, load)
    return 0.0, 0.0, float(len(on)), with_servers, without


def _shape(
    space: Sequence[Plan], rows: Sequence[Counter[tuple[float, float, str]]], nodes: Floats, kinds: Sequence[str]
) -> Floats:
    table = []
    for plan, classes, on_nodes in zip(space, rows, nodes):
        there = Counter(plan.worker_nodes).values() or (1,)
        sizes = [size for size, _, _ in classes]
        staleness = 0.0 if plan.synchronous else 9.0 if plan.staleness is None else min(plan.staleness, 8.0)
        of_kind = [sum(count for (*_, name), count in classes.items() if name == kind) for kind in kinds]
        table.append(
            [
                math.log(plan.workers),
                math.log(max(plan.servers, 1)),
                math.log(sum(size * count for (size, *_), count in classes.items()) / plan.workers),
                math.log(max(sizes) / min(sizes)),
                math.log(on_nodes),
                math.log(max(there)),
                math.log(max(there) / min(there)),
                math.log(len({*plan.worker_nodes, *plan.server_nodes}) or plan.tasks),
                math.log(plan.cores_per_worker or 1.0),
                math.log(plan.cores_per_server or 1.0),
                math.log1p(plan.backup_workers),
                math.log1p(staleness),
                2.0 * (plan.strategy == "ps"),
                2.0 * (not plan.synchronous),
                *(count / plan.workers for count in of_kind[1:]),
            ]
        )
    columns = np.array(table, dtype=np.float64)
    spread = columns.std(0)
    return np.asarray(columns[:, spread > 1e-9] / spread[spread > 1e-9])
