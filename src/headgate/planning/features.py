"""Features of plans that determine their speed, as arrays over a space of plans."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headgate.model.cluster import Cluster, Node
from headgate.model.plans import Plan
from headgate.planning.kinds import name_of

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]

_SERVER_CORES = 2.0  # a server has one thread for the network and one that adds gradients


@dataclass(frozen=True, slots=True)
class Device:
    """The device of a node's workers, relative to a core of the node that the profile was measured
    on.

    Args:
        overhead: Compute that does not depend on the batch, relative.
        work: Compute of a sample, relative.
        gpu: Whether it is a GPU, so that more cores do not help.
        core: Relative speed of a core of the node, for its servers.
        reads: Relative seconds to read a sample; 0: the training process does not read.
        bends: Batches in ascending order, each with its compute time relative to the fitted line.
    """

    overhead: float = 1.0
    work: float = 1.0
    gpu: bool = False
    core: float = 1.0
    reads: float = 0.0
    bends: tuple[tuple[float, float], ...] = ()

    def bent(self, batch: Floats) -> Floats:
        """Compute time of batches relative to the fitted line; beyond the measured batches, as at
        the nearest one.
        """
        if not self.bends:
            return np.ones_like(batch)
        sizes, factors = np.log(np.array(self.bends).T)
        return np.asarray(np.exp(np.interp(np.log(np.maximum(batch, 1.0)), sizes, factors)))


@dataclass(frozen=True, slots=True)
class Known:
    """What a job's profile tells about the job and the nodes.

    Args:
        devices: Devices of workers, by node name.
        usual_rate: Assumed bytes a second of a NIC with unknown rate.
        inside: Transfer time within a node relative to the fastest node, by node name.
        dense: Fraction of the model's bytes with a dense gradient.
        sparse_sample: Fraction of the model with a sparse gradient that a sample touches.
        sparse_most: Fraction that the largest batch touches: all of it.
        rows: CPU cost of a byte of sparse rows relative to a dense byte, for a worker and a server.
        batch: Samples of a step as the script requests them; None: unknown.
        plain: CPU cost of a byte around a ring relative to a byte to a server and back.
        late: Fraction of the dense gradients sent only after all are computed, in an all-reduce and
            to servers.
    """

    devices: Mapping[str, Device] = field(default_factory=dict)
    usual_rate: float | None = None
    inside: Mapping[str, float] = field(default_factory=dict)
    dense: float = 1.0
    sparse_sample: float = 0.0
    sparse_most: float = 0.0
    rows: tuple[float, float] = (1.0, 1.0)
    batch: int | None = None
    plain: float = 1.0
    late: tuple[float, float] = (0.0, 0.0)

    def sparse(self, batch: Floats) -> Floats:
        """Fraction of the model with a sparse gradient that batches touch."""
        return np.asarray(np.minimum(self.sparse_sample * batch, self.sparse_most))

    def handled(
        self, sparse: Floats, workers: Floats, servers: Floats, nodes: Floats, on_cores: Flags
    ) -> Floats:
        """Copies of the model that a worker's cores send and receive, each way. Sparse rows count
        by their cost.

        Args:
            sparse: Fraction of the model in rows that a worker's batch touches.
            workers: Workers of each plan.
            servers: Servers of each plan.
            nodes: Nodes with workers.
            on_cores: Whether cores compute; GPUs send around a ring by themselves.
        """
        served, around = (
            self.dense + sparse * self.rows[0],
            self.dense + sparse * self.rows[0] * workers / 2,
        )
        return np.asarray(
            np.where(
                servers > 0, served, on_cores * ring_copies(workers, nodes) * around * self.plain
            )
        )


NOTHING = Known()


@dataclass(frozen=True, slots=True)
class Features:
    """Arrays with a row for each plan.

    Equal workers form one class. There are as many class columns as the most mixed plan needs;
    unused ones have count 0.

    Args:
        counts: Workers of each class, (plans, classes).
        batches: Samples of a step of each worker of the class.
        cores: Cores of each worker of the class; 1 if not stated, and on a GPU.
        overhead: Relative fixed compute of the class's device.
        work: Relative compute of a sample.
        reads: Relative seconds to read a sample.
        kinds: Index of the class's kind of node.
        hosts: 1 if the computing cores also send and serve; 0 on a GPU or an unknown node.
        beside: Fraction of all updates done by servers on its node, divided by the node's cores. 0
            if the cores of each task are stated, and on a GPU.
        kind_names: Names of the kinds.
        workers: Workers of the plan, (plans,).
        waited_for: Workers that a synchronous step waits for: all without backups.
        servers: Parameter servers.
        ring: Copies of the model through each NIC in a ring over several nodes, for an all-reduce.
        inside: The same with all workers on one node, in units of the fastest node.
        inside_slowness: Transfer time within that node relative to the fastest node; 0 with several
            nodes.
        crowded: Logarithm of the most workers on a node whose cores do not compute but are shared.
        nodes: Nodes with workers.
        to_servers: Copies of the model each way through the busiest NIC of a node with servers, in
            units of the fastest NIC.
        to_workers: The same for a node without servers.
        handled: Copies of the model that a worker's cores send and receive in a step, each way;
            rows count by their cost.
        applied: Copies that a worker's step requests from servers; rows count by their cost.
        server_cores: Cores of the slowest server; 1 if not stated.
        late: Fraction of the data sent only after all compute.
        synchronous: 1 or 0.
        bounded: 1 if asynchronous workers have bounded staleness, else 0.
        samples: Samples of a step that count.
        shape: Columns that distinguish plans for the residuals: logarithms and flags, without
            constant ones.
    """

    counts: Floats
    batches: Floats
    cores: Floats
    overhead: Floats
    work: Floats
    reads: Floats
    kinds: Indices
    hosts: Floats
    beside: Floats
    kind_names: tuple[str, ...]
    workers: Floats
    waited_for: Floats
    servers: Floats
    ring: Floats
    inside: Floats
    inside_slowness: Floats
    crowded: Floats
    nodes: Floats
    to_servers: Floats
    to_workers: Floats
    handled: Floats
    applied: Floats
    server_cores: Floats
    late: Floats
    synchronous: Floats
    bounded: Floats
    samples: Floats
    shape: Floats


def features(
    space: Sequence[Plan], cluster: Cluster | None, batch: float, known: Known = NOTHING
) -> Features:
    """The features of plans.

    Args:
        space: At least one plan.
        cluster: Cluster of the plans; None: their nodes are unknown.
        batch: Samples of a worker's step if neither its plan nor `known` says.
        known: What the job's profile tells.
    """
    nodes = {node.name: node for node in cluster.nodes} if cluster is not None else {}
    rate = _rates(nodes, known)
    kind_names = tuple({name_of(node): None for node in nodes.values()} or {"": None})
    rows = [_classes(plan, nodes, batch, known) for plan in space]
    width = max(len(row) for row in rows)
    counts, batches, cores, overhead, work, reads, hosts, beside = (
        np.zeros((len(space), width)) for _ in range(8)
    )
    kind = np.zeros((len(space), width), np.intp)
    for i, row in enumerate(rows):
        for j, (kind_column, count) in enumerate(sorted(row.items())):
            size, of_cores, name, extra, more, read, computes, serving = kind_column
            counts[i, j], batches[i, j], cores[i, j], kind[i, j] = (
                count,
                size,
                of_cores,
                kind_names.index(name),
            )
            overhead[i, j], work[i, j], reads[i, j], hosts[i, j], beside[i, j] = (
                extra,
                more,
                read,
                computes,
                serving,
            )
    cores[counts == 0] = 1.0
    loads = [_loads(plan, rate, known) for plan in space]
    array = np.array(
        [
            (
                plan.workers,
                plan.workers - plan.backup_workers,
                plan.servers,
                *load,
                _server_cores(plan, nodes, known),
                plan.synchronous,
                plan.staleness is not None,
            )
            for plan, load in zip(space, loads)
        ],
        dtype=np.float64,
    ).T
    workers, waited_for, servers, *through, server_cores, synchronous, bounded = array
    ring, inside, inside_slowness, crowded, on_nodes, to_servers, to_workers = through
    sparse = (counts * known.sparse(batches)).sum(1) / workers
    pushed = known.dense + sparse
    gathered = known.dense + sparse * workers / 2  # each worker gets the rows of all others
    return Features(
        counts=counts,
        batches=batches,
        cores=cores,
        overhead=overhead,
        work=work,
        reads=reads,
        kinds=kind,
        hosts=hosts,
        beside=beside,
        kind_names=kind_names,
        workers=workers,
        waited_for=waited_for,
        servers=servers,
        ring=ring * gathered,
        inside=inside * gathered,
        inside_slowness=inside_slowness,
        crowded=crowded,
        nodes=on_nodes,
        to_servers=to_servers * pushed,
        to_workers=to_workers * pushed,
        handled=known.handled(sparse, workers, servers, on_nodes, (hosts * counts).max(1) > 0),
        applied=known.dense + sparse * known.rows[1],
        server_cores=server_cores,
        late=np.where(servers > 0, known.late[1], known.late[0]),
        synchronous=synchronous,
        bounded=bounded,
        samples=np.asarray((counts * batches).sum(1) * waited_for / workers),
        shape=_shape(space, rows, on_nodes, kind_names),
    )


_Place = tuple[float, str, float, float, float, float, float]
"""Cores, name of the kind of node, relative needs of its device, `hosts` and `beside`."""
_Class = tuple[float, float, str, float, float, float, float, float]
"""Samples of a step, and the `_Place`."""


def ring_copies(workers: Floats, nodes: Floats) -> Floats:
    """Copies of the model that a worker sends, and receives, around a ring over several nodes."""
    return np.asarray(np.where(nodes > 1, 2 * (workers - 1) / workers, 0.0))


def repeated(of: Features, times: int) -> Features:
    """The features repeated `times` times."""
    return _each(of, lambda array: np.tile(array, (times, *(1,) * (array.ndim - 1))))


def part(of: Features, at: Indices) -> Features:
    """The features of some plans."""
    return _each(of, lambda array: array[at])


def _each(of: Features, change: Callable[[Any], Any]) -> Features:
    arrays = {f.name: change(getattr(of, f.name)) for f in fields(of) if f.name != "kind_names"}
    return replace(of, **arrays)


def _rates(nodes: Mapping[str, Node], known: Known) -> Callable[[str], float]:
    """Slowness of a node's NIC: its transfer time relative to the fastest NIC."""
    nic_rates = {
        name: node.nic_bytes_per_second or known.usual_rate for name, node in nodes.items()
    }
    fastest = max((rate or 0.0 for rate in nic_rates.values()), default=0.0)
    return lambda name: fastest / rate if (rate := nic_rates.get(name)) else 1.0


def _classes(plan: Plan, nodes: Mapping[str, Node], batch: float, known: Known) -> Counter[_Class]:
    """Classes of equal workers."""
    workers_by_node, serving = Counter(plan.worker_nodes), Counter(plan.server_nodes)
    counter: Counter[_Class] = Counter()
    first = next(map(name_of, nodes.values()), "")
    on_node: dict[str | None, _Place] = {}
    if plan.batch_per_worker is None and known.batch is not None:
        batch = float(known.batch) / (plan.workers if plan.synchronous else 1)
    for i in range(plan.workers):
        name = plan.worker_nodes[i] if plan.worker_nodes else None
        if name not in on_node:
            part = serving[name or ""] / max(plan.servers, 1)
            on_node[name] = _on_node(
                plan, nodes.get(name or ""), workers_by_node[name or ""], part, first, known
            )
        size = plan.batch_per_worker
        own_size = size[i] if isinstance(size, tuple) else size
        samples = float(batch if own_size is None else own_size)
        cores, kind, overhead, work, reads, hosts, beside = on_node[name]
        device = known.devices.get(name or "")
        bent = float(device.bent(np.array(samples))) if device is not None and device.bends else 1.0
        counter[samples, cores, kind, overhead * bent, work * bent, reads, hosts, beside] += 1
    return counter


def _on_node(
    plan: Plan, node: Node | None, workers: int, served: float, first: str, known: Known
) -> _Place:
    """The place of each worker on a node whose servers do the fraction `served` of the updates."""
    cores = plan.cores_per_worker
    if node is None:
        return 1.0 if cores is None else cores, first, 1.0, 1.0, 0.0, 0.0, 0.0
    device = known.devices.get(node.name, Device(gpu=bool(node.gpus) and cores is None))
    if device.gpu:
        return 1.0, name_of(node), device.overhead, device.work, device.reads, 0.0, 0.0
    own = node.cores / workers
    beside = served / (node.cores * device.core) if cores is None else 0.0
    granted = own if cores is None else min(cores, own)
    return granted, name_of(node), device.overhead, device.work, device.reads, 1.0, beside


def _server_cores(plan: Plan, nodes: Mapping[str, Node], known: Known) -> float:
    """Cores of the slowest server, in cores of the node that the profile was measured on."""
    if not known.devices or not plan.server_nodes:
        return plan.cores_per_server or 1.0
    counter = Counter((*plan.worker_nodes, *plan.server_nodes))
    return min(
        server_cores(nodes[name], counter[name], plan.cores_per_server) * known.devices[name].core
        for name in dict.fromkeys(plan.server_nodes)
        if name in nodes
    )


def server_cores(node: Node, tasks: int, stated: float | None) -> float:
    """Cores with which a server applies updates on a node with this many tasks."""
    return min(node.cores / tasks, _SERVER_CORES if stated is None else stated)


def _loads(plan: Plan, slowness: Callable[[str], float], known: Known) -> tuple[float, ...]:
    """Loads of a plan: ring over nodes, ring within one, its slowness, `crowded`, nodes with
    workers, and the traffic of the busiest NICs with and without servers.

    A plan that is not placed has each task on its own node.
    """
    on = Counter(plan.worker_nodes or (f"worker {i}" for i in range(plan.workers)))
    sharing = [
        count
        for name, count in on.items()
        if (device := known.devices.get(name)) is None or device.gpu
    ]
    crowded = math.log(max(sharing, default=1))
    if plan.strategy != "ps":
        ring = 2 * (plan.workers - 1) / plan.workers
        if len(on) == 1:
            slow = known.inside.get(next(iter(on)), 1.0)
            return 0.0, ring * slow, slow * (ring > 0), crowded, 1.0, 0.0, 0.0
        return ring * max(map(slowness, on)), 0.0, 0.0, crowded, float(len(on)), 0.0, 0.0
    serving = Counter(plan.server_nodes or (f"server {j}" for j in range(plan.servers)))
    with_servers = without = 0.0
    for name in {*on, *serving}:
        away = plan.workers - on[name]
        load = (
            slowness(name)
            * (serving[name] * away + on[name] * (plan.servers - serving[name]))
            / plan.servers
        )
        if serving[name]:
            with_servers = max(with_servers, load)
        else:
            without = max(without, load)
    return 0.0, 0.0, 0.0, crowded, float(len(on)), with_servers, without


def _shape(
    space: Sequence[Plan], rows: Sequence[Counter[_Class]], nodes: Floats, kinds: Sequence[str]
) -> Floats:
    table = []
    for plan, classes, on_nodes in zip(space, rows, nodes):
        node_counts = Counter(plan.worker_nodes).values() or (1,)
        sizes = [size for size, *_ in classes]
        staleness = 9.0 if plan.staleness is None else min(plan.staleness, 8.0)
        if plan.synchronous:
            staleness = 0.0
        of_kind = [
            sum(count for (_, _, name, *_), count in classes.items() if name == kind)
            for kind in kinds
        ]
        table.append(
            [
                math.log(plan.workers),
                math.log(max(plan.servers, 1)),
                math.log(sum(size * count for (size, *_), count in classes.items()) / plan.workers),
                math.log(max(sizes) / min(sizes)),
                math.log(on_nodes),
                math.log(max(node_counts)),
                math.log(max(node_counts) / min(node_counts)),
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
