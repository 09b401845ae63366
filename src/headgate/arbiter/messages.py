"""Read what hubs and users send. Whoever may connect can send anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate.arbiter.records import MOST_LETTERS, Demand, JobDemand, MachineJob
from headgate.model import records

MOST_BYTES = 1 << 20
"""Longest line that is read; most jobs make a shorter one."""
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
    """Hold a job, let it go first, or leave it to its turn, as an administrator."""

    job: MachineJob
    held: bool = False
    first: bool = False


@dataclass(frozen=True, slots=True)
class Drain:
    """Let nothing start any more, or everything again, as an administrator."""

    drained: bool


Request = Demand | Look | Book | Unbook | OrderJob | Drain
_KINDS: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (Demand, Look, Book, Unbook, OrderJob, Drain)
}


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
