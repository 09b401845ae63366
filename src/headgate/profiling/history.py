"""Measured speeds of plans in earlier runs: steps per second, from the stores of the runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from headgate.forecast.remaining import step_seconds
from headgate.model.cluster import Cluster, Node
from headgate.model.errors import HeadgateError
from headgate.model.identifiers import TaskName, TaskOfRun
from headgate.model.plans import Plan
from headgate.model.profiles import Profile
from headgate.recorded.descriptions import NodeDescription, RunDescription
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import EventRow, JobRow
from headgate.task.step_timing import BUSY

FEWEST_STEPS = 10
"""Fewest steps for the speed of a plan."""
_IDLE = 0.1  # of a node's cores: with more of them idle nobody was in the way


@dataclass(frozen=True, slots=True)
class MeasuredPlan:
    """The measured speed of a plan in samples per second; and the fraction of its nodes' cores that
    other programs used, if no core was idle.
    """

    plan: Plan
    throughput: float
    others: float = 0.0


def past(profile: Profile, cluster: Cluster, stores: Iterable[Path]) -> list[MeasuredPlan]:
    """The measured speeds of plans of the same model on nodes of this cluster.

    Runs do not count if their nodes have changed since, or if other programs used these too much.

    Args:
        profile: Profile of the model. One with the same framework, layers and parameters is the
            same.
        cluster: The nodes.
        stores: Stores of the runs.
    """
    measurements = []
    for path in stores:
        with suppress(HeadgateError):  # of another version, or being written for the first time
            measurements += [
                measurement
                for measurement in of_run(path, profile, cluster)
                if measurement.others <= BUSY
            ]
    return measurements


def of_run(store: Path, profile: Profile, cluster: Cluster) -> Iterator[MeasuredPlan]:
    """The measured speeds of the plans of a run's jobs since each was last started or resized. See
    `past`.

    Raises:
        HeadgateError: The store cannot be read.
    """
    with RunReader(store) as reader:
        facts = RunDescription.read(reader)
        nodes_by_name = {node.name: node for node in facts.nodes}
        jobs = list(reader.records(JobRow)) if facts.mode == "run" else []
        plans = {row.name: row.chosen_plan() for row in jobs}
        for row in jobs:
            plan, cost = plans[row.name], row.cost()
            if plan is None or cost is None or not _is_of(cost, profile):
                continue
            names = _nodes(plan)
            beside = [_nodes(other) for name, other in plans.items() if name != row.name]
            shared = any(names & others for others in beside)
            if shared or not _as_they_were(names, nodes_by_name, cluster):
                continue
            seconds = _step_seconds(reader, row.name)
            samples = samples_of(plan, profile, grows=row.job().batch == "per-worker")
            if seconds is not None and samples is not None:
                cores = {node: nodes_by_name[node].cores or 0.0 for node in names}
                # If the steps of a job were not measured, it is unknown whether it could have used
                # more cores.
                seen = cost.source == "run"
                others = _use_by_others(reader, row.name, plan, cores) if seen else 0.0
                yield MeasuredPlan(plan, samples / seconds, others)


def _last_started(reader: RunReader, job: str) -> float:
    """When a job was last started or resized."""
    started = reader.records(EventRow, "job = ? AND kind = 'running'", [job])
    return max((event.t for event in started), default=0.0)


def _use_by_others(reader: RunReader, job: str, plan: Plan, cores: Mapping[str, float]) -> float:
    """The fraction of cores that other programs used on the fullest of its nodes. 0 if a core was
    idle or the job had its limit.
    """
    since = _last_started(reader, job)

    def used(target: str) -> float:
        from headgate.recorded.queries import mean_cores  # with numpy, which a hub need not load

        return mean_cores(reader, target, since)

    tasks = [
        (TaskOfRun.of(job, TaskName.of("worker", i)), name)
        for i, name in enumerate(plan.worker_nodes)
    ]
    tasks += [
        (TaskOfRun.of(job, TaskName.of("server", i)), name)
        for i, name in enumerate(plan.server_nodes)
    ]
    most = 0.0
    for node, node_cores in cores.items():
        node_used, own = (
            used(f"node:{node}"),
            sum(used(task) for task, name in tasks if name == node),
        )
        caps = [plan.cores_per_worker] * plan.worker_nodes.count(node)
        caps += [plan.cores_per_server] * plan.server_nodes.count(node)
        has_all = own > (1 - 2 * _IDLE) * sum(node_cores if cap is None else cap for cap in caps)
        if node_used > node_cores * (1 - _IDLE) and not has_all:
            most = max(most, (node_used - own) / node_cores)
    return most


def _step_seconds(reader: RunReader, job: str) -> float | None:
    from headgate.recorded.queries import steps_of_workers  # with numpy, as above

    workers = steps_of_workers(reader, job, _last_started(reader, job))
    # Synchronous workers all make the same steps; for others the usual one counts.
    all_seconds = [
        seconds
        for worker in workers.values()
        if (seconds := step_seconds(worker, FEWEST_STEPS)) is not None
    ]
    return median(all_seconds) if all_seconds else None


def samples_of(plan: Plan, profile: Profile, grows: bool = False) -> int | None:
    """Samples in a step of all workers, without backups. `grows`: each worker has the script's
    whole batch.
    """
    size = plan.batch_per_worker
    if isinstance(size, tuple):
        samples = sum(size)
    elif size is not None:
        samples = size * plan.workers
    elif profile.batch is not None:
        samples = profile.batch * (1 if plan.synchronous and not grows else plan.workers)
    else:
        return None
    return samples * (plan.workers - plan.backup_workers) // plan.workers


def _nodes(plan: Plan | None) -> set[str]:
    return {*plan.worker_nodes, *plan.server_nodes} if plan is not None else set()


def _is_of(cost: Profile, profile: Profile) -> bool:
    same = ("framework", "parameters_dense", "parameters_sparse", "layers")
    return all(getattr(cost, name) == getattr(profile, name) for name in same)


def _as_they_were(
    names: set[str], nodes_by_name: Mapping[str, NodeDescription], cluster: Cluster
) -> bool:
    now: dict[str, Node] = {node.name: node for node in cluster.nodes}
    if not names <= now.keys() & nodes_by_name.keys():
        return False
    return all(
        nodes_by_name[name].cores == now[name].cores
        and nodes_by_name[name].memory_bytes == now[name].memory_bytes
        and nodes_by_name[name].gpus == tuple(gpu.name for gpu in now[name].gpus)
        for name in names
    )
