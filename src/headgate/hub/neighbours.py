"""The hubs of this user's other allocations: where each is, and whether it grants cores that this one grants too."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headgate import runs
from headgate.telemetry import allocation

_ABOUT = "allocation.json"


def publish(folder: Path) -> None:
    """Write the allocation of this process's hub into its folder."""
    ours = allocation.current()
    about = {"host": socket.gethostname(), "pid": os.getpid(), "cpus": sorted(ours.cpus), "allocation": str(ours)}
    (folder / _ABOUT).write_text(json.dumps(about))


def about(folder: Path) -> dict[str, Any]:
    """What the last hub of a folder wrote of itself; empty where none did, or it is on another machine."""
    try:
        found = json.loads((folder / _ABOUT).read_text())
        return found if found["host"] == socket.gethostname() else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def overlapping(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """The folders of other hubs that have tasks on cores of this one's; what is to be told of that here, and there."""
    ours = about(folder)
    for other in runs.hubs():
        there = about(other) if other != folder else {}
        shared = frozenset(ours.get("cpus", ())) & frozenset(there.get("cpus", ()))
        if shared and next((other / "boxes").glob("*.json"), None) is not None:
            yield other, _warning(there, shared), _warning(ours, shared)


def _warning(other: dict[str, Any], shared: frozenset[int]) -> str:
    return (
        f"the hub of another allocation of yours ({other['allocation']}; process {other['pid']}) has tasks on CPUs "
        f"{allocation.say_cpus(shared)} too: these CPUs are oversubscribed"
    )
