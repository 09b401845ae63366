"""What a user may see of a shared machine: what runs and waits, and what each user has."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.arbiter.acts import Act
from headgate.arbiter.records import Booking, SeenJob
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
    jobs = arbiter.seen_by(now, user, may_order)
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
                arbiter.used_cores.get(name),
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
