"""Take back what is the part of a user who waits from users who have more than theirs."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from statistics import median
from typing import NamedTuple

from headgate.arbiter.acts import Act, ActKind
from headgate.arbiter.admission import Room
from headgate.arbiter.events import JobTakenBack
from headgate.arbiter.holdings import Holding, is_guaranteed
from headgate.arbiter.records import Hub, JobDemand, MachineJob, ResourceGrant, Resumes
from headgate.model.cluster import Node
from headgate.model.sharing import SharingRules, UserShare

_GRACE_SECONDS = 180.0
"""A hub has so long to give a job back. Then it is told once more, and has as long again."""
_USUAL_SECONDS = 30.0
"""A job is given back after so long, until some have been."""
_JUDGED = 20
_SLACK = 1e-9
_ORDER = (*Resumes, None)
_TRIED = 8
"""For so many waiting jobs of a user it is seen whether others can give back enough."""


class WaitingJob(NamedTuple):
    """A job that waits for room, and since when."""

    job: MachineJob
    demand: JobDemand
    since: float


@dataclass(frozen=True, slots=True)
class Entitlements:
    """What users may have, and have.

    Args:
        node: The machine.
        shares: What each user may have who runs or wants something.
        all_shares: The shares of all of these.
        held: What each holds.
        past: The mean part of the machine that each had.
        booked: What is reserved for users now, which belongs to their part.
        by_shares: A user's part is by shares; else only what is guaranteed is.
    """

    node: Node
    shares: Mapping[str, UserShare]
    all_shares: float
    held: Mapping[str, Holding]
    past: Mapping[str, float]
    booked: Mapping[str, Holding]
    by_shares: bool

    def has(self, user: str) -> Holding:
        """What a user holds."""
        return self.held.get(user, Holding())

    def part(self, user: str) -> Holding:
        """A user's part of memory, GPUs and running jobs."""
        share, of_node = self.shares[user], 0.0
        if self.by_shares:
            of_node = share.shares / self.all_shares
        least, booked = share.guaranteed, self.booked.get(user, Holding())
        memory = int(of_node * self.node.memory_bytes)
        memory = max(least.memory_bytes or 0, booked.memory_bytes, memory)
        gpus = max(least.gpus or 0.0, booked.gpus, of_node * len(self.node.gpus))
        return Holding(0.0, memory, gpus, least.jobs or 0)

    def is_within_part(self, user: str, held: Holding, demand: JobDemand) -> bool:
        """Whether a further job of a user who holds this is within the user's part."""
        if is_guaranteed(self.shares[user], held, demand):
            return True
        if not self.by_shares and user not in self.booked:
            return False
        part, after = self.part(user), held.plus(demand)
        has_memory = after.memory_bytes <= part.memory_bytes or not demand.all_memory_bytes
        has_gpus = after.gpus <= part.gpus + _SLACK or not demand.all_gpus
        return has_memory and has_gpus

    def may_give(self, user: str, held: Holding, demand: JobDemand) -> bool:
        """Whether a user who holds this keeps the own part without one of the jobs, or would lose
        it only because that job is larger.
        """
        after, alone, part = held.minus(demand), Holding().plus(demand), self.part(user)
        amounts = (
            (part.memory_bytes, held.memory_bytes, after.memory_bytes, alone.memory_bytes),
            (part.gpus, held.gpus, after.gpus, alone.gpus),
            (part.jobs, held.jobs, after.jobs, alone.jobs),
        )
        above = [amount for amount in amounts if amount[1] > amount[0] + _SLACK]
        keeps = (left >= own - _SLACK or job > own + _SLACK for own, _, left, job in above)
        return all(keeps) and not self.is_within_part(user, after, demand)

    def has_turn(self, user: str, demand: JobDemand) -> bool:
        """Whether a job is larger than its user's part, who holds nothing of what it needs: the
        part is then had by turns.
        """
        has = self.has(user)
        holds = (demand.all_gpus and has.gpus) or (demand.all_memory_bytes and has.memory_bytes)
        return self.by_shares and not holds

    def charge(self, user: str) -> float:
        """What a user had of late, by shares."""
        return self.past.get(user, 0.0) / self.shares[user].shares


@dataclass(slots=True)
class _Order:
    """What a job was told.

    Args:
        act: The order.
        is_sent: Its hub was there when it was told, or has come back since.
        is_lost: Its hub is away since, and may not have heard it.
    """

    act: Act
    is_sent: bool
    is_lost: bool


class TakingBack:
    """Takes back for one waiting job at a time, for which all that becomes free is kept.

    1. A job has waited for long within its user's part. One that is larger than the part has it by
       turns: from users who had more of late, of whose parts only what is guaranteed or reserved
       then counts.
    2. Jobs of the user furthest above the own part give back first. Of these the first are those
       that lose least, and then the youngest.
    3. No user gets below the own part, unless a single job is larger than that.
    4. A job that has just started is spared. So is one that could not be resumed, unless the rules
       have it ended.
    5. The user of a hub that does not obey in time gets nothing more until it does. Meanwhile
       others have to give back. The time of a hub that is away begins when it comes back.

    Attributes:
        claim: The job that waits; None: nothing is taken back.
        asked: The jobs that were told to give back what they hold, and when.
    """

    def __init__(self) -> None:
        self.claim: WaitingJob | None = None
        self.asked: dict[MachineJob, float] = {}
        self._orders: dict[MachineJob, _Order] = {}
        self._kept: set[MachineJob] = set()  # not given back in time
        self._told_twice: set[MachineJob] = set()
        self._rest_until: dict[MachineJob, float] = {}
        self._took = deque[float](maxlen=_JUDGED)

    def is_for(self, job: MachineJob) -> bool:
        """Whether something is taken back for a job."""
        return self.claim is not None and self.claim.job == job

    def owes(self, user: str) -> bool:
        """Whether a hub of a user has not given back in time what it was told to."""
        return any(job.hub.user == user and self._orders[job].is_sent for job in self._kept)

    def ends(self) -> dict[MachineJob, tuple[float, float]]:
        """When the jobs that were told to likely have given back what they hold, and when at the
        latest.
        """
        usual = median(self._took) if self._took else _USUAL_SECONDS
        most = {job: (2 - (job in self._told_twice)) * _GRACE_SECONDS for job in self.asked}
        return {job: (at + usual, at + most[job]) for job, at in self.asked.items()}

    def follow(
        self, now: float, running: Collection[MachineJob], waiting: Collection[MachineJob]
    ) -> None:
        """See what has been given back, and whether the claim still stands."""
        for job in self.asked.keys() - running:
            self._took.append(now - self.asked.pop(job))
        self._kept.intersection_update(running)
        self._told_twice.intersection_update(running)
        self._rest_until = {job: at for job, at in self._rest_until.items() if job in waiting}
        if self.claim is not None and self.claim.job not in waiting:
            self.claim = None
            self.asked.clear()
        has_to = self.asked.keys() | self._kept
        self._orders = {job: order for job, order in self._orders.items() if job in has_to}

    def orders(
        self,
        now: float,
        room: Room,
        rules: SharingRules,
        entitled: Entitlements,
        waiting: Iterable[WaitingJob],
        hubs: Collection[Hub],
    ) -> Iterator[JobTakenBack]:
        """Choose what is taken back.

        Args:
            now: Seconds.
            room: What jobs hold; it is left as it is, but for `leaving`.
            rules: The administrator's rules.
            entitled: What users may have, and have.
            waiting: Jobs that lack room, in their order.
            hubs: The hubs that are there.
        """
        yield from self._again(now, hubs)
        late = [job for job, at in self.asked.items() if now >= at + _GRACE_SECONDS]
        for job in late:
            del self.asked[job]
            if job in self._told_twice or not self._orders[job].is_sent:
                self._kept.add(job)
            else:
                self._told_twice.add(job)
                is_lost = job.hub not in hubs and _resumes(room, job)
                yield self._order(now, job, rules.take_back_ends and not is_lost, hubs)
        if self.asked:
            return
        if self.claim is not None and not late:  # it has no room all the same
            self._rest_until[self.claim.job] = now + rules.take_back_after
        self.claim = None
        tried = Counter[str]()
        for claim in waiting:
            job, demand, since = claim
            user = job.hub.user
            begin = max(since + rules.take_back_after, self._rest_until.get(job, 0.0))
            if now < begin or tried[user] >= _TRIED:
                continue
            is_within = entitled.is_within_part(user, entitled.has(user), demand)
            if not (is_within or entitled.has_turn(user, demand)):
                continue
            tried[user] += 1
            above, theirs = None, entitled
            if not is_within:
                above, theirs = entitled.charge(user), replace(entitled, by_shares=False)
            spared = self._kept | _spared(now, room.grants.values(), user, rules)
            grants = _needed(room, demand, spared, theirs, above)
            if grants and _starts(now, room, job, demand, grants):
                self.claim = claim
                for grant in grants:
                    yield self._order(now, grant.job, not _resumes(room, grant.job), hubs)
                return

    def _again(self, now: float, hubs: Collection[Hub]) -> Iterator[JobTakenBack]:
        """Tell hubs that have come back what they may not have heard."""
        for job, order in list(self._orders.items()):
            if job.hub not in hubs:
                order.is_lost = True
            elif not order.is_sent and job in self._kept:  # others give back instead
                self._kept.discard(job)
                del self._orders[job]
            elif order.is_lost:
                if not order.is_sent:
                    self.asked[job] = now
                order.is_sent, order.is_lost = True, False
                yield JobTakenBack(job, replace(order.act, at=now))

    def _order(
        self, now: float, job: MachineJob, ends: bool, hubs: Collection[Hub]
    ) -> JobTakenBack:
        """Have a job give back what it holds, or end for good."""
        if self.claim is None:
            raise ValueError(f"nothing is taken back from {job}")
        self.asked[job] = now
        by, waited = self.claim.job.hub.user, now - self.claim.since
        act = Act(now, by, ActKind.TAKE_BACK, job.hub.user, job.id, waited=waited, ends=ends)
        is_there, is_second = job.hub in hubs, job in self._told_twice
        self._orders[job] = _Order(act, is_there or is_second, not is_there)
        return JobTakenBack(job, act)


def _resumes(room: Room, job: MachineJob) -> bool:
    """Whether a running job can be resumed."""
    return room.grants[job].demand.resumes is not Resumes.NO


def _starts(
    now: float, room: Room, job: MachineJob, demand: JobDemand, gone: Iterable[ResourceGrant]
) -> bool:
    """Whether a job starts once others are gone, also beside reservations."""
    room.leaving = {grant.job: (now, now) for grant in gone}
    promise = room.promise(now, job, demand)
    return promise is not None and promise.at <= now


def _spared(
    now: float, grants: Iterable[ResourceGrant], user: str, rules: SharingRules
) -> set[MachineJob]:
    """The jobs that do not give back anything to a user."""
    return {
        grant.job
        for grant in grants
        if grant.job.hub.user == user
        or grant.demand.resumes is None
        or now < grant.since + rules.take_back_spares
        or (grant.demand.resumes is Resumes.NO and not rules.take_back_ends)
    }


def _needed(
    room: Room,
    wanted: JobDemand,
    spared: Collection[MachineJob],
    entitled: Entitlements,
    above: float | None,
) -> list[ResourceGrant]:
    """The fewest jobs that have to give back what they hold so that a job fits. Empty: it does not
    fit even without all that may have to.

    Args:
        room: What jobs hold; it is left as it is.
        wanted: What the job needs.
        spared: Jobs that keep what they hold.
        entitled: What users may have, and have.
        above: Only users with a larger charge give back anything; None: all.
    """
    name, resources = room.node.name, room.resources
    request, gone = wanted.request(name), list[ResourceGrant]()
    for grant in _candidates(room, wanted, spared, entitled, above):
        if resources.fits(request):
            break
        resources.give(grant.demand.request(name), grant.slots)
        gone.append(grant)
    is_enough, needed = resources.fits(request), list[ResourceGrant]()
    for grant in reversed(gone):
        resources.take(grant.demand.request(name), grant.slots)
        if is_enough and not resources.fits(request):
            resources.give(grant.demand.request(name), grant.slots)
            needed.append(grant)
    for grant in needed:
        resources.take(grant.demand.request(name), grant.slots)
    return needed


def _candidates(
    room: Room,
    wanted: JobDemand,
    spared: Collection[MachineJob],
    entitled: Entitlements,
    above: float | None,
) -> Iterator[ResourceGrant]:
    """Jobs that may have to give back what they hold, in their order; arguments as of `_needed`."""
    lacks_gpus, lacks_memory = _lacks(room, wanted)
    jobs: dict[str, list[ResourceGrant]] = {}
    for grant in room.grants.values():
        demand, user = grant.demand, grant.job.hub.user
        helps = (lacks_gpus and demand.all_gpus) or (lacks_memory and demand.all_memory_bytes)
        may_have_to = above is None or entitled.charge(user) > above
        if helps and may_have_to and grant.job not in spared:
            jobs.setdefault(user, []).append(grant)
    for grants in jobs.values():  # the first comes last
        grants.sort(key=lambda grant: (-_ORDER.index(grant.demand.resumes), grant.since))
    held = {user: entitled.has(user) for user in jobs}
    parts = {user: entitled.part(user) for user in jobs}

    def excess(user: str) -> float:
        """How far a user is above the own part of what is lacking; a part of the machine."""
        more, part, node = held[user], parts[user], room.node
        of_gpus = (more.gpus - part.gpus) / max(len(node.gpus), 1) if lacks_gpus else 0.0
        of_memory = (more.memory_bytes - part.memory_bytes) / node.memory_bytes
        return max(of_gpus, of_memory if lacks_memory else 0.0)

    order = [(-excess(user), user) for user in jobs]
    heapify(order)
    while order and order[0][0] < -_SLACK:
        user = heappop(order)[1]
        grant = jobs[user].pop()
        if entitled.may_give(user, held[user], grant.demand):
            held[user] = held[user].minus(grant.demand)
            yield grant
        if jobs[user]:
            heappush(order, (-excess(user), user))


def _lacks(room: Room, wanted: JobDemand) -> tuple[bool, bool]:
    """Whether GPUs lack for a job, and memory."""
    name, fits = room.node.name, room.resources.fits
    workers, memory = wanted.workers, wanted.memory_bytes
    on_gpus = JobDemand("", 0.0, workers, 0, wanted.gpus, wanted.gpu_memory_bytes).request(name)
    in_memory = JobDemand("", 0.0, workers, memory).request(name)
    lacks_gpus, lacks_memory = not fits(on_gpus), not fits(in_memory)
    return lacks_gpus or not lacks_memory, lacks_memory or not lacks_gpus
