"""Divide nodes among several jobs so that the total progress is greatest and no job falls
behind.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from headgate.model.cluster import Cluster, Node
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.plans import Prediction
from headgate.model.profiles import Profile
from headgate.model.reasons import RefusalKind
from headgate.model.refused import RefusedError
from headgate.planning.cost import CostModel
from headgate.planning.search import Looked
from headgate.planning.spaces import Space

_ROUNDS = 30
_GAIN = 1e-3  # fraction of the jobs' total when alone: a smaller gain is not worth another division

Counts = tuple[int, ...]
"""A job's nodes of each kind."""


@dataclass(frozen=True, slots=True)
class ProfiledJob:
    """A job to plan, with its profile."""

    job: Job
    profile: Profile


@dataclass(frozen=True, slots=True)
class JointPlans:
    """Plans of jobs that run side by side, in the order of the requests.

    Args:
        predictions: The plan of each job, on nodes or on a part of a node that no other job has.
        normalised: Throughput of each relative to the whole cluster alone.
        fair: The same on an equal part of the nodes of each kind: no job gets less.
    """

    predictions: tuple[Prediction, ...]
    normalised: tuple[float, ...]
    fair: tuple[float, ...]

    @property
    def total(self) -> float:
        """Sum of the normalised throughputs; the number of jobs if each ran alone."""
        return sum(self.normalised)


def jointly(
    requests: Sequence[ProfiledJob],
    cluster: Cluster,
    *,
    used: Collection[str] = (),
    measured_on: Node | None = None,
) -> JointPlans:
    """Divide nodes among jobs.

    From equal parts on, nodes change hands as long as the total normalised throughput grows and no
    job falls below its fair share. If there are more jobs than nodes, jobs share nodes in equal
    parts.

    Args:
        requests: At least one job, with distinct names.
        cluster: The nodes.
        used: Names of nodes that running jobs keep.
        measured_on: The node that profiles were measured on.

    Raises:
        UsageError: There is no job or no free node, or a job cannot run even alone.
    """
    if not requests:
        raise UsageError("found no job to plan; expected at least one")
    free = [node for node in cluster.nodes if node.name not in used]
    if not free:
        raise RefusedError.of(RefusalKind.NODES_TAKEN, nodes=len(cluster.nodes))
    if len(free) < len(requests):
        return _on_parts(requests, free, measured_on)
    return _Throughputs(requests, Cluster(tuple(free)), measured_on).divide()


class _Throughputs:
    """Throughputs of jobs by their nodes, with a cache of past searches."""

    def __init__(
        self, requests: Sequence[ProfiledJob], cluster: Cluster, measured_on: Node | None
    ) -> None:
        self._costs = [
            CostModel(request.job, cluster, request.profile, measured_on=measured_on)
            for request in requests
        ]
        self._kinds = self._costs[0].kinds
        self._known: dict[tuple[int, Counts], float] = {}
        all_nodes = tuple(len(kind.names) for kind in self._kinds)
        self._alone = [
            self._search(i, self._names(all_nodes, all_nodes)).throughput
            for i in range(len(requests))
        ]

    def divide(self) -> JointPlans:
        """Find the best division."""
        held = self._equal_parts()
        fair = [self._part(i, counts) for i, counts in enumerate(held)]
        for _ in range(_ROUNDS):
            parts = [self._part(i, counts) for i, counts in enumerate(held)]
            better, most = None, sum(parts) + _GAIN
            for i, j, given_counts, others in self._exchanges(held):
                first_part, second_part = self._part(i, given_counts), self._part(j, others)
                total = sum(parts) - parts[i] - parts[j] + first_part + second_part
                # Jobs that cannot run at all are helped first.
                total += len(parts) * (
                    (first_part > 0) - (parts[i] > 0) + (second_part > 0) - (parts[j] > 0)
                )
                keeps = (
                    first_part >= min(fair[i], parts[i]) - 1e-9
                    and second_part >= min(fair[j], parts[j]) - 1e-9
                )
                if keeps and total > most:
                    better, most = (i, j, given_counts, others), total
            if better is None:
                break
            i, j, held[i], held[j] = better
        return self._division(held, fair)

    def _division(self, held: Sequence[Counts], fair: Sequence[float]) -> JointPlans:
        begun = [0] * len(self._kinds)
        predictions = []
        for i, counts in enumerate(held):
            ends = tuple(start + count for start, count in zip(begun, counts))
            predictions.append(self._search(i, self._names(ends, counts)))
            begun = list(ends)
        parts = tuple(
            prediction.throughput / alone for prediction, alone in zip(predictions, self._alone)
        )
        return JointPlans(tuple(predictions), parts, tuple(fair))

    def _equal_parts(self) -> list[Counts]:
        """Equal parts of each kind; leftover nodes go to the jobs with the fewest nodes."""
        jobs = len(self._costs)
        held = [[len(kind.names) // jobs for kind in self._kinds] for _ in range(jobs)]
        for k, kind in enumerate(self._kinds):
            for _ in range(len(kind.names) % jobs):
                fewest = min(range(jobs), key=lambda i: (sum(held[i]), held[i][k], i))
                held[fewest][k] += 1
        return [tuple(part) for part in held]

    def _exchanges(self, held: Sequence[Counts]) -> Iterator[tuple[int, int, Counts, Counts]]:
        """Exchanges: some nodes of a kind go to another job, for nothing or for as many of another
        kind.
        """
        for i, j in itertools.permutations(range(len(held)), 2):
            for k in range(len(self._kinds)):
                for step in {1, held[i][k] // 4, held[i][k] // 2, held[i][k]} - {0}:
                    if step > held[i][k]:
                        continue
                    yield i, j, _changed(held[i], k, -step), _changed(held[j], k, step)
                    for back in range(len(self._kinds)):
                        if i < j and back != k and held[j][back] >= step:
                            first_counts = _changed(_changed(held[i], k, -step), back, step)
                            yield (
                                i,
                                j,
                                first_counts,
                                _changed(_changed(held[j], k, step), back, -step),
                            )

    def _part(self, i: int, counts: Counts) -> float:
        """Normalised throughput of a job with these nodes; 0: it cannot run."""
        if (i, counts) not in self._known:
            try:
                throughput = self._search(i, self._names(counts, counts)).throughput
            except UsageError:
                throughput = 0.0
            self._known[i, counts] = throughput / self._alone[i]
        return self._known[i, counts]

    def _names(self, ends: Counts, counts: Counts) -> set[str]:
        """The last `counts` names of each kind before `ends`."""
        return {
            name
            for kind, end, n in zip(self._kinds, ends, counts)
            for name in kind.names[end - n : end]
        }

    def _search(self, i: int, names: set[str]) -> Prediction:
        costs = self._costs[i]
        others = {node.name for node in costs.cluster.nodes} - names
        [plan] = Looked(Space(costs, others)).ranked(1)
        return costs.predict(plan)


def _changed(counts: Counts, kind: int, by: int) -> Counts:
    return (*counts[:kind], counts[kind] + by, *counts[kind + 1 :])


def _on_parts(
    requests: Sequence[ProfiledJob], free: Sequence[Node], measured_on: Node | None
) -> JointPlans:
    """Plans of jobs on equal parts of nodes, one node each, in turn."""
    predictions, parts = [], []
    free_cluster = Cluster(tuple(free))
    for i, request in enumerate(requests):
        node = free[i % len(free)]
        sharing = len(range(i % len(free), len(requests), len(free)))
        nic = node.nic_bytes_per_second
        part = replace(
            node,
            cores=node.cores / sharing,
            memory_bytes=node.memory_bytes // sharing,
            nic_bytes_per_second=nic / sharing if nic is not None else None,
            gpus=node.gpus[i // len(free) :: sharing],
        )
        alone = CostModel(request.job, free_cluster, request.profile, measured_on=measured_on)
        costs = CostModel(request.job, Cluster((part,)), request.profile, measured_on=measured_on)
        [plan] = Looked(Space(costs)).ranked(1)
        [best] = Looked(Space(alone)).ranked(1)
        prediction = costs.predict(plan)
        cores = min(plan.cores_per_worker or part.cores / plan.tasks, part.cores / plan.tasks)
        stated = replace(
            plan, cores_per_worker=cores, cores_per_server=cores if plan.servers else None
        )
        predictions.append(replace(prediction, plan=stated))
        parts.append(prediction.throughput / alone.predict(best).throughput)
    return JointPlans(tuple(predictions), tuple(parts), tuple(parts))
