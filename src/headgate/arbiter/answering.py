"""Answers what users ask of the arbiter, and carries out what administrators order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from headgate.arbiter import messages
from headgate.arbiter.acts import Act, ActKind
from headgate.arbiter.core import Arbiter
from headgate.arbiter.events import (
    ArbiterEvent,
    Booked,
    Drained,
    JobOrdered,
    Unbooked,
    UserLimited,
)
from headgate.arbiter.records import Booking, Hub
from headgate.arbiter.seen import seen
from headgate.arbiter.store import ArbiterStore
from headgate.model import records
from headgate.model.errors import StorageError

_SHOWN_ACTS = 20
_MOST_BOOKINGS = 100
"""Most reservations of a user."""


class Asker(NamedTuple):
    """Who is at the other end of a connection."""

    uid: int
    user: str
    groups: frozenset[str]


class Answering:
    """Answers requests of users.

    Args:
        arbiter: The arbiter.
        store: What it keeps.
        take: Lets it act on an event.
        tell: Tells an act to a hub, or to all that it concerns; returns whether any is connected.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        store: ArbiterStore,
        take: Callable[[ArbiterEvent], None],
        tell: Callable[[Act, Hub | None], bool],
    ) -> None:
        self._arbiter, self._store, self._take, self._tell = arbiter, store, take, tell

    def answer(self, now: float, request: messages.UserRequest, peer: Asker) -> dict[str, Any]:
        """Carry out a request.

        Args:
            now: Seconds since the epoch.
            request: What is asked.
            peer: By whom.

        Raises:
            ValueError: The user may not, or it cannot be done.
            StorageError: It cannot be written.
        """
        rules = self._arbiter.rules
        may_order = peer.uid == 0 or not peer.groups.isdisjoint(rules.administrators)
        may_reserve = may_order or not peer.groups.isdisjoint(rules.may_reserve)
        match request:
            case messages.Look():
                acts = self._acts(None if may_order else peer.user)
                return records.dump(
                    seen(
                        self._arbiter,
                        now,
                        peer.user,
                        acts,
                        may_order=may_order,
                        may_reserve=may_reserve,
                    )
                )
            case messages.ShowUsage(since, user):
                return {"days": self._usage(now, since, user)}
            case messages.Book():
                if not may_reserve:
                    raise ValueError(_may_not_reserve(rules.may_reserve))
                return records.dump(self._book(now, request, peer.user))
            case messages.Unbook(id):
                booked = self._arbiter.room.bookings.get(id)
                if booked is None or not (may_order or booked.user == peer.user):
                    raise ValueError(f"you have no reservation {id}")
                self._take(Unbooked(id))
                return {"done": True}
        if not may_order:
            raise ValueError(_may_not_order(rules.administrators))
        self._order(now, request, peer.user)
        if isinstance(request, messages.OrderJob):
            return {"done": True, "runs": request.job in self._arbiter.room.grants}
        return {"done": True}

    def _acts(self, user: str | None) -> tuple[Act, ...]:
        try:
            return self._store.acts(user, _SHOWN_ACTS)
        except StorageError:  # what runs and waits can still be shown
            return ()

    def _usage(self, now: float, since: int, user: str | None) -> list[dict[str, Any]]:
        self._store.keep(self._arbiter.state(now), self._arbiter.metering.usage.changed())
        return [
            {"user": name, "day": day, **records.plain(use)}
            for (name, day), use in sorted(self._store.usage(since).items())
            if user in (None, name)
        ]

    def _book(self, now: float, request: messages.Book, user: str) -> Booking:
        bookings = self._arbiter.room.bookings
        if sum(booking.user == user for booking in bookings.values()) >= _MOST_BOOKINGS:
            raise ValueError(f"you have {_MOST_BOOKINGS} reservations; give one up first")
        begin = max(request.begin or 0.0, now)
        number = max(bookings, default=0) + 1
        booking = Booking(number, user, request.demand, begin, begin + request.seconds)
        self._take(Booked(booking))
        if number not in bookings:
            raise ValueError("it does not fit on the machine beside other reservations")
        return booking

    def _order(self, now: float, request: messages.UserRequest, by: str) -> None:
        """Keep an administrator's act, carry it out, and tell whom it concerns."""
        event: ArbiterEvent | None
        hub: Hub | None = None
        match request:
            case messages.OrderJob(job, held, first, stop):
                event, hub = JobOrdered(job, held, first) if not stop else None, job.hub
                act = Act(now, by, _kind(request), job.hub.user, job.id)
            case messages.Drain(drained):
                event = Drained(drained)
                act = Act(now, by, ActKind.DRAIN if drained else ActKind.UNDRAIN)
            case messages.LimitUser(user, largest):
                event = UserLimited(user, largest)
                kind = ActKind.LIMIT if largest is not None else ActKind.UNLIMIT
                act = Act(now, by, kind, user, largest=largest)
            case _:
                raise AssertionError(request)
        self._store.record(act)
        if event is not None:
            self._take(event)
        if not self._tell(act, hub) and act.kind is ActKind.STOP:
            raise ValueError(
                f"the hub of {act.user} is not connected, and only it can stop the job; "
                "hold it meanwhile"
            )


def _kind(order: messages.OrderJob) -> ActKind:
    if order.stop:
        return ActKind.STOP
    if order.held:
        return ActKind.HOLD
    return ActKind.FIRST if order.first else ActKind.RELEASE


def _may_not_reserve(groups: tuple[str, ...]) -> str:
    if not groups:
        return "nobody but administrators may reserve here: `may_reserve` of the rules is empty"
    return f"only administrators and members of {', '.join(groups)} may reserve here"


def _may_not_order(groups: tuple[str, ...]) -> str:
    members = f" and members of {', '.join(groups)}" if groups else ""
    return f"only root{members} may order that here"
