"""The plans that a job could have."""

from __future__ import annotations

from headgate.cluster import Cluster, Node
from headgate.errors import UsageError
from headgate.jobs import Job, Limits
from headgate.planning.placement import place
from headgate.plans import Plan
from headgate.units import say_bytes


def candidates(cluster: Cluster, job: Job) -> list[Plan]:
    """The plan that the user states, placed; else a `single` plan on each node that the job's limits fit on, the nodes
    with the most cores first.

    Raises:
        UsageError: They fit on none, and the message says why for each; or the stated plan names a node that is not
            there or that the limits do not fit on.
    """
    misfits = {node.name: reason for node in cluster.nodes if (reason := _misfit(node, job.limits)) is not None}
    fitting = [node for node in cluster.nodes if node.name not in misfits]
    if job.plan is not None:
        for name in (*job.plan.worker_nodes, *job.plan.server_nodes):
            if name in misfits:
                raise UsageError(f"job {job.name!r}: {misfits[name]}; lower its limits, or name another node")
            if name not in {node.name for node in fitting}:
                known = ", ".join(node.name for node in cluster.nodes)
                raise UsageError(f"job {job.name!r}: its plan names node {name!r}; expected one of {known}")
    if not fitting:
        reasons = "; ".join(misfits.values())
        raise UsageError(f"job {job.name!r} fits on no node: {reasons}; lower its limits")
    if job.plan is not None:
        return [place(job.plan, fitting)]
    fitting.sort(key=lambda node: (-node.cores, node.name))
    cores = job.limits.cores
    return [
        Plan(strategy="single", workers=1, batch_per_worker=None, worker_nodes=(node.name,), cores_per_worker=cores)
        for node in fitting
    ]


def _misfit(node: Node, limits: Limits) -> str | None:
    """Why a task of the job does not fit on a node; None where it does."""
    if limits.gpus is not None and limits.gpus > len(node.gpus):
        return f"{node.name} has {len(node.gpus)} GPUs, {limits.gpus} are asked for"
    if limits.memory_bytes is not None and limits.memory_bytes > node.memory_bytes:
        asked, has = say_bytes(limits.memory_bytes), say_bytes(node.memory_bytes)
        return f"{node.name} has {has} of memory, {asked} are asked for"
    return None
