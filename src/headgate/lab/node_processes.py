"""Finds and ends the processes in the nodes of a lab."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence

from headgate.lab import limits
from headgate.lab.names import path
from headgate.lab.record import Record
from headgate.machine.processes import Process, look, send

TERM_SECONDS = 2.0
KILL_SECONDS = 10.0
_PAUSE_SECONDS = 0.01


def processes(record: Record, nodes: Sequence[str]) -> dict[str, list[int]]:
    """Process ids by node: processes in its cgroups, and others in its network namespace."""
    inside = _in_namespaces({node: str(path(record.names.namespace(node))) for node in nodes})
    return {node: sorted({*limits.pids(record, node), *inside[node]}) for node in nodes}


def end(record: Record, nodes: Sequence[str]) -> None:
    """End every process in these nodes: ask first, kill after two seconds."""

    def living() -> list[Process]:
        pids = {
            pid
            for processes_of_node in processes(record, nodes).values()
            for pid in processes_of_node
        }
        return [process for pid in pids if (process := look(pid)) is not None]

    if not (remaining := living()):
        return
    send(remaining, signal.SIGTERM)
    if _gone(living, TERM_SECONDS):
        return
    for node in nodes:
        limits.kill(record, node)
    deadline = time.monotonic() + KILL_SECONDS
    while (remaining := living()) and time.monotonic() < deadline:
        send(remaining, signal.SIGKILL)
        time.sleep(_PAUSE_SECONDS)


def _gone(living: Callable[[], list[Process]], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while living():
        if time.monotonic() > deadline:
            return False
        time.sleep(_PAUSE_SECONDS)
    return True


def _in_namespaces(paths: dict[str, str]) -> dict[str, list[int]]:
    nodes: dict[tuple[int, int], str] = {}
    for node, namespace in paths.items():
        try:
            stat = os.stat(namespace)
        except FileNotFoundError:
            continue
        nodes[stat.st_dev, stat.st_ino] = node
    inside: dict[str, list[int]] = {node: [] for node in paths}
    for pid in os.listdir("/proc") if nodes else ():
        if not pid.isdigit():
            continue
        try:
            stat = os.stat(f"/proc/{pid}/ns/net")
        except OSError:  # ended, or on its way
            continue
        holder = nodes.get((stat.st_dev, stat.st_ino))
        if holder is not None and int(pid) != os.getpid():
            inside[holder].append(int(pid))
    return inside
