"""The plans that a job could have."""

from __future__ import annotations

from headgate.cluster import Cluster
from headgate.errors import UsageError
from headgate.jobs import Job
from headgate.plans import Plan
from headgate.units import say_bytes


def candidates(cluster: Cluster, job: Job) -> list[Plan]:
    """A `single` plan on each node that the job's limits fit on, the nodes with the most cores first.

    Raises:
        UsageError: They fit on none; the message says why for each.
    """
    reasons = []
    fitting = []
    for node in cluster.nodes:
        if job.limits.gpus is not None and job.limits.gpus > len(node.gpus):
            reasons.append(f"{node.name} has {len(node.gpus)} GPUs, {job.limits.gpus} are asked for")
        elif job.limits.memory_bytes is not None and job.limits.memory_bytes > node.memory_bytes:
            asked, has = say_bytes(job.limits.memory_bytes), say_bytes(node.memory_bytes)
            reasons.append(f"{node.name} has {has} of memory, {asked} are asked for")
        else:
            fitting.append(node)
    if not fitting:
        raise UsageError(f"job {job.name!r} fits on no node: {'; '.join(reasons)}; lower its limits")
    fitting.sort(key=lambda node: (-node.cores, node.name))
    cores = job.limits.cores
    return [
        Plan(strategy="single", workers=1, batch_per_worker=None, worker_nodes=(node.name,), cores_per_worker=cores)
        for node in fitting
    ]
