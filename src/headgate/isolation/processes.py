"""Telling processes apart: /proc, start times, and who belongs to a task that no cgroup holds together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
TAG = "HEADGATE_TASK"
"""Environment variable that every process of a task inherits; its value is the task's id."""


@dataclass(frozen=True, slots=True)
class Process:
    """A living process. `started` is in clock ticks since boot: with it a recycled `pid` is told from the first."""

    pid: int
    parent: int
    session: int
    started: int


def look(pid: int) -> Process | None:
    """The living process of that number; None when there is none, or only what is left of one (a zombie)."""
    found = _stat(pid)
    return found[1] if found is not None and found[0] not in "ZX" else None


def still(process: Process) -> bool:
    """Whether its number still belongs to it, alive or not yet waited for."""
    found = _stat(process.pid)
    return found is not None and found[1].started == process.started


def _stat(pid: int) -> tuple[str, Process] | None:
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # Fields after the command, which is in parentheses and may itself hold any character; proc(5) counts from 1.
    fields = text[text.rindex(")") + 2 :].split()
    return fields[0], Process(pid=pid, parent=int(fields[1]), session=int(fields[3]), started=int(fields[19]))


def boot_id() -> str:
    """Changes with every boot: process ids and start times of another boot mean nothing."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def members(task: str, leader: Process | None) -> list[Process]:
    """Every living process of a task, found without a cgroup: those that carry its id in their environment, those of
    the leader's session, and their descendants.

    A daemon that scrubbed its environment, left the session and whose parent ended is not found.

    Args:
        task: Id of the task.
        leader: Its first process, ended or not; None where that is not known.
    """
    everyone = [process for entry in os.listdir(PROC) if entry.isdigit() and (process := look(int(entry)))]
    everyone = [process for process in everyone if process.pid != os.getpid()]
    # As long as the leader is not waited for, its number, and with it that of its session, cannot be another's.
    session = leader.pid if leader is not None and still(leader) else None
    found = {process.pid: process for process in everyone if process.session == session or _carries(process.pid, task)}
    grown = True
    while grown:
        more = [process for process in everyone if process.pid not in found and process.parent in found]
        found.update((process.pid, process) for process in more)
        grown = bool(more)
    return list(found.values())


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    """Signal processes that are still the ones that were looked at; those that are not are left alone."""
    for process in processes:
        try:
            fd = os.pidfd_open(process.pid)
        except OSError:
            continue
        try:
            if still(process):
                signal.pidfd_send_signal(fd, number)
        except OSError:
            pass  # ended meanwhile, or no longer ours (set-user-id)
        finally:
            os.close(fd)


def _carries(pid: int, task: str) -> bool:
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return os.fsencode(f"{TAG}={task}") in environment.split(b"\0")
