"""An upper bound for all layouts of a space: how far a plan may be from the best."""

from __future__ import annotations

import sys

import numpy as np

from headgate.planning import physics
from headgate.planning.features import Flags, Floats
from headgate.planning.patterns import Mode
from headgate.planning.spaces import Space


def bound(space: Space) -> float:
    """Upper bound of the samples a second of any layout of a space, by the cost model.

    The bound covers each number of workers and each slowness of their worst NIC. The fastest
    remaining devices compute, with a batch that divides freely. Gradients cross the worst NIC once,
    or around a ring. With parameter servers the NICs of all nodes share the bytes. Workers on one
    node need no NIC; those on its GPUs slow each other. Parts that only add time are ignored:
    updates, sparse rows, limits of cores and memory.
    """
    return max((_Bound(space, mode).most() for mode in space.modes), default=0.0)


class _Bound:
    def __init__(self, space: Space, mode: Mode) -> None:
        self._space, self._mode = space, mode
        self._p = physics.by_name(space.costs.prior.mean)
        self._batch = float(space.costs.batch * mode.scale)
        bounds = [] if space.costs.grows else [int(self._batch)]
        bounds += [most] if (most := space.job.limits.workers[1]) is not None else []
        self._most = min(bounds, default=sys.maxsize)
        self._fewest = max(
            space.job.limits.workers[0], mode.scale if mode.scale > 1 else 1, 1 + mode.backups
        )
        self._dense = space.costs.known.dense

    def most(self) -> float:
        space, best = self._space, 0.0
        for kind in sorted(set(space.kind.tolist())):
            best = max(best, self._together(space.kind == kind))
        for level in sorted(set(space.slowness.tolist())):
            best = max(best, self._apart(space.slowness <= level, float(level)))
        return best

    def _together(self, among: Flags) -> float:
        """The bound with all workers on one node."""
        among = among & (self._space.workers > 0)
        if not among.any():
            return 0.0
        most = int(self._space.workers[among].max())
        fixed, rates, _ = self._devices(among, nodes=1)
        workers = np.arange(self._fewest, min(most, self._most) + 1).astype(np.float64)
        if not workers.size:
            return 0.0
        slowness = float(self._space.inside_slowness[among].min())
        inside = self._p["inside"] * self._dense * 2 * (workers - 1) / workers
        inside = slowness * (inside + self._p["inside_worker"] * np.maximum(workers - 2, 0))
        contention = self._contention(among, workers)
        return self._samples(
            workers, fixed, rates, contention, np.asarray(inside), np.zeros_like(workers)
        )

    def _apart(self, among: Flags, level: float) -> float:
        """The bound with workers on several nodes, given the slowest NIC."""
        among = among & (self._space.workers > 0)
        fixed, rates, largest = self._devices(among, nodes=None)
        workers = np.arange(max(self._fewest, 2), min(rates.size, self._most) + 1).astype(
            np.float64
        )
        if not workers.size:
            return 0.0
        p, all_rates = self._p, float((self._space.free / self._slowness()).sum())
        nodes = np.maximum(np.ceil(workers / largest), 2)
        ring = p["ring"] * self._dense * 2 * (workers - 1) / workers * level
        ring = ring + p["ring_worker"] * (workers - 2) + p["ring_node"] * (nodes - 2)
        if not self._space.has_gpus:
            handling = (
                p["handling"]
                * self._dense
                * self._space.costs.known.plain
                * 2
                * (workers - 1)
                / workers
            )
            ring = np.maximum(ring + p["collective"] * (workers - 1), handling)
        crossing = (
            p["to_servers"] * self._dense * np.maximum(2 * (workers - largest) / all_rates, level)
        )
        free_nodes = float(self._space.free[np.unique(self._space.kind[among])].sum())
        contention = self._contention(among, np.maximum(workers / free_nodes, 1.0))
        return self._samples(workers, fixed, rates, contention, ring, crossing)

    def _contention(self, among: Flags, crowded: Floats) -> Floats:
        """Least seconds by which this many workers on a node slow each other."""
        return np.asarray(self._p["contention"] * np.log(crowded) * self._space.on_gpu[among].all())

    def _samples(
        self,
        workers: Floats,
        fixed: float,
        rates: Floats,
        contention: Floats,
        ring: Floats,
        crossing: Floats,
    ) -> float:
        """The most samples a second over numbers of workers, from the least time of both ways to
        add up gradients.
        """
        p, speed = self._p, rates[workers.astype(np.intp) - 1]
        batch = self._batch * (workers if self._space.costs.grows else np.ones_like(workers))
        if not self._mode.synchronous:
            alone = workers / (fixed + contention + batch * workers / speed)
            return float(np.max(batch * np.minimum(alone, workers / np.maximum(crossing, 1e-12))))
        left_out = np.log(workers - self._mode.backups) - np.log(self._mode.backups + 1)
        waiting = (fixed + batch / speed) * (
            1 + p["straggling"] * np.maximum(left_out, 0.0)
        ) + contention
        step = self._step(waiting, ring)
        if self._space.serves:
            moved = np.maximum(crossing, p["handling"] * self._dense)
            serving = self._step(waiting, moved) + p["worker"] * workers + p["server"]
            step = serving if self._mode.backups else np.minimum(step, serving)
        return float(np.max(batch / step))

    def _step(self, waiting: Floats, moving: Floats) -> Floats:
        power = 1 + self._p["hiding"]
        together = (waiting**power + moving**power) ** (1 / power)
        behind = self._p["forward"] * waiting + np.maximum(
            (1 - self._p["forward"]) * waiting, moving
        )
        return np.asarray(np.maximum(together, behind))

    def _devices(self, among: Flags, nodes: int | None) -> tuple[float, Floats, float]:
        """Least fixed seconds; samples a second of the fastest 1, 2, ... workers; most workers of a
        node. Counts `nodes` nodes of each kind; None: all.
        """
        space = self._space
        fast, total_rate, fixed, largest = [np.zeros(0)], 0.0, np.inf, 1.0
        for kind in sorted(set(space.kind[among].tolist())):
            at = np.flatnonzero(among & (space.kind == kind))
            cores = space.cores_alone[at]
            least = space.least_bent[at]
            overhead, work = space.overhead[at] * least, space.work[at] * least
            alpha, sample, read = physics.compute(
                self._p, overhead, work, space.reads[at], cores, space.speeds[at]
            )
            sample = sample + read
            count = int(space.free[kind]) if nodes is None else nodes
            most = int(space.workers[at].max())
            fast.append(np.full(count * most, 1 / sample.min()))
            total_rate += count * float((space.workers[at] / sample).max())
            fixed, largest = min(fixed, float(alpha.min())), max(largest, float(most))
        return (
            fixed,
            np.minimum(np.cumsum(np.sort(np.concatenate(fast))[::-1]), total_rate),
            largest,
        )

    def _slowness(self) -> Floats:
        """Slowness of the NIC of each kind. A kind without patterns counts as the fastest, so that
        the bound holds.
        """
        ones = np.ones(len(self._space.free))
        ones[self._space.kind] = self._space.slowness
        return ones
