"""Check whether each of n jobs on m machines got the equivalent of m/n machines, and whether one
dominated a scarce resource.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NamedTuple

import numpy as np

from headgate.recorded.jobs import RecordedJob, RecordedNode, RecordedTask, running
from headgate.recorded.usage import Array, Signal, total
from headgate.sampling.columns import Column

SharedResource = Literal["cores", "disk", "network"]
"""Resources that a node has once. GPUs are excluded: the GPU of a job is not recorded."""

_USE: Mapping[SharedResource, tuple[Column, ...]] = {
    "cores": ("cpu_cores",),
    "disk": ("disk_read", "disk_write"),
    "network": ("net_in", "net_out"),
}
_WAIT: Mapping[SharedResource, tuple[Column, ...]] = {
    "cores": ("cpu_waiting",),
    "disk": ("disk_waiting", "psi_io"),
}
"""Readings that show waiting for a resource. None shows it for the network."""
_WAITED, _FULL = 0.1, 0.8
"""A resource is scarce from this many waiting threads (or fraction of time), or this fraction of
its rate.
"""
_BLOCK_SECONDS, _MOST_BLOCKS, _LEAST_BLOCKS = 2.0, 400, 4
_BEYOND = 1.1
"""A job dominates if it takes this many times an equal part."""
_DRAWS = 200


class AloneRate(NamedTuple):
    """Speed of a job when nothing else ran.

    Args:
        steps_per_second: Mean over its earlier runs that count.
        low: Low end of a 90 % band for another such run.
        high: High end of it.
        runs: Number of these runs.
        nodes: Number of nodes that it ran on.
    """

    steps_per_second: float
    low: float
    high: float
    runs: int
    nodes: int = 1


class MissingRate(StrEnum):
    """What is missing for comparing a job's part with its share."""

    OWN_STEPS = "own-steps"
    """Three reports of its steps."""
    ALONE = "alone"
    """An earlier run of it alone on these machines."""


@dataclass(frozen=True, slots=True)
class JobSharing:
    """A job's part of the machines compared with its share.

    Args:
        machines: Its share, m/n machines while n jobs ran, averaged over its steps.
        got: Its steps divided by those that its share gives; None: something is missing.
        low: Low end of its 90 % band.
        high: High end of it.
        against: The earlier runs in the comparison: alone on all cores, or on a `slice` of its
            share's size.
        runs: Number of these runs.
        lacks: What is missing; empty: nothing.
    """

    job: str
    machines: float
    got: float | None
    low: float | None
    high: float | None
    against: Literal["alone", "slice"] | None
    runs: int
    lacks: MissingRate | None


@dataclass(frozen=True, slots=True)
class Dominance:
    """A job that took more than an equal part of a scarce resource.

    Args:
        part: Its fraction of all that the node's jobs used while several ran, 0 to 1.
        low: Low end of its 90 % band.
        high: High end of it.
        equal: The equal part of each job.
    """

    job: str
    node: str
    resource: SharedResource
    part: float
    low: float
    high: float
    equal: float


@dataclass(frozen=True, slots=True)
class RunSharing:
    """How the jobs of a run shared its machines.

    Args:
        most_jobs: The most jobs that ran at the same time.
        dominates: The dominating job of each scarce resource of each node, if any.
    """

    machines: int
    most_jobs: int
    jobs: tuple[JobSharing, ...]
    dominates: tuple[Dominance, ...]


def sharing(
    jobs: Sequence[RecordedJob],
    nodes: Sequence[RecordedNode],
    seconds: float,
    alone: Mapping[str, AloneRate],
    slices: Mapping[str, AloneRate],
) -> RunSharing | None:
    """How jobs shared machines; None: no two ran at the same time.

    Args:
        seconds: Elapsed seconds of the run.
        alone: Rates in earlier runs alone, by job, if known.
        slices: The same in earlier runs limited to the cores of m/n machines.
    """
    blocks = int(np.clip(seconds / _BLOCK_SECONDS, _LEAST_BLOCKS, _MOST_BLOCKS))
    edges = np.linspace(0.0, max(seconds, 1e-3), blocks + 1)
    present = {job.name: _there(job, edges) for job in jobs}
    count = sum(present.values(), np.zeros(blocks))
    if not (count > 1.0).any():
        return None
    nodes = shared_nodes(jobs, nodes)
    machines = max(len(nodes), 1)
    return RunSharing(
        machines=machines,
        most_jobs=round(float(count.max())),
        jobs=tuple(
            _job(job, edges, count, machines, alone.get(job.name), slices.get(job.name))
            for job in jobs
        ),
        dominates=tuple(
            dominance for node in nodes for dominance in _dominating(jobs, node, edges)
        ),
    )


def shared_nodes(
    jobs: Sequence[RecordedJob], nodes: Sequence[RecordedNode]
) -> Sequence[RecordedNode]:
    """The nodes of the jobs' tasks; all nodes if unknown. A cluster run also has the hub's
    machine.
    """
    used = {task.node for job in jobs for task in job.tasks}
    return [node for node in nodes if node.name in used] or nodes


def shares_of(jobs: Sequence[RecordedJob], machines: int, seconds: float) -> dict[str, float]:
    """Each job's mean share of the machines, m/n, while it ran, by its name."""
    edges = np.linspace(0.0, max(seconds, 1e-3), _MOST_BLOCKS + 1)
    present = {job.name: _there(job, edges) for job in jobs}
    count = sum(present.values(), np.zeros(_MOST_BLOCKS))
    part = np.minimum(machines / np.maximum(count, 1.0), float(machines))
    return {
        name: float(np.average(part, weights=inside)) if inside.any() else float(machines)
        for name, inside in present.items()
    }


def _there(job: RecordedJob, edges: Array) -> Array:
    """The fraction of each block in which a job ran."""
    ran = [stretch for stretch in running(job.phases) if stretch[1] > stretch[0]]
    if not ran:
        return np.zeros(len(edges) - 1)
    table = np.array(ran, dtype=float)
    inside = Signal(table[:, 0], table[:, 1], np.ones(len(table))).cumulative(edges)
    return np.asarray(np.diff(inside) / np.diff(edges))


def _job(
    job: RecordedJob,
    edges: Array,
    count: Array,
    machines: int,
    alone: AloneRate | None,
    sliced: AloneRate | None,
) -> JobSharing:
    stepped = _last_attempt(job)
    start, end = (
        (float(stepped[0][0]), float(stepped[0][-1]))
        if stepped is not None
        else (0.0, float(edges[-1]))
    )
    inside = np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], start), 0.0, None)
    per_job = machines / np.maximum(count, 1.0)
    share = float(np.average(per_job, weights=inside)) if inside.any() else float(machines)
    known = sliced or alone
    if stepped is None or known is None:
        lacks = MissingRate.OWN_STEPS if stepped is None else MissingRate.ALONE
        return JobSharing(job.name, share, None, None, None, None, 0, lacks)
    # A slice equals m/n machines. Against a run alone, that fraction of its rate is due, at most
    # all of it.
    part = (
        1.0 if sliced else float(np.average(np.minimum(per_job / known.nodes, 1.0), weights=inside))
    )
    _, steps = stepped
    made, window = float(steps[-1] - steps[0]), end - start
    rate, error = made / window / part, float(np.max(np.diff(steps))) / made
    return JobSharing(
        job=job.name,
        machines=share,
        got=rate / known.steps_per_second,
        low=rate * max(1.0 - error, 0.0) / known.high,
        high=rate * (1.0 + error) / known.low,
        against="slice" if sliced else "alone",
        runs=known.runs,
        lacks=None,
    )


def _last_attempt(job: RecordedJob) -> tuple[Array, Array] | None:
    """Times and steps reported in its last attempt; None: fewer than three."""
    ran = running(job.phases)
    kept = np.isfinite(job.progress.step) & (job.progress.t >= (ran[-1][0] if ran else 0.0))
    times, steps = job.progress.t[kept], np.maximum.accumulate(job.progress.step[kept])
    if len(times) < 3 or steps[-1] <= steps[0] or times[-1] <= times[0]:
        return None
    return times, steps


def _dominating(
    jobs: Sequence[RecordedJob], node: RecordedNode, edges: Array
) -> Iterator[Dominance]:
    on = {job.name: [task for task in job.tasks if task.node == node.name] for job in jobs}
    present = {job.name: _there(job, edges) for job in jobs if on[job.name]}
    count = sum((part > 0.5 for part in present.values()), np.zeros(len(edges) - 1))
    shared = count >= 2
    if np.count_nonzero(shared) < _LEAST_BLOCKS:
        return
    equal = float(np.mean(1.0 / count[shared]))
    for resource in _USE:
        used = {name: _of(on[name], _USE[resource], edges)[shared] for name in present}
        total_used = sum(used.values(), np.zeros(np.count_nonzero(shared)))
        if total_used.sum() <= 0.0:
            continue
        most = max(used, key=lambda name: float(used[name].sum()))
        waits = max(
            float(np.mean(_of(on[name], _WAIT.get(resource, ()), edges)[shared]))
            for name in present
            if name != most
        )
        if waits < _WAITED and not _is_full(node, resource, total_used):
            continue
        low, high = _band(used[most], total_used)
        if low > _BEYOND * equal:
            part = float(used[most].sum() / total_used.sum())
            yield Dominance(most, node.name, resource, part, low, high, equal)


def _of(tasks: Sequence[RecordedTask], columns: Sequence[Column], edges: Array) -> Array:
    signal = total([task.signal(column) for task in tasks for column in columns])
    return np.nan_to_num(signal.buckets(edges).mean)


def _is_full(node: RecordedNode, resource: SharedResource, used: Array) -> bool:
    """Whether jobs used so much of a resource that one must have waited, although no reading shows
    it.
    """
    rate = {"disk": node.disk_bytes_per_second, "network": node.nic_bytes_per_second}.get(resource)
    return rate is not None and float(np.mean(used)) >= _FULL * rate


def _band(used: Array, whole: Array) -> tuple[float, float]:
    """A 90 % band of a fraction, by drawing blocks with replacement."""
    draws = np.random.default_rng(0).integers(0, len(used), (_DRAWS, len(used)))
    parts = used[draws].sum(axis=1) / np.maximum(whole[draws].sum(axis=1), 1e-12)
    low, high = np.percentile(parts, [5.0, 95.0])
    return float(low), float(high)
