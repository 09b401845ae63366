"""What the hubs of this user's allocations know of each other: the CPUs of each."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from headgate.hub.connection import connect
from headgate.machine import allocation
from headgate.model.errors import HeadgateError
from headgate.model.reasons import Reason, ReasonKind
from headgate.recorded import runs

_ALLOCATION = "allocation.json"


def publish_allocation(folder: Path) -> None:
    """Write the allocation of this process's hub into its folder, for other hubs to read."""
    own = allocation.current()
    about = {
        "host": runs.host(),
        "pid": os.getpid(),
        "cpus": sorted(own.cpus),
        "allocation": str(own),
    }
    (folder / _ALLOCATION).write_text(json.dumps(about))


def allocation_of(folder: Path) -> dict[str, Any]:
    """The allocation that the last hub of a folder wrote; empty: none did, or it was on another
    machine.
    """
    try:
        written = json.loads((folder / _ALLOCATION).read_text())
        return written if written["host"] == runs.host() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def overlapping(folder: Path) -> Iterator[tuple[Path, Reason, Reason]]:
    """Folders of other hubs that share cores with this hub, with the message for this hub and the
    message for the other.
    """
    own = allocation_of(folder)
    for other in runs.hubs():
        other_allocation = allocation_of(other) if other != folder else {}
        shared = frozenset(own.get("cpus", ())) & frozenset(other_allocation.get("cpus", ()))
        if shared and next((other / "boxes").glob("*.json"), None) is not None:
            yield other, _warning(other_allocation, shared), _warning(own, shared)


def warn_neighbours() -> list[Reason]:
    """Tell the hubs of other allocations that this hub shares cores with them. Returns the messages
    for this hub.
    """
    neighbours = []
    for folder, own_place, other_place in overlapping(runs.hub()):
        with suppress(HeadgateError):  # it has another version, or is just ending
            if (other := connect(folder)) is not None:
                with other:
                    other.ask("warn", reason=other_place.plain())
        neighbours.append(own_place)
    return neighbours


def _warning(other: dict[str, Any], shared: frozenset[int]) -> Reason:
    cpus = allocation.say_cpus(shared)
    facts = {"allocation": other["allocation"], "pid": other["pid"], "cpus": cpus}
    return Reason(ReasonKind.CORES_SHARED, facts)
