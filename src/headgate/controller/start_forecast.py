"""Predict when waiting jobs start."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, Protocol, TypeVar

from headgate.controller.free_resources import FreeResources, ResourceRequest
from headgate.controller.gpu_memory import WorkerSlot
from headgate.controller.queue_orders import Claim
from headgate.controller.shortage import Shortage
from headgate.model.identifiers import JobId
from headgate.model.reasons import KeepsRoom

Id = TypeVar("Id", bound=Hashable, covariant=True)

_LITTLE = 0.05
"""Jobs that hold less than this fraction of what a job waits for are not named."""


class StartForecast(NamedTuple):
    """The expected start of a waiting job, and what it waits for.

    Args:
        lacks: What it waits for.
        holders: The jobs that hold it now, or a part of it.
        at: When it is expected to start; None: unpredictable. Jobs of unknown length are assumed to
            go on.
        unknown: If unpredictable, the jobs of unknown length that would have to end first.
        kept: Why holders are not ended for it, if it is urgent.
    """

    job: JobId
    lacks: Shortage
    holders: tuple[JobId, ...]
    at: float | None
    unknown: tuple[JobId, ...] = ()
    kept: tuple[tuple[JobId, KeepsRoom], ...] = ()


class Claimant(Protocol[Id]):
    """A job that waits for what it requests, or holds it in these places."""

    @property
    def id(self) -> Id: ...

    @property
    def request(self) -> ResourceRequest: ...

    @property
    def slots(self) -> tuple[WorkerSlot, ...]: ...


class ExpectedStart(NamedTuple, Generic[Id]):
    """The expected start of a job; None: it depends on how long the `unknown` jobs take."""

    at: float | None
    unknown: tuple[Id, ...] = ()


def expected_starts(
    now: float,
    resources: FreeResources,
    waiting: Sequence[Claimant[Id]],
    running: Sequence[Claimant[Id]],
    ends: Mapping[Id, float],
    seconds: Callable[[Id], float | None],
) -> Iterator[ExpectedStart[Id]]:
    """The start of each waiting job, if no job starts before one that ranks higher.

    Args:
        now: Seconds on the run's clock; no job starts earlier.
        resources: Free resources now; not modified.
        waiting: Waiting jobs, in their order.
        running: Running jobs.
        ends: Expected ends of running jobs; a missing one is assumed to go on.
        seconds: Expected run time of a waiting job; None: it is assumed to go on.
    """
    resources = resources.copy()
    leaving = [
        (ends[claim.id], -i, claim, claim.slots)
        for i, claim in enumerate(running)
        if claim.id in ends
    ]
    heapify(leaving)
    staying = [(claim, claim.slots) for claim in running if claim.id not in ends]
    for place, claim in enumerate(waiting):
        while (slots := resources.seize(claim.request)) is None and leaving:
            end, _, gone, left = heappop(leaving)
            resources.give(gone.request, left)
            now = max(now, end)
        if slots is None:
            unknown = beside(claim.request, staying, resources.shortage(claim.request))
            yield from (ExpectedStart(None, unknown) for _ in waiting[place:])
            return
        yield ExpectedStart(now)
        lasts = seconds(claim.id)
        if lasts is None:
            staying.append((claim, slots))
        else:
            heappush(leaving, (now + lasts, place + 1, claim, slots))


def forecasts(
    now: float,
    resources: FreeResources,
    waiting: Sequence[Claim],
    running: Sequence[Claim],
    ends: Mapping[JobId, float],
    seconds: Callable[[JobId], float | None],
) -> list[StartForecast]:
    """What each waiting job waits for, and its start; arguments as of `expected_starts`."""
    starts = expected_starts(now, resources, waiting, running, ends, seconds)
    held = [(claim, claim.slots) for claim in running]
    kept = {claim.job.id: why for claim in running if (why := claim.job.keeps_room) is not None}
    lacking: dict[ResourceRequest, tuple[Shortage, tuple[JobId, ...]]] = {}
    # thousands of jobs may make the same request
    for request in dict.fromkeys(claim.request for claim in waiting):
        lacks = resources.shortage(request)
        lacking[request] = lacks, beside(request, held, lacks)
    start_forecasts = []
    for claim, start in zip(waiting, starts, strict=True):
        lacks, holders = lacking[claim.request]
        keeping = holders if claim.job.spec.urgent else ()
        reasons = tuple((job, kept[job]) for job in keeping if job in kept)
        start_forecasts.append(
            StartForecast(claim.job.id, lacks, holders, start.at, start.unknown, reasons)
        )
    return start_forecasts


def beside(
    request: ResourceRequest,
    claims: Iterable[tuple[Claimant[Id], tuple[WorkerSlot, ...]]],
    lacks: Shortage,
) -> tuple[Id, ...]:
    """Jobs among these claims that hold what a request lacks: slots of its group, GPUs of its
    nodes, or more than a little of their memory.

    Args:
        request: The request.
        claims: Claims, each with its places.
        lacks: What it lacks.
    """
    if lacks.of_jobs:
        full = next(group for group in request.groups if group.kind == lacks.kind)
        return tuple(claim.id for claim, _ in claims if full in claim.request.groups)
    wanted, on_gpus = set(request.fixed), lacks.on_gpu
    return tuple(
        claim.id
        for claim, slots in claims
        if any((not wanted or slot.node in wanted) and (slot.gpus or not on_gpus) for slot in slots)
        and (on_gpus or claim.request.memory_bytes >= _LITTLE * request.memory_bytes)
    )
