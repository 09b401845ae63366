"""What a user may see of a shared machine: what runs and waits, and what each user has."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from headgate.arbiter.acts import Act
from headgate.arbiter.records import (
    WAIT_FOR_ROOM,
    Booking,
    JobDemand,
    MachineJob,
    SeenJob,
    StartExpected,
)
from headgate.model.sharing import Amounts

if TYPE_CHECKING:
    from headgate.arbiter.core import Arbiter


@dataclass(frozen=True, slots=True)
class SeenUser:
    """What a user has of the machine.

    Args:
        user: The user.
        shares: The user's shares.
        cores: Cores that the user's jobs can expect.
        used_cores: Cores that they used last; None: not read.
        memory_bytes: Memory granted to them.
        gpus: GPUs that they hold.
        running: How many run.
        waiting: How many wait.
        past: The mean part of the machine that the user had, as it counts in the order.
        largest: The most that the user may have.
    """

    user: str
    shares: float
    cores: float
    used_cores: float | None
    memory_bytes: int
    gpus: tuple[int, ...]
    running: int
    waiting: int
    past: float
    largest: Amounts


@dataclass(frozen=True, slots=True)
class SeenMachine:
    """A shared machine as a user may see it.

    Args:
        name: Its name.
        at: When this was so, in seconds since the epoch.
        cores: Its cores.
        memory_bytes: Its memory.
        gpus: Its GPUs.
        user: Who looks.
        may_order: Whether whoever looks is an administrator.
        may_reserve: Whether whoever looks may reserve.
        drained: Whether an administrator lets nothing start.
        users: The users who have or want something.
        jobs: What runs, then what waits, in its order.
        bookings: Reservations.
        acts: Administrators' latest acts; of those about other users, none.
    """

    name: str
    at: float
    cores: float
    memory_bytes: int
    gpus: int
    user: str
    may_order: bool
    may_reserve: bool
    drained: bool
    users: tuple[SeenUser, ...]
    jobs: tuple[SeenJob, ...]
    bookings: tuple[Booking, ...]
    acts: tuple[Act, ...] = ()


def seen(
    arbiter: Arbiter,
    now: float,
    user: str,
    acts: tuple[Act, ...] = (),
    *,
    may_order: bool = False,
    may_reserve: bool = False,
) -> SeenMachine:
    """What a user may see.

    Args:
        arbiter: The arbiter.
        now: Seconds since the epoch.
        user: Who looks.
        acts: Acts that this user may hear of.
        may_order: Whether that is an administrator.
        may_reserve: Whether the user may reserve.
    """
    jobs = seen_jobs(arbiter, now, user, may_order)
    node, parts, past = arbiter.room.node, arbiter.parts, arbiter.past.means(now)
    running = Counter(job.user for job in jobs if job.waits is None)
    waiting = Counter(job.user for job in jobs if job.waits is not None)
    users = []
    for name in sorted({*running, *waiting}):
        share, part = arbiter.share(name), parts.get(name)
        held = {gpu for job in jobs if job.user == name for gpu in job.gpus}
        users.append(
            SeenUser(
                name,
                share.shares,
                part.cores if part is not None else 0.0,
                arbiter.metering.used_cores.get(name),
                part.memory_bytes if part is not None else 0,
                tuple(sorted(held)),
                running[name],
                waiting[name],
                past.get(name, 0.0),
                share.largest,
            )
        )
    return SeenMachine(
        node.name,
        now,
        node.cores,
        node.memory_bytes,
        len(node.gpus),
        user,
        may_order,
        may_reserve or may_order,
        arbiter.is_drained,
        tuple(users),
        tuple(jobs),
        tuple(arbiter.room.bookings.values()),
        acts,
    )


def seen_jobs(
    arbiter: Arbiter, now: float, user: str, as_administrator: bool = False
) -> list[SeenJob]:
    """What runs and waits on the machine, as a user may see it; waiting jobs in their order.

    Args:
        arbiter: The arbiter.
        now: Seconds.
        user: Who looks.
        as_administrator: Show names of private jobs too.
    """

    def shown(job: MachineJob, demand: JobDemand) -> SeenJob:
        is_own = as_administrator or job.hub.user == user
        name = demand.name if is_own or not demand.private else None
        needs = replace(demand, id="", name="")
        return SeenJob(job.hub.user, name, needs, job=job if is_own else None)

    starts = {start.job: start for start in ahead(arbiter, now)}
    demands = arbiter.stated_jobs()
    taking = arbiter.taking
    to = taking.claim.job.hub.user if taking.claim is not None else ""
    running = [
        replace(
            shown(job, grant.demand),
            gpus=grant.gpus,
            since=grant.since,
            gives_to=to if job in taking.asked else "",
        )
        for job, grant in arbiter.room.grants.items()
    ]
    waiting = []
    for job, wait in arbiter.waits.items():
        if job in demands:
            start = starts.get(job)
            at, latest = (start.at, start.latest) if start is not None else (None, None)
            entry = shown(job, demands[job])
            waiting.append(replace(entry, waits=wait.kind, at=at, latest=latest))
    return running + waiting


def ahead(arbiter: Arbiter, now: float) -> list[StartExpected]:
    """When each job that waits for room is expected to start, in their order, if none starts before
    one that ranks higher.
    """
    demands, room = arbiter.stated_jobs(), arbiter.room
    waiting = {
        job: demands[job] for job, wait in arbiter.waits.items() if wait.kind in WAIT_FOR_ROOM
    }
    likely, latest = room.expected(now, waiting, "likely"), room.expected(now, waiting, "most")
    return [
        StartExpected(job, soon.at, late.at, soon.unknown)
        for job, soon, late in zip(waiting, likely, latest, strict=True)
    ]
