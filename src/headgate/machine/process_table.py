"""Finds the processes of a task without a cgroup, from environments, sessions and parents."""

from __future__ import annotations

import os
import threading
import time

from headgate.machine.processes import PROC, Process, look, still

TAG = "HEADGATE_TASK"
"""The variable that every process of a task inherits, with the task's id."""
FRESH_SECONDS = 0.05
"""Age up to which a list of all processes is reused, so that one round of samplers needs one
list.
"""
SETTLED_SECONDS = 10.0
"""From this age on, a process without the tag never gets it: it is no launcher that has yet to
become a task.
"""


class ProcessTable:
    """All processes of this machine, and the task in the environment of each.

    The boxes of an isolation share it, so that each process's environment is read once, not once
    per box and second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tags: dict[tuple[int, int], str | None] = {}
        self._seen: list[Process] = []
        self._seen_at = -FRESH_SECONDS

    def members(self, task: str, leader: Process | None, *, recent: bool = False) -> list[Process]:
        """The living processes of a task: those with its id in their environment, those of the
        leader's session, and their descendants.

        A daemon is not found if it cleared its environment, left the session, and lost its parent.

        Args:
            task: Id of the task.
            leader: Its first process, ended or not; None if unknown.
            recent: Whether a list up to 50 ms old suffices. Processes that ended since are left
                out; new ones are missing.
        """
        everyone = self._recent() if recent else _everyone()
        # While the leader is not waited for, its number, and that of its session, cannot be reused.
        session = leader.pid if leader is not None and still(leader) else None
        with self._lock:
            processes = {
                process.pid: process
                for process in everyone
                if process.session == session or self._tag(process) == task
            }
        grown = True
        while grown:
            more = [
                process
                for process in everyone
                if process.pid not in processes and process.parent in processes
            ]
            processes.update((process.pid, process) for process in more)
            grown = bool(more)
        return [
            process for process in processes.values() if not recent or look(process.pid) is not None
        ]

    def _recent(self) -> list[Process]:
        with self._lock:
            if time.monotonic() - self._seen_at > FRESH_SECONDS:
                self._seen = _everyone()
                self._seen_at = time.monotonic()
                living = {(process.pid, process.started) for process in self._seen}
                self._tags = {key: tag for key, tag in self._tags.items() if key in living}
            return self._seen

    def _tag(self, process: Process) -> str | None:
        key = process.pid, process.started
        if key in self._tags:
            return self._tags[key]
        tag = _read_tag(process.pid)
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - process.started / os.sysconf("SC_CLK_TCK")
        if tag is not None or age > SETTLED_SECONDS:
            self._tags[key] = tag
        return tag


def _everyone() -> list[Process]:
    mine = os.getpid()
    pids = (int(entry) for entry in os.listdir(PROC) if entry.isdigit())
    return [process for pid in pids if pid != mine and (process := look(pid)) is not None]


def _read_tag(pid: int) -> str | None:
    try:
        environment = (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None
    prefix = os.fsencode(f"{TAG}=")
    for entry in environment.split(b"\0"):
        if entry.startswith(prefix):
            return os.fsdecode(entry[len(prefix) :])
    return None
