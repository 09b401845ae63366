"""Finds waiting jobs another plan once a node has joined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headgate.controller.free_resources import FreeResources, ResourceRequest, request_of
from headgate.controller.gpu_memory import WorkerSlot
from headgate.controller.records import JobRecord
from headgate.controller.resource_requests import ResourceRequests
from headgate.model.cluster import Node
from headgate.model.plans import Plan
from headgate.planning.placement import place, place_within, unplaced


class Taken(NamedTuple):
    """Resources that were taken for a job, in these places."""

    request: ResourceRequest
    slots: tuple[WorkerSlot, ...]


def relocate(
    job: JobRecord,
    node: Node,
    nodes: Mapping[str, Node],
    requests: ResourceRequests,
    resources: FreeResources,
    least_bytes: int,
) -> Taken | None:
    """Switch a job to another plan that has room: on the new node, or on several together. None,
    with nothing changed: there is none.

    Args:
        job: The job.
        node: The new node.
        nodes: All available nodes.
        requests: What the job asks for under a plan.
        resources: Taken for the job; the caller returns them.
        least_bytes: Memory of a worker as asked for so far. On smaller nodes than those of its
            plan, the job would get along with less.
    """
    before = job.planned()
    spread = _spread(job, node, nodes, resources, requests.gpus_are_shared)
    for plan in (place(unplaced(before), [node]), spread):
        if plan is None:
            continue
        job.plan = plan
        request = requests.of(job)
        if request is None or request.memory_bytes < least_bytes:
            continue
        if (slots := resources.seize(request)) is not None:
            return Taken(request, slots)
    job.plan = before
    return None


def _spread(
    job: JobRecord,
    node: Node,
    nodes: Mapping[str, Node],
    resources: FreeResources,
    gpus_are_shared: bool,
) -> Plan | None:
    """A plan over all nodes with partial room for a job; None: not enough for all of it."""
    before = job.planned()
    others = [other for other in job.reachable(nodes) if other.name != node.name]
    job.plan = unplaced(before)
    request = request_of(job, gpus_are_shared)
    job.plan = before
    if request is None:
        return None
    plan = place_within(
        before,
        [node, *others],
        lambda name, workers, _: resources.has_place(request, name, workers),
    )
    return plan if plan is not None and node.name in plan.worker_nodes else None
