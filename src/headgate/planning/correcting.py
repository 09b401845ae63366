"""A job's plans, and what the model says of each, corrected by what was measured of some."""

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
    """The candidates of a job and plans that were measured, in a `Planner`.

    Plans that differ only in which of several nodes of a kind they take, or in how the same batch
    is divided, count as one.

    Args:
        job: What runs.
        cluster: Where.
        profile: What it costs.
        measured: Samples a second of plans that were measured before; those that the job may not
            have are left out.
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
        """Samples a second that a plan like one of the space was measured to bring.

        Raises:
            ValueError: There is none like it, or the number is not finite and above 0.
        """
        like = self.like(plan)
        self.planner.tell(like, throughput=throughput)
        self.measured.setdefault(like, []).append(throughput)

    def like(self, plan: Plan) -> Plan:
        """The plan of the space that counts as the same.

        Raises:
            ValueError: There is none.
        """
        measured = self._known.get(self._likeness(plan))
        if measured is None:
            raise ValueError(
                f"{plan} is like none of the {len(self._known)} plans that are considered"
            )
        return measured

    def ranked(self, most: int) -> list[Prediction]:
        """The plan to run, and the others that are expected to bring most.

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
    """How the tasks of a plan go together, however many there are."""
    return plan.strategy, plan.synchronous, plan.staleness, plan.backup_workers


def _may_have(job: Job, plan: Plan, free: Collection[str]) -> bool:
    """Whether a plan that was measured is one that the job may have, on nodes that are free."""
    fewest, most = job.limits.workers
    names = {*plan.worker_nodes, *plan.server_nodes}
    stays = plan.synchronous or "async" in job.allow
    return (
        bool(names)
        and names <= set(free)
        and fewest <= plan.workers <= (most or plan.workers)
        and stays
    )
