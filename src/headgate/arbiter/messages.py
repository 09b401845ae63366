"""Read what hubs and users send. Whoever may connect can send anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from headgate.arbiter.records import (
    MOST_LETTERS,
    VERSION,
    Demand,
    JobDemand,
    JobHeld,
    MachineJob,
)
from headgate.model import records
from headgate.model.sharing import Amounts

MOST_BYTES = 1 << 20
"""Longest line that is read; most jobs make a shorter one."""
_MOST_AMOUNT, _MOST_DAY = 1 << 60, 10_000_000
_MOST_HELD = 2.0
_MOST_SECONDS = 90 * 86_400.0
"""A reservation begins and ends within this time."""


@dataclass(frozen=True, slots=True)
class Look:
    """Show what runs and waits on the machine."""


@dataclass(frozen=True, slots=True)
class Book:
    """Reserve.

    Args:
        demand: What is wanted.
        seconds: For how long.
        begin: From when, in seconds since the epoch; None: from now on.
    """

    demand: JobDemand
    seconds: float
    begin: float | None = None

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= _MOST_SECONDS:
            raise ValueError(f"found {self.seconds} seconds; expected at most {_MOST_SECONDS:.0f}")
        if not (self.demand.all_gpus or self.demand.all_memory_bytes):
            raise ValueError("expected GPUs or memory to reserve")


@dataclass(frozen=True, slots=True)
class Unbook:
    """Give up a reservation."""

    id: int


@dataclass(frozen=True, slots=True)
class OrderJob:
    """Hold a job, let it go first, leave it to its turn, or stop it, as an administrator."""

    job: MachineJob
    held: bool = False
    first: bool = False
    stop: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """Let nothing start any more, or everything again, as an administrator."""

    drained: bool


@dataclass(frozen=True, slots=True)
class LimitUser:
    """Leave a user at most so much, as an administrator; None: what the rules say."""

    user: str
    largest: Amounts | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.user) <= MOST_LETTERS:
            raise ValueError(f"expected a user, with at most {MOST_LETTERS} letters")
        for entry in fields(Amounts):
            value = getattr(self.largest, entry.name, None)
            if value is not None and not 0 <= value < _MOST_AMOUNT:  # `nan` is neither
                raise ValueError(f"found {entry.name} {value!r}; expected 0 or more")


@dataclass(frozen=True, slots=True)
class ShowUsage:
    """Show what users have had, from a day on (its number since the epoch, UTC)."""

    since: int
    user: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.since <= _MOST_DAY:
            raise ValueError(f"found {self.since}; expected the number of a day since 1970")


@dataclass(frozen=True, slots=True)
class AskHold:
    """Hold a job of another user for a moment, for a proof; a hub asks.

    Args:
        user: The user.
        name: The job.
        number: Tells the answer from others.
        seconds: For how long.
    """

    user: str
    name: str
    number: int
    seconds: float

    def __post_init__(self) -> None:
        if not 0 < self.seconds <= _MOST_HELD:
            raise ValueError(f"found {self.seconds} seconds; expected at most {_MOST_HELD:g}")


HubRequest = AskHold | JobHeld
_REQUESTS = (Look, Book, Unbook, OrderJob, Drain, LimitUser, ShowUsage, AskHold, JobHeld)
UserRequest = Look | Book | Unbook | OrderJob | Drain | LimitUser | ShowUsage
Request = Demand | UserRequest | HubRequest
_KINDS: Mapping[str, type[Any]] = {kind.__name__: kind for kind in (Demand, *_REQUESTS)}


def request(line: bytes, user: str) -> Request:
    """What a hub states, or a user asks.

    Args:
        line: A line of JSON; without a `type` it is a demand.
        user: Who sent it, as the kernel tells. What the line says of that does not count.

    Raises:
        ValueError: The line is no request.
    """
    if len(line) > MOST_BYTES:
        raise ValueError(f"expected at most {MOST_BYTES:,} bytes in a line")
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(message, dict):
        raise ValueError("expected the fields of a request")
    version = message.pop("version", VERSION)
    if version != VERSION:
        raise ValueError(
            f"this arbiter speaks version {VERSION} and was asked in version {version!r:.20}: "
            "install the same Headgate as the arbiter's, or ask the administrator to"
        )
    kind = message.get(records.TYPE, "Demand")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"expected one of {', '.join(_KINDS)} as `{records.TYPE}`")
    if kind == "Demand":
        name = message.get("hub", "")
        if not isinstance(name, str) or len(name) > MOST_LETTERS:
            raise ValueError(f"expected a name of at most {MOST_LETTERS} letters as `hub`")
        message = {**message, "hub": (user, name)}
    made: Request = records.parse(_KINDS[kind], message)
    return made
