"""The arbiter of a machine: what hubs state comes in, what users and jobs get goes out."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import zip_longest
from statistics import median

from headgate.arbiter.admission import Room
from headgate.arbiter.events import (
    ArbiterAction,
    ArbiterEvent,
    Booked,
    BookingAnswered,
    Drained,
    HubJoined,
    HubLeft,
    JobOrdered,
    JobReleased,
    MachineUsed,
    RulesRead,
    StoreWritable,
    Unbooked,
    UserLimited,
)
from headgate.arbiter.holdings import Holding, exceeds, holdings, is_guaranteed, sums
from headgate.arbiter.metering import Metering
from headgate.arbiter.orders import JobOrders
from headgate.arbiter.parts import user_parts
from headgate.arbiter.past_use import PastUse
from headgate.arbiter.records import (
    MOST_JOBS,
    NOTHING_KEPT,
    WAIT_FOR_ROOM,
    ArbiterState,
    Demand,
    Hub,
    JobDemand,
    JobWaits,
    MachineJob,
    ResourceGrant,
    StartPromise,
    UserPart,
    WaitKind,
)
from headgate.arbiter.taking_back import Entitlements, TakingBack, WaitingJob
from headgate.arbiter.together import OnePolicy
from headgate.model.cluster import Node
from headgate.model.shares import WEIGHT_DEFAULT
from headgate.model.sharing import Amounts, SharingRules, UserShare
from headgate.policies import DEFAULT, make

_REVIEW_SECONDS = 10.0
"""Waiting jobs are looked at again after this time even if nothing has changed but forecasts."""
_PATIENCE, _SOFT = 30.0, 4.0
"""A job may overtake one that came so many times its length before. The promise to a job is soft
for so many times the typical length.
"""
_LEAST_TYPICAL = 60.0
_JUDGED, _FEW = 20, 8
"""How many ended jobs of a user are judged, and with fewer none are."""
_OVERRUN = 1 / 4
"""A user is believed as long as at most this fraction took longer than surely stated; of honest
bands one in twenty does.
"""


class Arbiter:
    """Holds what the users of a machine have of it, and decides what they get.

    1. Jobs within a user's guaranteed part go first.
    2. Then comes the user who has waited without a start for longer than the rules' patience.
    3. Then comes the user with the least: past use and what the user holds now, by shares. With
       `users: together` comes instead the job that has waited longest or takes least, as in the
       order `headgate` of a queue.
    4. Among a user's jobs, the order of the user's hubs counts.
    5. The first job without room is promised its start; later ones do not delay it.
    6. Before all others goes the job for which something is taken back (`TakingBack`), and what an
       administrator lets go first.

    Args:
        node: The machine.
        rules: The administrator's rules.
        now: Seconds since the epoch.
        state: What an arbiter before it kept.
        policy: The policy for all jobs, where the rules have `users: together`.

    Attributes:
        room: What jobs hold, and reservations.
        past: What users have had.
        promised: The first job without room, and its start.
        metering: What users use, and have had by day.
        taking: What is being taken back.
        is_writable: Grants can be kept; else nothing starts.
        is_drained: An administrator lets nothing start.
        waits: The jobs that wait, in their order, and why.
        parts: The part of each user.
        limits: The most that administrators leave to users, whatever the rules say.
        uids: Numbers of the users who have been seen.
    """

    def __init__(
        self,
        node: Node,
        rules: SharingRules,
        now: float = 0.0,
        state: ArbiterState = NOTHING_KEPT,
        policy: str = DEFAULT,
    ) -> None:
        self.rules = rules
        self.room = Room(node)
        self.past = PastUse(rules.half_life)
        self._groups: dict[str, frozenset[str]] = {}
        self._demands: dict[Hub, Demand] = {}
        self._orders = JobOrders(now, state.held, state.first)
        self.is_drained, self.is_writable = state.drained, True
        self._one_policy = OnePolicy(make(policy))
        self._since: dict[MachineJob, float] = {}  # of waiting jobs
        self._soft_until: dict[MachineJob, float] = {}  # of those, since they were promised a start
        self._took = deque[float](maxlen=_JUDGED)
        self._served: dict[str, float] = {}  # the last start of each user who waits
        self.promised: StartPromise | None = None
        self.waits: dict[MachineJob, JobWaits] = {}
        self._is_changed, self._review_at = True, math.inf
        self.metering, self.taking = Metering(), TakingBack()
        self._overran: dict[str, deque[bool]] = {}
        self.parts: dict[str, UserPart] = {}
        self.limits: dict[str, Amounts] = dict(state.limits)
        self.uids: dict[str, int] = dict(state.uids)
        for grant in state.grants:  # the machine may have another name by now
            slots = tuple(slot._replace(node=node.name) for slot in grant.slots)
            self.room.take_up(replace(grant, slots=slots))
        self.room.bookings = {booking.id: booking for booking in state.bookings}
        self.past.restore(now, state.past)

    def state(self, now: float) -> ArbiterState:
        """What the next arbiter goes on with."""
        users = sorted({job.hub.user for job in self.room.grants})
        return ArbiterState(
            tuple(self.room.grants.values()),
            tuple(self.room.bookings.values()),
            self.past.means(now),
            self._orders.held,
            self._orders.first,
            self.is_drained,
            dict(self.limits),
            {user: self.uids[user] for user in users if user in self.uids},
        )

    def step(self, now: float, event: ArbiterEvent | None = None) -> list[ArbiterAction]:
        """React to an event; without one, to the time.

        Args:
            now: Seconds; never goes back.
            event: What happened.

        Returns:
            What is to be told: grants, with those that their hub has not heard of, releases, new
            reasons to wait, and new parts of users.
        """
        actions: list[ArbiterAction] = []
        self._is_changed = self._is_changed or not isinstance(event, Demand | MachineUsed | None)
        match event:
            case Demand():
                actions += self._stated(now, event)
            case HubJoined(hub, groups, uid):
                self._groups[hub.user] = groups
                if uid is not None:
                    self.uids[hub.user] = uid
            case HubLeft(hub, emptied):
                self._demands.pop(hub, None)
                if emptied:
                    actions += self._release(
                        now, [job for job in self.room.grants if job.hub == hub]
                    )
            case RulesRead(rules):
                self.rules, self.past.half_life = rules, rules.half_life
            case Booked(booking):
                actions.append(BookingAnswered(booking, self.room.book(booking)))
            case Unbooked(id):
                self.room.bookings.pop(id, None)
            case JobOrdered() | Drained() | UserLimited():
                self._ordered(now, event)
            case StoreWritable(writable, unkept):
                self.is_writable = writable
                for job in unkept:
                    self.room.release(job)
            case MachineUsed():
                has_more = self.room.observe(event, self.rules.outside_gpus)
                self._is_changed = self._is_changed or has_more
                grants = self.room.grants
                self.metering.account(now, event, grants.values())
                actions += self.metering.idle(now, event, grants, self.rules)
        if self._is_changed or now >= self._review_at:
            actions += self._decide(now)
        actions += self._divide(now)
        return actions

    def _ordered(self, now: float, order: JobOrdered | Drained | UserLimited) -> None:
        match order:
            case JobOrdered(job, held, first):
                self._orders.give(now, job, held, first)
            case Drained(drained):
                self.is_drained = drained
            case UserLimited(user, largest):
                self.limits.pop(user, None)
                if largest is not None:
                    self.limits[user] = largest

    @property
    def wake_at(self) -> float | None:
        """When to decide again: a reservation begins or ends, or jobs have waited for a while,
        because what is expected changes slowly.
        """
        return self._review_at if self._review_at < math.inf else None

    def share(self, user: str) -> UserShare:
        """What a user may have."""
        share = self.rules.of(user, self._groups.get(user, frozenset()))
        return share.within(self.limits[user]) if user in self.limits else share

    def stated_jobs(self) -> dict[MachineJob, JobDemand]:
        """What hubs want, by job."""
        return {
            MachineJob(hub, job.id): job
            for hub, demand in self._demands.items()
            for job in demand.waiting
        }

    # --- what hubs state --------------------------------------------------------------------------

    def _stated(self, now: float, demand: Demand) -> list[ArbiterAction]:
        """Take over what a hub states. A job that runs without a grant waits, the first of its
        hub.
        """
        self._orders.hear(now, demand)
        running = {job.id: job for job in demand.running}
        unheard = {job.id for job in demand.waiting if job.id not in running}
        actions: list[ArbiterAction] = []
        over = []
        for job, grant in list(self.room.grants.items()):
            if job.hub != demand.hub:
                continue
            if job.id in running:
                self._restated(now, job, running.pop(job.id))
            elif job.id in unheard:
                actions.append(grant)
            else:
                over.append(job)
        actions += self._release(now, over)
        waiting = {job.id: job for job in (*running.values(), *demand.waiting)}
        before = self._demands.get(demand.hub, Demand(demand.hub)).waiting
        self._demands[demand.hub] = replace(demand, waiting=tuple(waiting.values()), running=())
        has_others = [job.needs for job in before] != [job.needs for job in waiting.values()]
        self._is_changed = self._is_changed or bool(over) or has_others
        return actions

    def _restated(self, now: float, job: MachineJob, stated: JobDemand) -> None:
        """A running job needs other cores or memory, has less left, or can be resumed by now."""
        if stated.memory_bytes != self.room.grants[job].demand.memory_bytes:
            self.room.resize(job, stated.memory_bytes)
            self._is_changed = True
        grant = self.room.grants[job]
        cores, left, resumes = stated.cores, stated.left, stated.resumes
        kept = replace(grant.demand, cores=cores, left=left, resumes=resumes)
        ends = kept.ends(now) if self._is_believed(job.hub.user) else math.inf
        self.room.grants[job] = replace(grant, demand=kept, ends=ends)

    def _release(self, now: float, jobs: Iterable[MachineJob]) -> list[ArbiterAction]:
        released = list(jobs)
        for job in released:
            grant = self.room.release(job)
            if grant is not None:
                self._took.append(now - grant.since)
                self.room.typical_seconds = max(median(self._took), _LEAST_TYPICAL)
            if grant is not None and grant.stated_end < math.inf:
                past = self._overran.setdefault(job.hub.user, deque(maxlen=_JUDGED))
                past.append(now > grant.stated_end)
        return [JobReleased(job) for job in released]

    def _is_believed(self, user: str) -> bool:
        """Whether a user's jobs end about as surely as stated; else their length is not known."""
        past = self._overran.get(user, ())
        return len(past) < _FEW or sum(past) <= _OVERRUN * len(past)

    # --- who starts -------------------------------------------------------------------------------

    def _decide(self, now: float) -> list[ArbiterAction]:
        actions: list[ArbiterAction] = []
        waits: dict[MachineJob, JobWaits] = {}
        promised: StartPromise | None = None
        self.room.drop_ended(now)
        lines, held = self._lines(), holdings(self.room.grants.values())
        past = {user: self.past.mean(now, user) for user in {*lines, *held}}
        shares = {user: self.share(user) for user in past}
        self._served = {user: self._served.get(user, now) for user in lines}
        wanted = {job: demand for line in lines.values() for job, demand in line}
        self._since = {job: self._since.get(job, now) for job in wanted}
        self._soft_until = {j: at for j, at in self._soft_until.items() if j in self._since}
        self.taking.follow(now, self.room.grants.keys(), self._since.keys())
        self.room.leaving = self.taking.ends()
        self.room.begin(now)

        def rank(user: str) -> tuple[bool, bool, float, float, str]:
            return self._rank(now, user, lines[user][0], shares[user], past[user], held)

        ranks = [rank(user) for user in lines]
        heapify(ranks)
        while ranks:
            user = heappop(ranks)[-1]
            job, demand = lines[user].popleft()
            outcome = self._outcome(now, job, demand, shares[user], held.get(user, Holding()))
            if isinstance(outcome, ResourceGrant):
                held[user] = held.get(user, Holding()).plus(demand)
                self._served[user] = now
                self._orders.starts(job)
                actions.append(outcome)
            else:
                waits[job] = outcome
                if promised is None and outcome.kind in WAIT_FOR_ROOM:
                    soft_until = now + _SOFT * self.room.typical_seconds
                    is_soft = now < self._soft_until.setdefault(job, soft_until)
                    promised = self.room.promise(now, job, demand, is_soft)
            if lines[user]:
                heappush(ranks, rank(user))
        self.promised = promised
        actions += self._take_back(now, waits, wanted, self._entitled(now, shares, held, past))
        bookings = self.room.bookings.values()
        times = [time for booking in bookings for time in (booking.begin, booking.end)]
        times += [now + _REVIEW_SECONDS] if waits else []
        self._review_at = min((time for time in times if time > now), default=math.inf)
        self._is_changed = False
        actions += (wait for job, wait in waits.items() if self.waits.get(job) != wait)
        self.waits = waits
        return actions

    def _lines(self) -> dict[str, deque[tuple[MachineJob, JobDemand]]]:
        """The jobs of each user that wait, in their order; hubs of one user take turns."""
        of_users: dict[str, list[list[tuple[MachineJob, JobDemand]]]] = {}
        grants = Counter(job.hub for job in self.room.grants)
        for hub in sorted(self._demands, key=lambda hub: (grants[hub], hub)):
            jobs = ((MachineJob(hub, job.id), job) for job in self._demands[hub].waiting)
            waiting = [entry for entry in jobs if entry[0] not in self.room.grants]
            if waiting:
                of_users.setdefault(hub.user, []).append(waiting)
        lines = {}
        for user, hubs in of_users.items():
            line = sorted(_by_turns(hubs), key=lambda entry: not self._goes_first(entry[0]))
            lines[user] = deque(line[:MOST_JOBS])
        return lines

    def _goes_first(self, job: MachineJob) -> bool:
        return self._orders.is_first(job) or self.taking.is_for(job)

    def _entitled(
        self,
        now: float,
        shares: Mapping[str, UserShare],
        held: Mapping[str, Holding],
        past: Mapping[str, float],
    ) -> Entitlements:
        by_shares = self.rules.take_back == "shares" and self.rules.users == "apart"
        bookings = self.room.bookings.values()
        begun = (booking for booking in bookings if booking.begin <= now < booking.end)
        booked = sums((booking.user, booking.demand) for booking in begun)
        all_shares = sum(share.shares for share in shares.values())
        return Entitlements(self.room.node, shares, all_shares, held, past, booked, by_shares)

    def _take_back(
        self,
        now: float,
        waits: dict[MachineJob, JobWaits],
        wanted: Mapping[MachineJob, JobDemand],
        entitled: Entitlements,
    ) -> list[ArbiterAction]:
        """Have jobs give back what is the part of one that waits, which `waits` then says."""
        if self.rules.take_back == "never":
            self.taking = TakingBack()
        if self.rules.take_back == "never" or self.is_drained or not self.is_writable:
            return []
        lack_room = [job for job, wait in waits.items() if wait.kind is WaitKind.NO_ROOM]
        claims = (WaitingJob(job, wanted[job], self._since[job]) for job in lack_room)
        hubs = self._demands.keys()
        orders = list(self.taking.orders(now, self.room, self.rules, entitled, claims, hubs))
        self.room.leaving = ends = self.taking.ends()
        claim = self.taking.claim
        if claim is not None and ends:
            soon = max(likely for likely, _ in ends.values())
            waits[claim.job] = JobWaits(claim.job, WaitKind.TAKING_BACK, at=soon)
        return [*orders]

    def _rank(
        self,
        now: float,
        user: str,
        entry: tuple[MachineJob, JobDemand],
        share: UserShare,
        past: float,
        held: Mapping[str, Holding],
    ) -> tuple[bool, bool, float, float, str]:
        """The rank of the first waiting job of a user; the lower, the sooner."""
        job, demand = entry
        has = held.get(user, Holding())
        if self.rules.users == "together":
            seconds = demand.lasts("likely") if self._is_believed(user) else None
            length = (self.room.typical_seconds if seconds is None else seconds) / share.shares
            charge = self._since[job] + _PATIENCE * length
        else:
            charge = (past + has.part(self.room.node)) / share.shares
        return (
            not self._goes_first(job),
            not is_guaranteed(share, has, demand),
            min(self._served[user] + self.rules.patience - now, 0.0),
            charge,
            user,
        )

    def _outcome(
        self, now: float, job: MachineJob, demand: JobDemand, share: UserShare, held: Holding
    ) -> ResourceGrant | JobWaits:
        if self.is_drained or not self.is_writable or self._orders.is_held(job):
            return JobWaits(job, WaitKind.HELD)
        if not self.room.could(demand):
            return JobWaits(job, WaitKind.TOO_LARGE)
        if self.taking.owes(job.hub.user):
            return JobWaits(job, WaitKind.OWES)
        if held.jobs >= MOST_JOBS or exceeds(share, held, demand):
            return JobWaits(job, WaitKind.OWN_LIMIT)
        ends = demand.ends(now) if self._is_believed(job.hub.user) else math.inf
        return self.room.start(now, job, demand, ends)

    # --- who has which part -----------------------------------------------------------------------

    def _divide(self, now: float) -> list[ArbiterAction]:
        node, held = self.room.node, holdings(self.room.grants.values())
        for user in {*held, *self.past.means(now)}:
            have = held.get(user, Holding())
            used = self.metering.used_cores.get(user, have.cores)
            self.past.hold(now, user, min(replace(have, cores=used).part(node), 1.0))
        wanted = defaultdict[Hub, float](float)
        for job, grant in self.room.grants.items():
            wanted[job.hub] += grant.demand.cores
        for job, demand in self.stated_jobs().items():
            if job in self.waits:
                wanted[job.hub] += demand.cores
        users = sorted({hub.user for hub in wanted})
        shares = {user: self.share(user) for user in users}
        numbers = {user: share.shares for user, share in shares.items()}
        if self.rules.users == "together":
            weight = self._one_policy.shares(now, node.cores, self.room.grants, numbers)
            numbers = {user: weight.get(user, WEIGHT_DEFAULT) for user in users}
        shares = {user: replace(shares[user], shares=numbers[user]) for user in users}
        after = user_parts(node, shares, wanted, held)
        changed = [part for user, part in after.items() if self.parts.get(user) != part]
        left = (part for user, part in self.parts.items() if user not in after)
        changed += (replace(part, weight=0.0, memory_bytes=0) for part in left)
        self.parts = after
        return list(changed)


def _by_turns(
    hubs: Iterable[list[tuple[MachineJob, JobDemand]]],
) -> Iterator[tuple[MachineJob, JobDemand]]:
    for turn in zip_longest(*hubs):
        yield from (entry for entry in turn if entry is not None)
