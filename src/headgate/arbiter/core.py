"""The arbiter of a machine: what hubs state comes in, what users and jobs get goes out."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from heapq import heapify, heappop, heappush
from itertools import islice, zip_longest
from statistics import median

from headgate.arbiter.admission import Room
from headgate.arbiter.cores import CoreClaim, divide, weights
from headgate.arbiter.events import (
    ArbiterAction,
    ArbiterEvent,
    Booked,
    BookingAnswered,
    Drained,
    HubJoined,
    HubLeft,
    JobIdles,
    JobOrdered,
    JobReleased,
    MachineUsed,
    RulesRead,
    StoreWritable,
    Unbooked,
    UserLimited,
)
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
    SeenJob,
    StartExpected,
    StartPromise,
    UserPart,
    WaitKind,
)
from headgate.arbiter.together import OnePolicy
from headgate.arbiter.usage import UsageLedger
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


@dataclass(slots=True)
class _Held:
    """What the jobs of a user hold."""

    cores: float = 0.0
    memory_bytes: int = 0
    gpus: float = 0.0
    jobs: int = 0

    def plus(self, job: JobDemand) -> _Held:
        return _Held(
            self.cores + job.cores,
            self.memory_bytes + job.all_memory_bytes,
            self.gpus + job.all_gpus,
            self.jobs + 1,
        )


class Arbiter:
    """Holds what the users of a machine have of it, and decides what they get.

    1. Jobs within a user's guaranteed part go first.
    2. Then comes the user who has waited without a start for longer than the rules' patience.
    3. Then comes the user with the least: past use and what the user holds now, by shares. With
       `users: together` comes instead the job that has waited longest or takes least, as in the
       order `headgate` of a queue.
    4. Among a user's jobs, the order of the user's hubs counts.
    5. The first job without room is promised its start; later ones do not delay it.

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
        usage: What users have had, by day.
        is_writable: Grants can be kept; else nothing starts.
        is_drained: An administrator lets nothing start.
        used_cores: What each user's jobs used at the last reading.
        parts: The part of each user.
        limits: The most that administrators leave to users, whatever the rules say.
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
        self._held_back, self._first = set(state.held), set(state.first)
        self.is_drained, self.is_writable = state.drained, True
        self._one_policy = OnePolicy(make(policy))
        self._since: dict[MachineJob, float] = {}  # of waiting jobs
        self._soft_until: dict[MachineJob, float] = {}  # of those, since they were promised a start
        self._took = deque[float](maxlen=_JUDGED)
        self._served: dict[str, float] = {}  # the last start of each user who waits
        self.promised: StartPromise | None = None
        self._waits: dict[MachineJob, JobWaits] = {}
        self._is_changed, self._review_at = True, math.inf
        self.usage = UsageLedger()
        self._read_at: float | None = None
        self.used_cores: dict[str, float] = {}
        self._idle_since: dict[MachineJob, tuple[float, int]] = {}
        self._overran: dict[str, deque[bool]] = {}
        self.parts: dict[str, UserPart] = {}
        self.limits: dict[str, Amounts] = dict(state.limits)
        for grant in state.grants:
            self.room.take_up(grant)
        self.room.bookings = {booking.id: booking for booking in state.bookings}
        self.past.restore(now, state.past)

    def state(self, now: float) -> ArbiterState:
        """What the next arbiter goes on with."""
        return ArbiterState(
            tuple(self.room.grants.values()),
            tuple(self.room.bookings.values()),
            self.past.means(now),
            frozenset(self._held_back),
            frozenset(self._first),
            self.is_drained,
            dict(self.limits),
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
            case HubJoined(hub, groups):
                self._groups[hub.user] = groups
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
                self._ordered(event)
            case StoreWritable(writable, unkept):
                self.is_writable = writable
                for job in unkept:
                    self.room.release(job)
            case MachineUsed():
                has_more = self.room.observe(event, self.rules.outside_gpus)
                self._is_changed = self._is_changed or has_more
                self._account(now, event)
                actions += self._idle(now, event)
        if self._is_changed or now >= self._review_at:
            actions += self._decide(now)
        actions += self._divide(now)
        return actions

    def _ordered(self, order: JobOrdered | Drained | UserLimited) -> None:
        match order:
            case JobOrdered(job, held, first):
                (self._held_back.add if held else self._held_back.discard)(job)
                (self._first.add if first else self._first.discard)(job)
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

    def seen_by(self, now: float, user: str, as_administrator: bool = False) -> list[SeenJob]:
        """What runs and waits on the machine, as a user may see it; waiting jobs in their order.

        Args:
            now: Seconds.
            user: Who looks.
            as_administrator: Show names of private jobs too.
        """

        def seen(job: MachineJob, demand: JobDemand) -> SeenJob:
            is_own = as_administrator or job.hub.user == user
            name = demand.name if is_own or not demand.private else None
            shown = replace(demand, id="", name="")
            return SeenJob(job.hub.user, name, shown, job=job if is_own else None)

        starts, demands = {start.job: start for start in self.ahead(now)}, self._stated_jobs()
        running = [
            replace(seen(job, grant.demand), gpus=grant.gpus, since=grant.since)
            for job, grant in self.room.grants.items()
        ]
        waiting = []
        for job, wait in self._waits.items():
            if job in demands:
                start = starts.get(job)
                at, latest = (start.at, start.latest) if start is not None else (None, None)
                waiting.append(
                    replace(seen(job, demands[job]), waits=wait.kind, at=at, latest=latest)
                )
        return running + waiting

    def ahead(self, now: float) -> list[StartExpected]:
        """When each job that waits for room is expected to start, in their order, if none starts
        before one that ranks higher.
        """
        demands = self._stated_jobs()
        waiting = [job for job, wait in self._waits.items() if wait.kind in WAIT_FOR_ROOM]
        likely = self.room.expected(now, {job: demands[job] for job in waiting}, "likely")
        latest = self.room.expected(now, {job: demands[job] for job in waiting}, "most")
        return [
            StartExpected(job, soon.at, late.at, soon.unknown)
            for job, soon, late in zip(waiting, likely, latest, strict=True)
        ]

    def share(self, user: str) -> UserShare:
        """What a user may have."""
        share = self.rules.of(user, self._groups.get(user, frozenset()))
        return share.within(self.limits[user]) if user in self.limits else share

    def _stated_jobs(self) -> dict[MachineJob, JobDemand]:
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
        """A running job needs other cores or memory, or has less left."""
        if stated.memory_bytes != self.room.grants[job].demand.memory_bytes:
            self.room.resize(job, stated.memory_bytes)
            self._is_changed = True
        grant = self.room.grants[job]
        kept = replace(grant.demand, cores=stated.cores, left=stated.left)
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
        lines, held = self._lines(), self._held()
        past = {user: self.past.mean(now, user) for user in lines}
        self._served = {user: self._served.get(user, now) for user in lines}
        waiting = [job for line in lines.values() for job, _ in line]
        self._since = {job: self._since.get(job, now) for job in waiting}
        self._soft_until = {j: at for j, at in self._soft_until.items() if j in self._since}
        self.room.begin(now)
        ranks = [self._rank(now, user, line[0], held, past) for user, line in lines.items()]
        heapify(ranks)
        while ranks:
            user = heappop(ranks)[-1]
            job, demand = lines[user].popleft()
            outcome = self._outcome(now, job, demand, held.get(user, _Held()))
            if isinstance(outcome, ResourceGrant):
                held[user] = held.get(user, _Held()).plus(demand)
                self._served[user] = now
                self._first.discard(job)
                actions.append(outcome)
            else:
                waits[job] = outcome
                if promised is None and outcome.kind in WAIT_FOR_ROOM:
                    soft_until = now + _SOFT * self.room.typical_seconds
                    is_soft = now < self._soft_until.setdefault(job, soft_until)
                    promised = self.room.promise(now, job, demand, is_soft)
            if lines[user]:
                heappush(ranks, self._rank(now, user, lines[user][0], held, past))
        self.promised = promised
        bookings = self.room.bookings.values()
        times = [time for booking in bookings for time in (booking.begin, booking.end)]
        times += [now + _REVIEW_SECONDS] if waits else []
        self._review_at = min((time for time in times if time > now), default=math.inf)
        self._is_changed = False
        actions += (wait for job, wait in waits.items() if self._waits.get(job) != wait)
        self._waits = waits
        return actions

    def _lines(self) -> dict[str, deque[tuple[MachineJob, JobDemand]]]:
        """The jobs of each user that wait, in their order; hubs of one user take turns."""
        of_users: dict[str, list[list[tuple[MachineJob, JobDemand]]]] = {}
        grants = Counter(job.hub for job in self.room.grants)
        for hub in sorted(self._demands, key=lambda hub: (grants[hub], hub)):
            jobs = ((MachineJob(hub, job.id), job) for job in self._demands[hub].waiting)
            waiting = [entry for entry in jobs if entry[0] not in self.room.grants]
            waiting.sort(key=lambda entry: entry[0] not in self._first)
            if waiting:
                of_users.setdefault(hub.user, []).append(waiting)
        return {user: deque(islice(_by_turns(hubs), MOST_JOBS)) for user, hubs in of_users.items()}

    def _rank(
        self,
        now: float,
        user: str,
        entry: tuple[MachineJob, JobDemand],
        held: Mapping[str, _Held],
        past: Mapping[str, float],
    ) -> tuple[bool, bool, float, float, str]:
        """The rank of the first waiting job of a user; the lower, the sooner."""
        job, demand = entry
        share, has = self.share(user), held.get(user, _Held())
        if self.rules.users == "together":
            seconds = demand.lasts("likely") if self._is_believed(user) else None
            length = (self.room.typical_seconds if seconds is None else seconds) / share.shares
            charge = self._since[job] + _PATIENCE * length
        else:
            charge = (past[user] + self._part(has)) / share.shares
        return (
            job not in self._first,
            not _is_guaranteed(share, has, demand),
            min(self._served[user] + self.rules.patience - now, 0.0),
            charge,
            user,
        )

    def _outcome(
        self, now: float, job: MachineJob, demand: JobDemand, held: _Held
    ) -> ResourceGrant | JobWaits:
        if self.is_drained or not self.is_writable or job in self._held_back:
            return JobWaits(job, WaitKind.HELD)
        if not self.room.could(demand):
            return JobWaits(job, WaitKind.TOO_LARGE)
        if held.jobs >= MOST_JOBS or _exceeds(held.plus(demand), self.share(job.hub.user)):
            return JobWaits(job, WaitKind.OWN_LIMIT)
        ends = demand.ends(now) if self._is_believed(job.hub.user) else math.inf
        return self.room.start(now, job, demand, ends)

    def _held(self) -> dict[str, _Held]:
        held: dict[str, _Held] = {}
        for grant in self.room.grants.values():
            user = grant.job.hub.user
            held[user] = held.get(user, _Held()).plus(grant.demand)
        return held

    def _part(self, held: _Held) -> float:
        """The part of the machine that jobs hold: that of their dominant resource."""
        node = self.room.node
        parts = [held.cores / node.cores, held.memory_bytes / node.memory_bytes]
        if node.gpus:
            parts.append(held.gpus / len(node.gpus))
        return max(parts)

    def _account(self, now: float, reading: MachineUsed) -> None:
        """Sum up what users had since the last reading."""
        begin, self._read_at = now if self._read_at is None else self._read_at, now
        self.used_cores = {user: used.cores for user, used in reading.users.items()}
        held = self._held()
        for user, used in reading.users.items():
            grants = (grant for grant in self.room.grants.values() if grant.job.hub.user == user)
            self.usage.add(
                begin,
                now,
                user,
                cores=used.cores,
                gpus={gpu for grant in grants for gpu in grant.gpus},
                busy_gpus=used.busy_gpus,
                memory_bytes=held.get(user, _Held()).memory_bytes,
            )

    def _idle(self, now: float, reading: MachineUsed) -> Iterator[ArbiterAction]:
        """Warn of jobs that hold GPUs for nothing, and end them where the rules say so."""
        after = self.rules.idle_after
        before, self._idle_since = self._idle_since, {}
        for job, grant in self.room.grants.items():
            used = reading.users.get(job.hub.user)
            if used is None or not grant.gpus or not used.busy_gpus.isdisjoint(grant.gpus):
                continue
            since, warned = before.get(job, (now, 0))
            due = int((now - since) / after) if after is not None else 0
            if 0 == warned < due or (self.rules.idle_ends and warned < 2 <= due):
                yield JobIdles(job, since, ends=self.rules.idle_ends and due >= 2)
            self._idle_since[job] = since, max(warned, due)

    # --- who has which part -----------------------------------------------------------------------

    def _divide(self, now: float) -> list[ArbiterAction]:
        held = self._held()
        for user in {*held, *self.past.means(now)}:
            have = held.get(user, _Held())
            used = self.used_cores.get(user, have.cores)
            self.past.hold(now, user, min(self._part(replace(have, cores=used)), 1.0))
        wanted = {user: have.cores for user, have in held.items()}
        for job in self._waits:
            wanted.setdefault(job.hub.user, 0.0)
        for hub, demand in self._demands.items():
            if hub.user in wanted:
                waiting = (job for job in demand.waiting if MachineJob(hub, job.id) in self._waits)
                wanted[hub.user] += sum(job.cores for job in waiting)
        cores = self.room.node.cores
        shares = {user: self.share(user).shares for user in wanted}
        if self.rules.users == "together":
            grants = self.room.grants
            weight = self._one_policy.shares(now, cores, grants, shares)
            shares = {user: weight.get(user, WEIGHT_DEFAULT) for user in wanted}
        claims = {user: self._claim(user, shares[user], wanted[user]) for user in sorted(wanted)}
        parts = divide(cores, claims)
        by_user = weights(cores, {user: claims[user] for user in claims if user in held})
        granted = sum(have.memory_bytes for have in held.values())
        after = {}
        for user, part in parts.items():
            largest, memory = self.share(user).largest, held.get(user, _Held()).memory_bytes
            most = max(self.room.node.memory_bytes - granted + memory, 0)
            if largest.memory_bytes is not None:  # a new limit takes nothing from running jobs
                most = min(most, max(largest.memory_bytes, memory))
            most_cores, processes = largest.cores, self.share(user).processes
            after[user] = UserPart(
                user, part, by_user.get(user, 0.0), most_cores, memory, most, processes
            )
        changed = [part for user, part in after.items() if self.parts.get(user) != part]
        self.parts = after
        return list(changed)

    def _claim(self, user: str, shares: float, wanted: float) -> CoreClaim:
        share = self.share(user)
        largest = share.largest.cores
        return CoreClaim(
            shares,
            share.guaranteed.cores or 0.0,
            math.inf if largest is None else largest,
            wanted,
        )


def _by_turns(
    hubs: Iterable[list[tuple[MachineJob, JobDemand]]],
) -> Iterator[tuple[MachineJob, JobDemand]]:
    for turn in zip_longest(*hubs):
        yield from (entry for entry in turn if entry is not None)


def _is_guaranteed(share: UserShare, held: _Held, job: JobDemand) -> bool:
    """Whether a job is within what its user gets before others do."""
    after, guaranteed = held.plus(job), share.guaranteed
    asked = (
        (guaranteed.memory_bytes, job.all_memory_bytes, after.memory_bytes),
        (guaranteed.gpus, job.all_gpus, after.gpus),
        (guaranteed.jobs, 1, after.jobs),
    )
    stated = [(least, total) for least, needs, total in asked if least is not None and needs]
    return bool(stated) and all(total <= least for least, total in stated)


def _exceeds(held: _Held, share: UserShare) -> bool:
    """Whether a user would have more than the largest part."""
    largest = share.largest
    amounts = (
        (largest.memory_bytes, held.memory_bytes),
        (largest.gpus, held.gpus),
        (largest.jobs, held.jobs),
    )
    return any(most is not None and total > most for most, total in amounts)
