"""A job's plans, predicted by the cost model and corrected by measurements of some."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Sequence

from headgate.model.cluster import Cluster, Node
from headgate.model.jobs import Job
from headgate.model.plans import Plan, Prediction
from headgate.model.profiles import Profile
from headgate.planning.candidates import candidates
from headgate.planning.kinds import kinds
from headgate.planning.planner import Planner
from headgate.planning.search import varied


class Corrected:
    """A `Planner` over the candidates of a job and over plans that were measured.

    Plans count as the same if they differ only in the choice among nodes of a kind, or in the split
    of the same batch.

    Args:
        job: The job.
        cluster: The cluster.
        profile: The job's profile.
        measured: Samples a second of plans measured before. Plans that the job may not have are
            left out.
        used: Names of nodes that other jobs have.
        measured_on: The node that the profile was measured on.

    Raises:
        UsageError: No plan can run.
    """

    def __init__(
        self,
        job: Job,
        cluster: Cluster,
        profile: Profile,
        measured: Sequence[tuple[Plan, float]] = (),
        *,
        used: Collection[str] = (),
        measured_on: Node | None = None,
    ) -> None:
        self._kinds = {
            name: i for i, kind in enumerate(kinds(cluster.nodes)) for name in kind.names
        }
        self._batch = profile.batch or 1
        free = self._kinds.keys() - set(used)
        self._known: dict[Hashable, Plan] = {}
        for plan in candidates(cluster, job, profile, used=used, measured_on=measured_on):
            self._known.setdefault(self._likeness(plan), plan)
        allowed = [(plan, rate) for plan, rate in measured if _may_have(job, plan, free)]
        for plan, _ in allowed:
            self._known.setdefault(self._likeness(plan), plan)
        self.planner = Planner(
            list(self._known.values()),
            job=job,
            cluster=cluster,
            profile=profile,
            measured_on=measured_on,
        )
        self.measured: dict[Plan, list[float]] = {}
        for plan, rate in allowed:
            self.tell(plan, rate)

    def tell(self, plan: Plan, throughput: float) -> None:
        """Add a measurement of a plan, in samples a second.

        Raises:
            ValueError: The space has no such plan, or the number is not finite and positive.
        """
        like = self.like(plan)
        self.planner.tell(like, throughput=throughput)
        self.measured.setdefault(like, []).append(throughput)

    def like(self, plan: Plan) -> Plan:
        """The plan of the space that counts as the same.

        Raises:
            ValueError: The space has no such plan.
        """
        measured = self._known.get(self._likeness(plan))
        if measured is None:
            raise ValueError(
                f"{plan} is like none of the {len(self._known)} plans that are considered"
            )
        return measured

    def ranked(self, most: int) -> list[Prediction]:
        """The plan to run, followed by the fastest others.

        Raises:
            ValueError: All plans failed.
        """
        best = self.planner.best()
        others = [
            self.planner.predict(plan)
            for plan in self._known.values()
            if plan != best.plan and plan not in self.planner.failed
        ]
        shown = [best, *sorted(others, key=lambda candidate: -candidate.throughput)]
        of_each = [(mode_of(candidate.plan), candidate.plan.workers) for candidate in shown]
        return [shown[i] for i in varied(of_each, most)]

    def _likeness(self, plan: Plan) -> Hashable:
        workers, servers = Counter(plan.worker_nodes), Counter(plan.server_nodes)
        on = Counter(
            (self._kinds.get(name, name), workers[name], servers[name])
            for name in {*workers, *servers}
        )
        size = plan.batch_per_worker
        usual = self._batch * (1 if plan.synchronous else plan.workers)
        if isinstance(size, tuple):
            samples = sum(size)
        else:
            samples = usual if size is None else size * plan.workers
        return (
            mode_of(plan),
            plan.workers,
            plan.servers,
            plan.cores_per_worker,
            plan.cores_per_server,
            samples,
            frozenset(on.items()),
        )


def mode_of(plan: Plan) -> Hashable:
    """How the tasks of a plan cooperate, regardless of their number."""
    return plan.strategy, plan.synchronous, plan.staleness, plan.backup_workers


def _may_have(job: Job, plan: Plan, free: Collection[str]) -> bool:
    """Whether the job may have a measured plan, on free nodes."""
    fewest, most = job.limits.workers
    names = {*plan.worker_nodes, *plan.server_nodes}
    stays = plan.synchronous or "async" in job.allow
    return (
        bool(names)
        and names <= set(free)
        and fewest <= plan.workers <= (most or plan.workers)
        and stays
    )
