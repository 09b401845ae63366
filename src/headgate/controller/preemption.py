"""Rank running jobs, and preempt those that rank last for another."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush

from headgate.controller.free_resources import Eviction, FreeResources, ResourceRequest
from headgate.controller.queue_orders import Claim, Order
from headgate.model.actions import Action
from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind

Key = tuple[float, ...]
"""Negated priority, then the order's rank, then the position of submission."""


class Ranking:
    """Keeps running jobs in the order in which they would be served.

    Args:
        order: The order of jobs.
    """

    def __init__(self, order: Order) -> None:
        self._order = order
        # by the last computed key: no rank has got worse since
        self._entries: list[tuple[Key, Claim]] = []
        self._keys: dict[JobId, Key] = {}
        self._reviews: list[tuple[float, int, Claim]] = []
        self._count = 0

    def __iter__(self) -> Iterator[Claim]:
        return (claim for _, claim in self._entries)

    @property
    def worse_at(self) -> float | None:
        """When the next job's rank gets worse."""
        return self._reviews[0][0] if self._reviews else None

    def key(self, claim: Claim, now: float) -> Key:
        """The rank of a running or waiting job; lower goes first."""
        return (-claim.job.priority, *self._order.rank(claim, now), claim.job.number)

    def add(self, claim: Claim, now: float) -> None:
        """Add a job that has started to run."""
        key = self._keys[claim.job.id] = self.key(claim, now)
        insort(self._entries, (key, claim))
        claim.review = self._order.worse_at(claim, now)
        if claim.review is not None:
            self._count += 1
            heappush(self._reviews, (claim.review, self._count, claim))

    def remove(self, claim: Claim) -> None:
        """Remove a job; nothing happens if it is not ranked."""
        key = self._keys.pop(claim.job.id, None)
        if key is not None:
            del self._entries[bisect_left(self._entries, (key,))]

    def review(self, now: float) -> bool:
        """Rank again the jobs whose rank has got worse by now. Returns whether there were any."""
        is_changed = False
        while self._reviews and self._reviews[0][0] <= now:
            when, _, claim = heappop(self._reviews)
            if claim.job.id in self._keys and claim.review == when:
                self.remove(claim)
                self.add(claim, now)
                is_changed = True
        return is_changed

    def victims(
        self, now: float, key: Key, request: ResourceRequest, resources: FreeResources
    ) -> list[Claim]:
        """Jobs to preempt so that a request fits, the lowest rank first. Empty if even all jobs
        that rank behind it are not enough.
        """
        if not self._enough(key, request.all_gpus - resources.free_gpus):
            return []
        gone: list[tuple[Key, Claim]] = []
        eviction = Eviction(resources, request)
        while not eviction.fits and (worst := self._worst(now)) is not None and worst[0] > key:
            gone.append(self._entries.pop())
            eviction.give(worst[1].request, worst[1].slots)
        self._entries.extend(reversed(gone))  # each was the last when it was removed
        if not eviction.fits:
            return []
        needed: list[Claim] = []
        # the first in rank keep their room if the others free enough
        for _, claim in reversed(gone):
            eviction.give(claim.request, claim.slots, -1)
            if not eviction.fits:
                eviction.give(claim.request, claim.slots)
                needed.append(claim)
        return needed

    def ended_for(self, request: ResourceRequest, resources: FreeResources) -> list[Claim]:
        """Jobs to end so that the request of an urgent job fits, the first in rank first: as few as
        are needed, and none that `keeps_room`. Empty: even all of them are not enough.
        """
        given: list[Claim] = []
        for _, claim in reversed(self._entries):
            if resources.fits(request):
                break
            if claim.job.keeps_room is None:
                resources.give(claim.request, claim.slots)
                given.append(claim)
        is_enough, needed = resources.fits(request), list[Claim]()
        for claim in reversed(given):
            resources.take(claim.request, claim.slots)
            if is_enough and not resources.fits(request):
                resources.give(claim.request, claim.slots)
                needed.append(claim)
        for claim in needed:
            resources.take(claim.request, claim.slots)
        return needed

    def _enough(self, key: Key, wanting: int) -> bool:
        """Whether jobs that rank behind hold this many GPUs in all."""
        for other, claim in reversed(self._entries):
            if other <= key:
                return False
            wanting -= claim.request.all_gpus
            if wanting <= 0:
                return True
        return False

    def _worst(self, now: float) -> tuple[Key, Claim] | None:
        """The job with the lowest rank as of now."""
        while self._entries:
            key, claim = self._entries[-1]
            fresh = self.key(claim, now)
            if fresh >= key:
                return self._entries[-1]
            self._entries.pop()
            self._keys[claim.job.id] = fresh
            insort(self._entries, (fresh, claim))
        return None


class Preemption:
    """Stops running jobs for the first one that waits, and keeps their room for it until it has
    started.

    Args:
        order: The order of jobs.
        running: The running jobs.
        resources: What they hold.
    """

    def __init__(self, order: Order, running: Ranking, resources: FreeResources) -> None:
        self._order = order
        self._running = running
        self._resources = resources
        self._reserved: tuple[Key, Claim] | None = None
        self._leaving: set[JobId] = set()
        # ranks whose request does not fit, even with the resources of jobs that rank behind
        self._hopeless: dict[ResourceRequest, Key] = {}

    def reconsider(self) -> None:
        """Jobs for which stopping others was not enough may fit now."""
        self._hopeless.clear()

    def ended(self, job: JobId) -> None:
        """A job has ended, stopped or not."""
        self._leaving.discard(job)
        self._hopeless.clear()

    def settle(self) -> None:
        """Stop making room once the waiting job no longer waits or all preempted jobs have
        ended.
        """
        if self._reserved is not None and not (self._leaving and self._reserved[1].job.queued):
            self._reserved = None

    def goes_before(self, key: Key) -> bool:
        """Whether a job for which room is made ranks before this."""
        return self._reserved is not None and key > self._reserved[0]

    def make_room(self, now: float, key: Key, claim: Claim) -> list[Action]:
        """Stop running jobs for the first one that waits, if that makes room for it."""
        if self._reserved is not None:
            return []
        if not self._order.preempts:
            return self._end_others(key, claim) if claim.job.spec.urgent else []
        hopeless = self._hopeless.get(claim.request)
        if hopeless is not None and key >= hopeless:
            return []
        victims = self._running.victims(now, key, claim.request, self._resources)
        if victims:
            self._reserved = key, claim
        else:
            self._hopeless[claim.request] = key
        return [action for victim in victims for action in self._stop(victim, claim)]

    def _end_others(self, key: Key, claim: Claim) -> list[Action]:
        """End jobs with a checkpoint for an urgent one, if that makes room for it."""
        lacks = self._resources.shortage(claim.request)
        if lacks.of_jobs or lacks.kind == "gpu-unseen":
            return []
        actions = list[Action]()
        for other in self._running.ended_for(claim.request, self._resources):
            self._reserved = key, claim
            self._leave(other)
            if other.job.undisturbed:
                actions += other.job.release(claim.job.id)
        return actions

    def _stop(self, claim: Claim, other: Claim) -> list[Action]:
        """Preempt a job for another; it waits again."""
        job = claim.job
        self._leave(claim)
        if not job.undisturbed:
            return []
        job.restart = Reason.of(ReasonKind.MADE_ROOM, job=other.job.spec.name)
        reason = Reason.of(ReasonKind.MAKES_ROOM, job=other.job.spec.name)
        return [job.mark("stopping", reason), *(task.stop(reason) for task in job.tasks.values())]

    def _leave(self, claim: Claim) -> None:
        self._running.remove(claim)
        self._leaving.add(claim.job.id)
