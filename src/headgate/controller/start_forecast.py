"""When jobs that wait are expected to start."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from headgate.controller.free_resources import FreeResources, ResourceRequest
from headgate.controller.gpu_memory import WorkerSlot
from headgate.controller.queue_orders import Claim
from headgate.controller.shortage import Shortage
from headgate.model.identifiers import JobId

_LITTLE = 0.05
"""Of what a job waits for; who has less of it is not named."""


class StartForecast(NamedTuple):
    """When a job that waits is expected to start, and what it waits for.

    Args:
        lacks: What it waits for.
        holders: The jobs that have it now, or a part of it.
        at: When it is expected to start; None: cannot be predicted. Jobs of unknown length are
            taken to go on.
        unknown: Where it cannot be predicted, the jobs of unknown length that would have to end
            first.
    """

    job: JobId
    lacks: Shortage
    holders: tuple[JobId, ...]
    at: float | None
    unknown: tuple[JobId, ...] = ()


class ExpectedStart(NamedTuple):
    """When a job is expected to start; None: cannot be told before it is known how long the
    `unknown` ones take.
    """

    at: float | None
    unknown: tuple[JobId, ...] = ()


def expected_starts(
    now: float,
    resources: FreeResources,
    waiting: Sequence[Claim],
    running: Sequence[Claim],
    ends: Mapping[JobId, float],
    seconds: Callable[[JobId], float | None],
) -> Iterator[ExpectedStart]:
    """The start of each job that waits, if nobody starts before one that ranks higher.

    Args:
        now: Seconds on the run's clock; nobody starts before.
        resources: What is free now; it stays as it is.
        waiting: In their pending.
        ends: When those that run are expected to end; one that is not there is taken to go on.
        seconds: How long one that waits is expected to run for; None: it is taken to go on.
    """
    resources = deepcopy(resources)
    leaving = [
        (ends[claim.job.id], -i, claim, claim.slots)
        for i, claim in enumerate(running)
        if claim.job.id in ends
    ]
    heapify(leaving)
    staying = [(claim, claim.slots) for claim in running if claim.job.id not in ends]
    for place, claim in enumerate(waiting):
        while (slots := resources.seize(claim.request)) is None and leaving:
            end, _, gone, left = heappop(leaving)
            resources.give(gone.request, left)
            now = max(now, end)
        if slots is None:
            unknown = beside(claim.request, staying, resources.shortage(claim.request).on_gpu)
            yield from (ExpectedStart(None, unknown) for _ in waiting[place:])
            return
        yield ExpectedStart(now)
        lasts = seconds(claim.job.id)
        if lasts is None:
            staying.append((claim, slots))
        else:
            heappush(leaving, (now + lasts, place + 1, claim, slots))


def beside(
    request: ResourceRequest,
    claims: Iterable[tuple[Claim, tuple[WorkerSlot, ...]]],
    on_gpus: bool = False,
) -> tuple[JobId, ...]:
    """The jobs of some claims, each with its places, that are on nodes which are asked for; but for
    those that have little of their memory. `on_gpus`: those alone that have GPUs there.
    """
    wanted = set(request.fixed)
    return tuple(
        claim.job.id
        for claim, slots in claims
        if any((not wanted or slot.node in wanted) and (slot.gpus or not on_gpus) for slot in slots)
        and (on_gpus or claim.request.memory_bytes >= _LITTLE * request.memory_bytes)
    )
