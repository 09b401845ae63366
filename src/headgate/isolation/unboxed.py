"""Boxes tasks in without cgroups: a task is identified by its environment and its session, and
limited by fallbacks.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from headgate.machine import processes
from headgate.machine.cgroup_layout import CURE
from headgate.machine.enclosure import FIELDS, Enclosure, MemoryRecord, never
from headgate.machine.fallbacks import Fallbacks
from headgate.machine.process_table import ProcessTable
from headgate.model.errors import IsolationError
from headgate.model.reason_text import in_words
from headgate.model.shares import Share, Uncontrolled

KILL_SECONDS = 10.0
HOLD_SECONDS = 1.0
"""Longest time until all processes of a held task have the signal to stop."""


class Unboxed(Enclosure):
    """The processes of a task without a cgroup."""

    folders: Mapping[str, Path] = {}

    def __init__(
        self,
        task: str,
        fallbacks: Fallbacks,
        process_table: ProcessTable,
        leader: processes.Process | None = None,
    ) -> None:
        """
        Args:
            task: Id of the task, which is in the environment of its processes.
            fallbacks: Limit the processes.
            process_table: Finds the processes.
            leader: Its first process, if it is known.
        """
        self._task = task
        self._fallbacks = fallbacks
        self._process_table = process_table
        self._leader = leader
        self._held = set[processes.Process]()

    def plan(self, share: Share) -> Sequence[str]:
        given = [(field, getattr(share, field)) for field in FIELDS]
        return [
            in_words(fallback.warning())
            for field, value in given
            if value is not None
            and (fallback := self._fallbacks.describe(field, value)) is not None
        ]

    def create(self) -> None:
        """There is nothing to make."""

    def admit(self, pid: int) -> None:
        self._leader = processes.look(pid)
        if self._leader is None:
            raise IsolationError(f"process {pid} ended before the program began")

    def apply(self, share: Share) -> tuple[Uncontrolled, ...]:
        pids = [process.pid for process in self._members()]
        given = [(field, getattr(share, field)) for field in FIELDS]
        applied = [
            self._fallbacks.apply(field, value, pids) for field, value in given if value is not None
        ]
        return tuple(filter(None, applied))

    def pin(self, cpus: frozenset[int] | None) -> tuple[Uncontrolled, ...]:
        return self._fallbacks.pin(cpus, [process.pid for process in self._members()])

    def pids(self) -> list[int]:
        return [
            process.pid
            for process in self._process_table.members(self._task, self._leader, recent=True)
        ]

    def hold(self, seconds: float, given_up: Callable[[], bool] = never) -> None:
        # A signalled process cannot fork, so a round that finds no new one has found all.
        deadline = time.monotonic() + max(seconds, HOLD_SECONDS)
        by_itself = set(processes.stopped(process.pid for process in self._members()))
        late = False
        while fresh := set(self._members()) - self._held - by_itself:
            if late or given_up():
                self.release()
                raise IsolationError(
                    "it cannot be held now: it starts processes faster than they can be stopped; "
                    f"try again, or {CURE}"
                )
            processes.send(fresh, signal.SIGSTOP)
            self._held |= fresh
            late = time.monotonic() > deadline

    def release(self) -> None:
        processes.send(self._held, signal.SIGCONT)
        self._held.clear()

    def terminate(self, but: Collection[int] = ()) -> None:
        processes.send(
            [member for member in self._members() if member.pid not in but], signal.SIGTERM
        )

    def kill(self) -> None:
        # Stop before killing: a stopped process cannot fork, so a round that finds no new one has
        # found all.
        deadline = time.monotonic() + KILL_SECONDS
        while members := self._members():
            stopped: set[processes.Process] = set()
            while fresh := [process for process in members if process not in stopped]:
                processes.send(fresh, signal.SIGSTOP)
                stopped.update(fresh)
                members = self._members()
            processes.send(members, signal.SIGKILL)
            if time.monotonic() > deadline:
                return  # stuck in the kernel: it goes as soon as it comes back from there
            time.sleep(0.001)

    def memory(self) -> MemoryRecord:
        return MemoryRecord()

    def kills(self) -> int:
        return 0

    def cpu_seconds(self) -> None:
        """None. The kernel only counts it per process and waited-for children, which
        `ProcessBox.reap` reads.
        """

    def remove(self) -> None:
        self._fallbacks.forget()

    def _members(self) -> list[processes.Process]:
        return self._process_table.members(self._task, self._leader)
