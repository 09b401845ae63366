"""The possible plans of a job."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from headgate.isolation import IN_GUESTS
from headgate.model.cluster import Cluster, Node
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.profiles import Profile
from headgate.model.reasons import RefusalKind
from headgate.model.refused import RefusedError
from headgate.planning.devices import timed
from headgate.planning.memory import misfit
from headgate.planning.placement import place, place_roles

_ONE_GUEST = "a node of a lab has one guest at a time"
_TASKS_A_CORE, _TASKS_ANYWHERE, _MOST_TASKS = 16, 64, 10_000


def candidates(
    cluster: Cluster,
    job: Job,
    profile: Profile | None = None,
    *,
    used: Collection[str] = (),
    beside: Mapping[str, float] | None = None,
    measured_on: Node | None = None,
    most: int = 256,
) -> list[Plan]:
    """The possible plans of a job; the first is the one to run.

    - A plan that the user states is the only one; it is placed.
    - A job in guests has a single task, unless its user states a plan.
    - With a profile: strategies, workers, servers, batches, backup workers and placements that keep
      the user's mathematics, and whatever else the job allows. The fastest by the cost model comes
      first.
    - Without a step time in the profile: a `single` plan on each node that satisfies the job's
      limits. Nodes with the most cores for each of their tasks come first.

    Args:
        cluster: The available nodes.
        job: The job. Its limits, permissions and stated plan count.
        profile: The job's profile.
        used: Names of nodes that other jobs have exclusively; they stay unused.
        beside: How many tasks the other jobs on each other node count as; None: unknown.
        measured_on: The node that the profile was measured on, to compare cores; None: unknown.
        most: Most plans to return.

    Raises:
        RefusedError: No plan can run; the refusal has one for each node or kind of node. Or the
            stated plan names an unknown node, or one on which the limits do not fit.
    """
    least, most_tasks = (
        job.plan.tasks if job.plan is not None else job.limits.workers[0],
        tasks_on(cluster),
    )
    if least > most_tasks:
        raise RefusedError.of(
            RefusalKind.TOO_MANY_TASKS,
            job=job.name,
            tasks=least,
            most=most_tasks,
            nodes=len(cluster.nodes),
            cores=sum(node.cores for node in cluster.nodes),
        )
    if job.isolation in IN_GUESTS and (why := _not_in_guests(cluster, job, least)):
        raise RefusedError.of(RefusalKind.NOT_IN_GUESTS, job=job.name, text=why)
    if (
        job.plan is None
        and profile is not None
        and tells(profile)
        and job.isolation not in IN_GUESTS
    ):
        from headgate.planning.cost import CostModel  # imported late: their numerics take time
        from headgate.planning.search import Looked
        from headgate.planning.spaces import Space

        looked = Looked(Space(CostModel(job, cluster, profile, measured_on=measured_on), used))
        looked.enumerate()
        return looked.ranked(most)
    if left := [node for node in cluster.nodes if node.name not in used]:
        return _without_profile(Cluster(tuple(left)), job, beside or {})
    raise RefusedError.of(RefusalKind.NODES_TAKEN, job=job.name, nodes=len(cluster.nodes))


def tasks_on(cluster: Cluster) -> int:
    """Most tasks of one job that are planned for a cluster: more would only wait for each other on
    its cores.
    """
    return min(
        max(_TASKS_A_CORE * math.ceil(sum(node.cores for node in cluster.nodes)), _TASKS_ANYWHERE),
        _MOST_TASKS,
    )


def tells(profile: Profile) -> bool:
    """Whether a profile gives the time of a step, measured or from its FLOPs."""
    return bool(timed(profile) or profile.flops_per_sample)


def _without_profile(cluster: Cluster, job: Job, beside: Mapping[str, float]) -> list[Plan]:
    if job.roles:
        return [place_roles(job, cluster.nodes, beside)]
    misfits = {
        node.name: lack for node in cluster.nodes if (lack := misfit(node, job.limits)) is not None
    }
    fitting = [node for node in cluster.nodes if node.name not in misfits]
    if job.plan is not None:
        for name in (*job.plan.worker_nodes, *job.plan.server_nodes):
            if name in misfits:
                lacks = misfits[name]
                raise RefusedError.of(RefusalKind.NODE_TOO_SMALL, job=job.name, lacks=lacks)
            if name not in {node.name for node in fitting}:
                known = tuple(node.name for node in cluster.nodes)
                raise RefusedError.of(
                    RefusalKind.UNKNOWN_NODE, job=job.name, node=name, nodes=known
                )
    if not fitting:
        lacking = tuple(misfits.values())
        raise RefusedError.of(RefusalKind.NO_NODE_FITS, job=job.name, lacks=lacking)
    if job.plan is not None:
        placed = place(job.plan, fitting, beside)
        if job.isolation in IN_GUESTS and len(
            set(on := placed.worker_nodes + placed.server_nodes)
        ) < len(on):
            text = f"{_ONE_GUEST}; name as many nodes as its plan has tasks"
            raise RefusedError.of(RefusalKind.NOT_IN_GUESTS, job=job.name, text=text)
        return [placed]
    fitting.sort(key=lambda node: (-node.cores / (1 + beside.get(node.name, 0)), node.name))
    cores = job.limits.cores
    return [
        Plan(
            strategy="single",
            workers=1,
            batch_per_worker=None,
            worker_nodes=(node.name,),
            cores_per_worker=cores,
        )
        for node in fitting
    ]


def _not_in_guests(cluster: Cluster, job: Job, tasks: int) -> str:
    """Why a job cannot run in guests, one for each task; empty: it can."""
    if job.roles:
        return f"jobs made of roles do not run in guests; leave `isolation: {job.isolation}` out"
    if tasks == 1:
        return ""
    if any(node.place is None for node in cluster.nodes):
        return "its guests could not reach each other; run it on a lab, or as one worker"
    if tasks > len(cluster.nodes):
        return f"{_ONE_GUEST}, and there are {len(cluster.nodes)}; ask for fewer workers"
    return ""
