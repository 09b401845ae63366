"""The processes of a task that no cgroup holds together: told from environments, sessions and
parents.
"""

from __future__ import annotations

import os
import threading
import time

from headgate.machine.processes import PROC, Process, look, still

TAG = "HEADGATE_TASK"
"""Environment variable that every process of a task inherits; its value is the task's id."""
FRESH_SECONDS = 0.05
"""One look at all processes serves the boxes that are read in one round of samplers."""
SETTLED_SECONDS = 10.0
"""From this age on a process without the tag stays without: it is no launcher that has yet to
become a task.
"""


class ProcessTable:
    """All processes of this machine, and the task that each carries in its environment.

    Shared by the boxes of an isolation: a process is asked for its environment once, not once a box
    and second.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tags: dict[tuple[int, int], str | None] = {}
        self._seen: list[Process] = []
        self._seen_at = -FRESH_SECONDS

    def members(self, task: str, leader: Process | None, *, recent: bool = False) -> list[Process]:
        """Every living process of a task: those that carry its id in their environment, those of
        the leader's session, and their descendants.

        A daemon is not found if it scrubbed its environment, left the session, and lost its parent.

        Args:
            task: Id of the task.
            leader: Its first process, ended or not; None where that is not known.
            recent: A look that is up to 50 ms old will do. Processes that ended since are left out;
                new ones are
            missing.
        """
        everyone = self._recent() if recent else _everyone()
        # As long as the leader is not waited for, its number, and with it that of its session,
        # cannot be another's.
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
