"""Speed of jobs with a profile: the cost model for their workers, nodes and cores."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.model.cluster import Cluster, Node
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan
from headgate.model.profiles import Profile
from headgate.planning.kinds import kinds
from headgate.simulation.speeds import between
from headgate.simulation.traces import TraceJob

if TYPE_CHECKING:
    from headgate.planning.cost import CostModel

_PARTS = 16
"""Points for each core between which throughput is interpolated."""
_GROWTH = 1.04
"""Above one core, the ratio of successive numbers of cores, besides whole ones."""

_Layout = tuple[tuple[int, int], ...]
"""Kind and number of workers of each node, in order."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Throughput of a job on some nodes by the cores of a worker, relative to all that it requests
    (see `Modelled`). On GPUs cores do not matter.
    """

    points: tuple[tuple[float, float], ...]

    def at(self, cores: float) -> float:
        """With this many cores for each worker."""
        return between(self.points, cores)

    @property
    def whole(self) -> float:
        """With all that it can use."""
        return self.points[-1][1]


class Modelled:
    """Speeds from the cost model of planning, each computed once.

    A job requests its workers, or on GPUs one for each GPU. They are packed on nodes of the first
    kind in the cluster with enough nodes. The job's batch is divided among them.

    Args:
        cluster: The nodes.
        profiles: Profiles by the jobs' names for them.
        measured_on: The node that they were measured on; None: unknown.

    Raises:
        UsageError: A profile does not tell the time of a step.
    """

    def __init__(
        self, cluster: Cluster, profiles: Mapping[str, Profile], measured_on: Node | None = None
    ) -> None:
        self._cluster, self._profiles, self._measured_on = cluster, profiles, measured_on
        self._kinds = kinds(cluster.nodes)
        self._kind_of = {name: i for i, kind in enumerate(self._kinds) for name in kind.names}
        self._costs: dict[tuple[str, bool], CostModel] = {}
        self._curves: dict[tuple[str, int, float, _Layout], Curve] = {}
        self._usual: dict[tuple[str, int, int, float], tuple[str, ...]] = {}

    def curve(self, job: TraceJob, nodes: Sequence[str]) -> Curve:
        """The speed of a job with tasks on these nodes; its GPUs are divided evenly among them."""
        placed = tuple(name for name in nodes for _ in range(max(job.gpus // len(nodes), 1)))
        most = _most(job)
        layout = tuple(
            sorted((self._kind_of[name], count) for name, count in Counter(placed).items())
        )
        key = (job.profile, job.gpus, most, layout)
        if key not in self._curves:
            full_throughput = self._throughput(job, self._asked(job), (most,))[0]
            cores = (most,) if job.gpus else _grid(most)
            speeds = self._throughput(job, placed, cores)
            self._curves[key] = Curve(
                tuple((x, speed / full_throughput) for x, speed in zip(cores, speeds, strict=True))
            )
        return self._curves[key]

    def usual(self, job: TraceJob) -> Curve:
        """The speed of a job on the nodes that it requests."""
        return self.curve(job, self._asked(job))

    def _asked(self, job: TraceJob) -> tuple[str, ...]:
        """The nodes that a job requests, one for each of its workers."""
        workers = job.gpus or job.workers
        most = _most(job)
        key = (job.profile, job.gpus, workers, most)
        if key not in self._usual:

            def held(node: Node) -> int:
                return len(node.gpus) if job.gpus else max(math.floor(node.cores / most + 1e-9), 1)

            enough = (
                known for known in self._kinds if len(known.names) * held(known.node) >= workers
            )
            kind = next(enough, None)
            nodes = [
                node for node in self._cluster.nodes if kind is None or node.name in kind.names
            ]
            places = [node.name for node in nodes for _ in range(held(node))]
            self._usual[key] = tuple(places[i % len(places)] for i in range(workers))
        return self._usual[key]

    def _throughput(
        self, job: TraceJob, nodes: tuple[str, ...], cores: Sequence[float]
    ) -> list[float]:
        costs = self._of(job.profile, bool(job.gpus))
        workers = len(nodes)
        plans = [
            Plan(
                strategy="allreduce" if workers > 1 else "single",
                workers=workers,
                batch_per_worker=None,
                worker_nodes=nodes,
                cores_per_worker=None if job.gpus else core_count,
            )
            for core_count in cores
        ]
        throughputs: list[float] = costs.many(plans)[0].tolist()
        return throughputs

    def _of(self, profile: str, on_gpus: bool) -> CostModel:
        if (profile, on_gpus) not in self._costs:
            from headgate.planning.cost import (
                CostModel,  # imported late: its numerics take half a second
            )

            job = Job(name="job", run="simulated", limits=Limits(gpus=None if on_gpus else 0))
            cost_model = CostModel(
                job, self._cluster, self._profiles[profile], measured_on=self._measured_on
            )
            self._costs[profile, on_gpus] = cost_model
        return self._costs[profile, on_gpus]


def _most(job: TraceJob) -> float:
    """Cores that each worker of a job can use."""
    return 1.0 if job.gpus else job.cores / job.workers


def _grid(most: float) -> tuple[float, ...]:
    """Numbers of cores up to `most`, in order."""
    parts = {part / _PARTS for part in range(1, _PARTS + 1)}
    grown = {_GROWTH**i for i in range(int(math.log(max(most, 1.0)) / math.log(_GROWTH)) + 1)}
    whole_cores = {float(count) for count in range(1, int(most) + 1)}
    return tuple(
        sorted(fraction for fraction in parts | grown | whole_cores | {most} if fraction <= most)
    )
