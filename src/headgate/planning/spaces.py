"""All layouts of a job over kinds of nodes, costed many at a time without naming nodes.

A layout is a row of counts: how many nodes of each kind have each pattern (workers and servers on a
node). Thousands of nodes cost as little time as a few.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from headgate.model.plans import Plan, Strategy
from headgate.planning import physics
from headgate.planning.cost import CostModel
from headgate.planning.features import Device, Features, Flags, Floats, Indices, server_cores
from headgate.planning.joining import alone, serves
from headgate.planning.kinds import name_of
from headgate.planning.memory import most_gpu_bytes
from headgate.planning.patterns import Mode, modes, patterns

_BISECTIONS = 26


@dataclass(frozen=True, slots=True)
class Costed:
    """Costed layouts.

    Args:
        throughput: Samples a second; 0: impossible.
        nodes: Number of nodes.
        tasks: Number of workers and servers.
    """

    throughput: Floats
    nodes: Indices
    tasks: Indices


class Space:
    """The layouts of a job.

    For each pattern it keeps the kind, workers, servers and NIC slowness. For its workers it keeps
    the cores, the device's needs and its speed.

    Args:
        costs: The cost model.
        used: Names of nodes that other jobs have; they stay unused.
    """

    def __init__(self, costs: CostModel, used: Collection[str] = ()) -> None:
        self.costs = costs
        self.job = costs.job
        self.names = tuple(
            tuple(name for name in kind.names if name not in used) for kind in costs.kinds
        )
        self.free = np.array([len(names) for names in self.names], np.intp)
        self.joins = not alone(costs.job, costs.profile)
        self.serves = serves(costs.job, costs.profile)
        self.patterns = patterns(costs, self.free, serves=self.serves, joins=self.joins)
        self.modes = modes(self.job, serves=self.serves, joins=self.joins)
        kinds = [costs.kinds[pattern.kind] for pattern in self.patterns]
        self.kind = np.array([pattern.kind for pattern in self.patterns], np.intp)
        self.workers = np.array([pattern.workers for pattern in self.patterns], np.intp)
        self.servers = np.array([pattern.servers for pattern in self.patterns], np.intp)
        devices = [costs.known.devices.get(kind.node.name, Device()) for kind in kinds]
        self.on_gpu = np.array([device.gpu for device in devices], bool)
        self.has_gpus = bool(self.on_gpu.any())
        own = [kind.node.cores / max(p.workers, 1) for kind, p in zip(kinds, self.patterns)]
        self.cores_alone = np.where(self.on_gpu, 1.0, np.array(own))
        self.overhead = np.array([device.overhead for device in devices])
        self.work = np.array([device.work for device in devices])
        self.reads = np.array([device.reads for device in devices])
        self._core = np.array([device.core for device in devices])
        self._devices = devices
        self.least_bent = np.array(
            [min((bend for _, bend in device.bends), default=1.0) for device in devices]
        )
        rates = np.array(
            [kind.node.nic_bytes_per_second or costs.known.usual_rate for kind in costs.kinds]
        )
        self.slowness = (rates.max() / rates)[self.kind]
        self.inside_slowness = np.array([costs.known.inside[kind.node.name] for kind in kinds])
        self._memory = np.array([float(kind.node.memory_bytes) for kind in kinds])
        self._gpu_memory = np.array([most_gpu_bytes(kind.node) for kind in kinds])
        names = list(dict.fromkeys(name_of(node) for node in costs.cluster.nodes))
        self._kind_names = tuple(names)
        self._speed_of = np.array([names.index(kind.name) for kind in kinds], np.intp)
        speeds = np.exp(np.concatenate([[0.0], costs.prior.mean[len(physics.NAMES) :]]))
        self.speeds = speeds[self._speed_of]
        self._served = np.array(
            [p.servers / (k.node.cores * d.core) for p, k, d in zip(self.patterns, kinds, devices)]
        )
        self._p = physics.by_name(costs.prior.mean)

    # --- costing ----------------------------------------------------------------------------------

    def cost(self, rows: Indices, mode: Mode) -> Costed:
        """Cost layouts.

        Args:
            rows: Nodes of each pattern, (layouts, patterns).
            mode: How their workers cooperate.
        """
        counts = rows * self.workers
        total, servers = counts.sum(1), (rows * self.servers).sum(1)
        nodes, tasks = rows.sum(1), total + servers
        cores = self._cores(tasks)
        batch = self.costs.batch * mode.scale
        runs = self._allowed(rows, total, servers, mode)
        if self.costs.grows:
            batches = np.full(rows.shape, float(batch))
        else:
            runs &= total <= batch
            batches = self._divided(counts, cores, batch, mode)
        runs &= self._fits(rows, batches, servers)
        throughput = np.zeros(len(rows))
        if runs.any():
            at = np.flatnonzero(runs)
            batch_total = np.full(at.size, float(batch)) * (total[at] if self.costs.grows else 1)
            of = self._features(rows[at], batches[at], cores[at], batch_total, mode)
            throughput[at] = physics.seconds(self.costs.prior.mean, of).throughput
        return Costed(throughput, nodes, tasks)

    def _cores(self, tasks: Indices) -> Floats:
        """Cores of each worker of a pattern, (layouts, patterns)."""
        own = self.cores_alone[None, :]
        if self.job.limits.cores is None:
            return np.repeat(own, len(tasks), 0)
        return np.where(self.on_gpu, 1.0, np.minimum(own, self._share(tasks)[:, None]))

    def _share(self, tasks: Indices) -> Floats:
        """Cores of each task, within the job's limit."""
        return np.maximum(
            np.floor((self.job.limits.cores or 0.0) / np.maximum(tasks, 1) * 100) / 100, 0.01
        )

    def _allowed(self, rows: Indices, workers: Indices, servers: Indices, mode: Mode) -> Flags:
        fewest, most = self.job.limits.workers
        most = most if self.joins else 1
        fine = (workers >= fewest) & (workers >= 1) & (rows >= 0).all(1)
        if most is not None:
            fine &= workers <= most
        for kind in range(len(self.free)):
            fine &= rows[:, self.kind == kind].sum(1) <= self.free[kind]
        if not mode.synchronous or mode.backups:
            fine &= (servers > 0) & (workers > mode.backups)
        if mode.scale > 1:
            fine &= workers >= mode.scale  # no worker takes more than the script's own batch
        return np.asarray(fine)

    def _compute(self, cores: Floats) -> tuple[Floats, Floats]:
        """Seconds of a worker's step: the fixed part, and the part for each sample."""
        fixed, sample, read = physics.compute(
            self._p, self.overhead, self.work, self.reads, cores, self.speeds
        )
        return fixed, sample + read

    def _divided(self, counts: Indices, cores: Floats, batch: int, mode: Mode) -> Floats:
        """Most samples of each worker: equal parts for a script of another launcher."""
        if not mode.synchronous:
            return np.full(counts.shape, float(batch))
        if self.costs.profile.observed:
            return np.repeat(
                np.ceil(batch / np.maximum(counts.sum(1), 1))[:, None], counts.shape[1], 1
            )
        return self._batches(counts, cores, batch)

    def _batches(self, counts: Indices, cores: Floats, batch: int) -> Floats:
        """Most samples of each worker, in whole numbers from 1, such that the slowest worker
        finishes earliest.
        """
        fixed, sample = self._compute(cores)
        used_counts = np.where(counts > 0, counts, 0)
        rate = (used_counts / sample).sum(1)
        usual = (batch + (used_counts * fixed / sample).sum(1)) / np.where(rate > 0, rate, np.inf)
        high = usual + np.where(used_counts > 0, sample, 0.0).max(1) + 1e-12
        low = np.zeros_like(high)
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            maximum = np.maximum(np.floor((middle[:, None] - fixed) / sample), 1.0)
            enough = (used_counts * maximum).sum(1) >= batch
            high, low = np.where(enough, middle, high), np.where(enough, low, middle)
        return np.asarray(np.maximum(np.floor((high[:, None] - fixed) / sample + 1e-9), 1.0))

    def _fits(self, rows: Indices, batches: Floats, servers: Indices) -> Flags:
        """Whether all tasks have enough memory."""
        memory, served = self.costs.memory_of, servers[:, None] > 0
        among = np.maximum((rows * self.workers).sum(1), 1)[:, None]
        worker = (
            memory.worker
            + memory.sample * batches
            + np.where(served, 0.0, memory.sparse)
            + memory.sharded / among
        )
        server = memory.server + memory.served / np.maximum(servers[:, None], 1)
        misses = self.workers * worker + self.servers * server > self._memory
        most = self.job.limits.memory_bytes
        if most is not None:
            misses |= (worker > most) & (self.workers > 0) | (server > most) & (self.servers > 0)
        if memory.gpu is not None:
            held = memory.gpu + memory.gpu_sample * batches + memory.gpu_sharded / among
            misses |= self.on_gpu & (self.workers > 0) & (held > self._gpu_memory)
        return np.asarray(~(misses & (rows > 0)).any(1))

    def _features(
        self, rows: Indices, batches: Floats, cores: Floats, batch: Floats, mode: Mode
    ) -> Features:
        counts = (rows * self.workers).astype(np.float64)
        workers, servers = counts.sum(1), (rows * self.servers).sum(1).astype(np.float64)
        works, serves, is_present = self.workers > 0, self.servers > 0, rows > 0
        divided = np.maximum(servers, 1)[:, None]
        away = self.servers * (workers[:, None] - self.workers) + self.workers * (
            divided - self.servers
        )
        load = np.where(is_present & (servers > 0)[:, None], self.slowness * away / divided, 0.0)
        nodes = (rows * works).sum(1).astype(np.float64)
        ring = 2 * (workers - 1) / workers * (servers == 0)
        slowest = np.where(is_present & works, self.slowness, 0.0).max(1)
        # If all workers are on one node, the layout has only its pattern.
        inside = np.where(is_present & works, self.inside_slowness, 0.0).max(1) * (
            (nodes == 1) & (ring > 0)
        )
        sharing = np.where(is_present & works & self.on_gpu, self.workers, 1).max(1)
        sparse = (counts * self.costs.known.sparse(batches)).sum(1) / workers
        known = self.costs.known
        pushed = known.dense + sparse
        gathered = known.dense + sparse * workers / 2
        waited_for = workers - mode.backups
        samples = batch * waited_for / workers if mode.synchronous else batch * workers
        stated = (
            None
            if self.job.limits.cores is None
            else self._share((workers + servers).astype(np.intp))
        )
        bent = np.stack([device.bent(batches[:, i]) for i, device in enumerate(self._devices)], 1)
        return Features(
            counts=counts,
            batches=batches,
            cores=cores,
            overhead=self.overhead * bent,
            work=self.work * bent,
            reads=np.broadcast_to(self.reads, rows.shape),
            kinds=np.broadcast_to(self._speed_of, rows.shape),
            hosts=np.broadcast_to(np.where(self.on_gpu, 0.0, 1.0), rows.shape),
            beside=np.where(self.on_gpu | (stated is not None), 0.0, self._served) / divided,
            kind_names=self._kind_names,
            workers=workers,
            waited_for=waited_for,
            servers=servers,
            ring=np.where(nodes > 1, ring * slowest, 0.0) * gathered,
            inside=ring * inside * gathered,
            inside_slowness=inside,
            crowded=np.log(sharing),
            nodes=nodes,
            to_servers=np.where(serves, load, 0.0).max(1) * pushed,
            to_workers=np.where(serves, 0.0, load).max(1) * pushed,
            handled=known.handled(
                sparse, workers, servers, nodes, (rows * works * ~self.on_gpu).max(1) > 0
            ),
            applied=known.dense + sparse * known.rows[1],
            server_cores=self._server_cores(is_present & serves, stated),
            late=np.where(servers > 0, known.late[1], known.late[0]),
            synchronous=np.full(len(rows), float(mode.synchronous)),
            bounded=np.full(len(rows), float(mode.staleness is not None)),
            samples=np.asarray(samples),
            shape=np.zeros((len(rows), 0)),
        )

    def _server_cores(self, serving: Flags, stated: Floats | None) -> Floats:
        """Cores of the slowest server of each layout."""
        nodes = [self.costs.kinds[kind].node for kind in self.kind]
        own = [
            server_cores(
                node, max(p.workers + p.servers, 1), math.inf if stated is not None else None
            )
            for node, p in zip(nodes, self.patterns)
        ]
        cores = np.broadcast_to(np.array(own), serving.shape)
        if stated is not None:
            cores = np.minimum(cores, stated[:, None])
        least = np.where(serving, cores * self._core, np.inf).min(1)
        return np.asarray(np.where(np.isfinite(least), least, 1.0))

    # --- plans ------------------------------------------------------------------------------------

    def plan(self, row: Indices, mode: Mode) -> Plan:
        """A layout as a plan with named nodes: the first free ones of each kind."""
        left = [list(reversed(names)) for names in self.names]
        on_workers: list[str] = []
        on_servers: list[str] = []
        of_worker: list[int] = []
        for i, (count, pattern) in enumerate(zip(row, self.patterns)):
            for _ in range(int(count)):
                name = left[pattern.kind].pop()
                on_workers += [name] * pattern.workers
                on_servers += [name] * pattern.servers
                of_worker += [i] * pattern.workers
        workers, servers = len(on_workers), len(on_servers)
        strategy: Strategy = "single" if workers == 1 else "allreduce"
        if servers:
            strategy = "ps"
        cores = None
        if self.job.limits.cores is not None:
            cores = float(self._share(np.array([workers + servers]))[0])
        return Plan(
            strategy=strategy,
            workers=workers,
            batch_per_worker=self._sizes(row, mode, of_worker),
            servers=servers,
            synchronous=mode.synchronous,
            backup_workers=mode.backups,
            staleness=mode.staleness,
            worker_nodes=tuple(on_workers),
            server_nodes=tuple(on_servers),
            cores_per_worker=cores,
            cores_per_server=cores if servers else None,
        )

    def _sizes(
        self, row: Indices, mode: Mode, of_worker: list[int]
    ) -> int | tuple[int, ...] | None:
        """Samples of each worker; None: the script decides."""
        batch = self.costs.batch * mode.scale
        if self.costs.grows:
            return batch
        if self.costs.profile.batch is None or self.costs.profile.observed:
            return None
        if not mode.synchronous:
            return batch
        rows = row[None, :]
        tasks = (rows * (self.workers + self.servers)).sum(1)
        cores = self._cores(tasks)
        fixed, sample = self._compute(cores)
        most = self._batches(rows * self.workers, cores, batch)[0]
        sizes = [int(most[i]) for i in of_worker]
        # Excess samples are taken from the workers that finish last.
        done = [
            (-float(fixed[0, i] + sample[0, i] * size), -at)
            for at, (i, size) in enumerate(zip(of_worker, sizes))
        ]
        heapq.heapify(done)
        for _ in range(sum(sizes) - batch):
            while sizes[-done[0][1]] <= 1:
                heapq.heappop(done)
            late, at = done[0]
            heapq.heapreplace(done, (late + float(sample[0, of_worker[-at]]), at))
            sizes[-at] -= 1
        return sizes[0] if len(set(sizes)) == 1 else tuple(sizes)
