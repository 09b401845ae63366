"""Read what hubs send. Whoever may connect can send anything."""

from __future__ import annotations

import json

from headgate.arbiter.records import MOST_LETTERS, Demand
from headgate.model import records

MOST_BYTES = 1 << 20
"""Longest line that is read; most jobs make a shorter one."""


def demand(line: bytes, user: str) -> Demand:
    """The demand that a hub states.

    Args:
        line: A line of JSON.
        user: The hub's user, as the kernel tells. What the line says of that does not count.

    Raises:
        ValueError: The line is no demand.
    """
    if len(line) > MOST_BYTES:
        raise ValueError(f"expected at most {MOST_BYTES:,} bytes in a line")
    try:
        message = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(message, dict):
        raise ValueError("expected the fields of a demand")
    name = message.get("hub", "")
    if not isinstance(name, str) or len(name) > MOST_LETTERS:
        raise ValueError(f"expected a name of at most {MOST_LETTERS} letters as `hub`")
    return records.parse(Demand, {**message, "hub": (user, name)})
