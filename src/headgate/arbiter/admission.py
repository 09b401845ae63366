"""Room of a machine for the jobs of all users: who starts, and who must not delay whom."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from headgate.arbiter.events import MachineUsed
from headgate.arbiter.records import (
    Booking,
    JobDemand,
    JobWaits,
    MachineJob,
    ResourceGrant,
    StartPromise,
    WaitKind,
)
from headgate.controller.free_resources import FreeResources, ResourceRequest
from headgate.controller.gpu_memory import WorkerSlot
from headgate.controller.start_forecast import ExpectedStart, expected_starts
from headgate.model.cluster import Node

TYPICAL_SECONDS = 600.0
"""A job of unknown length takes so long, until some have ended."""


@dataclass(slots=True)
class _Promise:
    """Requests that have to fit at a time, whatever is started before.

    Args:
        at: The time.
        resources: What is free then.
        requests: The requests. One of a reservation has its user: it is there for that user's jobs.
        job: The waiting job that starts then; None: only reservations do.
        is_soft: It counts with jobs of unknown length as they are likely to end.
    """

    at: float
    resources: FreeResources
    requests: Sequence[tuple[str | None, ResourceRequest]]
    job: MachineJob | None = None
    is_soft: bool = False

    def holds_with(self, user: str, request: ResourceRequest, slots: Iterable[WorkerSlot]) -> bool:
        """Whether the requests still fit beside a user's job that then runs in these places."""
        self.resources.take(request, slots)
        is_kept = _fit(self.resources, (other for owner, other in self.requests if owner != user))
        self.resources.give(request, slots)
        return is_kept


class _Claim(NamedTuple):
    """A job as forecasts of starts take it."""

    id: MachineJob
    request: ResourceRequest
    slots: tuple[WorkerSlot, ...] = ()


def _fit(resources: FreeResources, requests: Iterable[ResourceRequest]) -> bool:
    """Whether the requests fit together. Nothing is taken."""
    taken: list[tuple[ResourceRequest, tuple[WorkerSlot, ...]]] = []
    fit = True
    for request in requests:
        slots = resources.seize(request)
        if slots is None:
            fit = False
            break
        taken.append((request, slots))
    for request, slots in taken:
        resources.give(request, slots)
    return fit


class Room:
    """What jobs hold of a machine, and what is promised.

    The first job that does not fit is promised its start: when enough running jobs have surely
    ended. A job of unknown length may end at any moment. A later job starts before it only if the
    promise is kept with it (backfill, as in EASY; Lifka 1995), and so for reservations.

    A soft promise takes a running job of unknown length to go on for as long as it has run, and one
    that has yet to start to take the typical time.

    Args:
        node: The machine.

    Attributes:
        grants: What running jobs hold.
        bookings: The reservations.
        typical_seconds: What a job of unknown length takes.
        leaving: Jobs that are giving back what they hold, and when they likely have, and when at
            the latest.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.grants: dict[MachineJob, ResourceGrant] = {}
        self.bookings: dict[int, Booking] = {}
        self.leaving: Mapping[MachineJob, tuple[float, float]] = {}
        self.typical_seconds = TYPICAL_SECONDS
        self.resources = FreeResources()
        self.resources.join(node)
        self._of_bookings: list[_Promise] = []
        self._of_job: _Promise | None = None
        self._without_room: dict[
            tuple[int, int, int | None], int
        ] = {}  # least memory that had none

    def take_up(self, grant: ResourceGrant) -> None:
        """Count what a job holds as taken, whether there is room or not."""
        self.grants[grant.job] = grant
        self.resources.take(grant.demand.request(self.node.name), grant.slots)

    def release(self, job: MachineJob) -> ResourceGrant | None:
        """Return what a job holds; None: it held nothing."""
        grant = self.grants.pop(job, None)
        if grant is not None:
            self.resources.give(grant.demand.request(self.node.name), grant.slots)
        return grant

    def resize(self, job: MachineJob, memory_bytes: int) -> None:
        """Let each worker of a running job have other memory, if there is room for it."""
        grant, name = self.grants[job], self.node.name
        demand = replace(grant.demand, memory_bytes=memory_bytes)
        more = demand.all_memory_bytes - grant.demand.all_memory_bytes
        if more > self.resources.left(name, grant.demand.all_memory_bytes)[1]:
            return
        self.resources.give(grant.demand.request(name), grant.slots)
        self.resources.take(demand.request(name), grant.slots)
        self.grants[job] = replace(grant, demand=demand)

    def observe(self, reading: MachineUsed, outside_gpus: Literal["leave", "last"]) -> bool:
        """Record what others use. GPUs that outside programs use get no job, or jobs last that
        share them. Returns whether there may be more room.
        """
        name, memory = self.node.name, self.resources.gpu_memory
        has_more = self.resources.observe(name, reading.free_bytes, reading.held_bytes)
        used = {gpu: read.used for gpu, read in reading.gpus.items()}
        held = {gpu: read.held for gpu, read in reading.gpus.items()}
        has_more = memory.observe(name, used, held) or has_more
        left_alone = reading.outside if outside_gpus == "leave" else frozenset[int]()
        has_more = memory.limit(name, frozenset(), left_alone) or has_more
        before, counts = memory.others(name), Counter(reading.outside)
        memory.others = lambda _: counts
        return has_more or counts != before

    def could(self, demand: JobDemand) -> bool:
        """Whether a job would fit if nothing ran."""
        return self.resources.could(demand.request(self.node.name))

    def book(self, booking: Booking) -> bool:
        """Add a reservation if it fits on the machine beside the others. Returns whether it did."""
        empty, name = FreeResources(), self.node.name
        empty.join(self.node)
        during = [
            other
            for other in self.bookings.values()
            if other.begin < booking.end and booking.begin < other.end
        ]
        for at in {booking.begin, *(max(other.begin, booking.begin) for other in during)}:
            beside = [other for other in during if other.begin <= at < other.end]
            if not _fit(empty, (other.demand.request(name) for other in (*beside, booking))):
                return False
        self.bookings[booking.id] = booking
        return True

    def drop_ended(self, now: float) -> None:
        """Drop the reservations that have ended."""
        self.bookings = {id: booking for id, booking in self.bookings.items() if booking.end > now}

    def begin(self, now: float) -> None:
        """Begin a round of decisions: promise the reservations what they are for."""
        self._of_job = None
        self._without_room.clear()
        self._promise_bookings(now)

    def start(
        self, now: float, job: MachineJob, demand: JobDemand, ends: float
    ) -> ResourceGrant | JobWaits:
        """Start a job if it fits and keeps all promises.

        Args:
            now: Seconds; that of `begin`.
            job: The job.
            demand: What it needs.
            ends: When it has surely ended; infinite: not known.
        """
        request = demand.request(self.node.name)
        kind = demand.workers, demand.gpus, demand.gpu_memory_bytes
        least = self._without_room.get(kind, math.inf)  # nothing is returned within a round
        slots = self.resources.seize(request) if demand.memory_bytes < least else None
        if slots is None:
            self._without_room[kind] = int(min(demand.memory_bytes, least))
            return JobWaits(job, WaitKind.NO_ROOM)
        self.resources.give(request, slots)
        promises = [*self._of_bookings, *([self._of_job] if self._of_job is not None else [])]
        counts_until = min(ends, self._booked_until(now, job.hub.user, demand))
        likely = counts_until if demand.left else min(counts_until, now + self.typical_seconds)
        during = [
            promise
            for promise in promises
            if promise.at < (likely if promise.is_soft else counts_until)
        ]
        for promise in during:
            if not promise.holds_with(job.hub.user, request, slots):
                return JobWaits(job, WaitKind.OTHERS_FIRST, delays=promise.job)
        for promise in during:
            promise.resources.take(request, slots)
        grant = ResourceGrant(job, demand, slots, now, ends, ends)
        self.take_up(grant)
        if any(booking.user == job.hub.user for booking in self.bookings.values()):
            self._promise_bookings(now)  # less of it is left for the user's other jobs
        return grant

    def promise(
        self, now: float, job: MachineJob, demand: JobDemand, is_soft: bool = False
    ) -> StartPromise | None:
        """Promise a job that does not fit the earliest start that it surely has, or likely, if the
        promise is soft; None: reservations or a lost GPU leave it no room.
        """
        bookings = [
            booking
            for booking in self._booked(now, now, demand.ends(now))
            if booking.user != job.hub.user
        ]
        request = demand.request(self.node.name)
        for at in sorted({now, *(booking.end for booking in bookings)}):
            beside = [booking for booking in bookings if booking.end > at]
            requests = [*self._requests_of(beside, at), (None, request)]
            promise = self._promise(now, at, requests, is_soft)
            if promise is not None:
                promise.job = job
                self._of_job = promise
                return StartPromise(job, promise.at)
        return None

    def expected(
        self, now: float, waiting: Mapping[MachineJob, JobDemand], which: Literal["likely", "most"]
    ) -> Iterator[ExpectedStart[MachineJob]]:
        """The start of each waiting job, in their order, if jobs take as long as is likely, or as
        they surely do at most. A reservation of another user only delays jobs that do not fit
        beside reservations alone.
        """
        node = self.node.name
        running = [
            _Claim(job, grant.demand.request(node), grant.slots)
            for job, grant in self.grants.items()
        ]
        ends: dict[MachineJob, float] = {}
        for job, grant in self.grants.items():
            if (left := grant.demand.left) is not None:
                ends[job] = grant.ends - left.most + getattr(left, which)
        for job, (soon, late) in self.leaving.items():
            ends[job] = min(ends.get(job, math.inf), soon if which == "likely" else late)
        claims = [_Claim(job, demand.request(node)) for job, demand in waiting.items()]
        starts = expected_starts(
            now, self.resources, claims, running, ends, lambda job: waiting[job].lasts(which)
        )
        for start, (job, demand) in zip(starts, waiting.items(), strict=True):
            if start.at is None or not self.bookings:
                yield start
            else:
                yield start._replace(at=self._beside_bookings(start.at, job.hub.user, demand))

    def _beside_bookings(self, at: float, user: str, demand: JobDemand) -> float:
        """From when on a job fits beside other users' reservations, if nothing else runs."""
        empty, name = FreeResources(), self.node.name
        empty.join(self.node)
        others = [booking for booking in self.bookings.values() if booking.user != user]
        ends = sorted(booking.end for booking in others if booking.end > at)
        for begin in (at, *ends):
            during = self._booked(begin, begin, demand.ends(begin))
            beside = (booking.demand for booking in during if booking.user != user)
            if _fit(empty, (other.request(name) for other in (*beside, demand))):
                return begin
        return ends[-1] if ends else at

    def _booked_until(self, now: float, user: str, demand: JobDemand) -> float:
        """The end of a reservation that has room for a job of its user; infinite: none has. What is
        promised after that does not bind the job.
        """
        held = [grant.demand for grant in self.grants.values() if grant.job.hub.user == user]
        for booking in self.bookings.values():
            left = _without(booking.demand, held)
            if booking.user == user and booking.begin <= now < booking.end and left is not None:
                fits = demand.all_gpus <= left.all_gpus
                if fits and demand.all_memory_bytes <= left.all_memory_bytes:
                    return booking.end
        return math.inf

    def _promise_bookings(self, now: float) -> None:
        self._of_bookings = []
        for booking in self._booked(now, now, math.inf):
            at = max(now, booking.begin)
            requests = self._requests_of(self._booked(now, at, at), at)
            if (promise := self._promise(now, at, requests)) is not None:
                self._of_bookings.append(promise)

    def _booked(self, now: float, begin: float, end: float) -> Iterator[Booking]:
        """The reservations that have not ended and overlap with a time."""
        for booking in self.bookings.values():
            if booking.end > max(now, begin) and booking.begin <= end:
                yield booking

    def _requests_of(
        self, bookings: Iterable[Booking], at: float
    ) -> list[tuple[str | None, ResourceRequest]]:
        """What the users of reservations may still take of them."""
        requests: list[tuple[str | None, ResourceRequest]] = []
        for booking in bookings:
            held = [
                grant.demand
                for grant in self.grants.values()
                if grant.job.hub.user == booking.user and grant.ends > at
            ]
            left = _without(booking.demand, held)
            if left is not None:
                requests.append((booking.user, left.request(self.node.name)))
        return requests

    def _promise(
        self,
        now: float,
        at: float,
        requests: Sequence[tuple[str | None, ResourceRequest]],
        is_soft: bool = False,
    ) -> _Promise | None:
        """The promise that requests fit together, from `at` on; None: they never do.

        Of the jobs that may still run at that time, the fewest leave: those that are leaving, then
        those that end first.
        """
        resources = self.resources.copy()
        wanted = [request for _, request in requests]
        leaving: list[tuple[float, ResourceGrant]] = []
        for grant in self.grants.values():
            if now < grant.ends <= at:
                resources.give(grant.demand.request(self.node.name), grant.slots)
            else:
                leaving.append((self._may_end(now, grant, is_soft), grant))
        leaving.sort(key=lambda entry: (entry[1].job not in self.leaving, entry[0], entry[1].since))
        gone: list[tuple[float, ResourceGrant]] = []
        while not (is_met := _fit(resources, wanted)) and leaving:
            gone.append(leaving.pop(0))
            resources.give(gone[-1][1].demand.request(self.node.name), gone[-1][1].slots)
        if not is_met:
            return None
        for end, grant in reversed(gone):
            request = grant.demand.request(self.node.name)
            resources.take(request, grant.slots)
            if not _fit(resources, wanted):
                resources.give(request, grant.slots)
                at = max(at, end)
        return _Promise(at, resources, requests, is_soft=is_soft)

    def _may_end(self, now: float, grant: ResourceGrant, is_soft: bool) -> float:
        """When a running job ends at the earliest, as promises take it."""
        if grant.job in self.leaving:
            return now
        if now < grant.ends < math.inf:
            return grant.ends
        return now + (now - grant.since) if is_soft else now


def _without(booked: JobDemand, held: Iterable[JobDemand]) -> JobDemand | None:
    """What is left of a reservation beside jobs of its user; None: nothing."""
    jobs = list(held)
    gpus = booked.all_gpus - sum(job.all_gpus for job in jobs)
    memory = booked.all_memory_bytes - sum(job.all_memory_bytes for job in jobs)
    if gpus <= 0 and memory <= 0:
        return None
    return JobDemand(booked.id, gpus=max(gpus, 0), memory_bytes=max(memory, 0))
