"""Boxes of tasks whose processes this machine sees, and those of the isolation `process`."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from headgate.isolation.base import Box, Holder
from headgate.isolation.kept import KeptProcess
from headgate.isolation.signals import targets
from headgate.machine import processes
from headgate.machine.cgroup_layout import Mode
from headgate.machine.enclosure import Enclosure, MemoryRecord
from headgate.model.endings import Exit
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.paths import is_readable
from headgate.model.shares import Share, Uncontrolled
from headgate.model.units import say_bytes

STUCK_SECONDS = 5.0
"""Longest wait for a killed process that is stuck in the kernel."""
_HOLD_SECONDS = {Holder.PROOF: 0.05, Holder.PAUSE: 5.0}
"""Longest time until the processes of a held task stand still. One that waits for a disk, or for a
core under a small weight, takes longer than a proof can wait.
"""


class EnclosedBox(Box):
    """A task whose processes this machine sees in an enclosure.

    Args:
        task: Id of the task.
        pid: Its first process; 0 if it ended before it was seen.
        enclosure: Its enclosure.
    """

    def __init__(self, task: TaskId, pid: int, enclosure: Enclosure) -> None:
        self.task = task
        self.pid = pid
        self._leader = processes.look(pid) if pid else None
        self._enclosure = enclosure
        self._lock = threading.Lock()
        self._asked: list[int] = []
        self._closed = False
        self._holding = threading.Lock()
        self._holders = set[Holder]()
        self._ending = False  # it was asked to, or is killed: it is held no more

    @property
    def cgroups(self) -> Mapping[str, Path]:
        return self._enclosure.folders

    @property
    def _has_ended(self) -> bool:
        return is_readable(self.exit_fd, 0)

    @property
    def _is_over(self) -> bool:
        """Whether there is nothing left to change."""
        return self._closed or self._has_ended

    @property
    def _ends(self) -> bool:
        """Whether it is to end, or has ended."""
        return self._ending or self._is_over

    def pin(self, cpus: frozenset[int] | None) -> tuple[Uncontrolled, ...]:
        if cpus is not None and not cpus:
            raise IsolationError(
                f"{self.task}: it cannot be pinned to no core at all; None lets it run on "
                "every core"
            )
        with self._lock:
            return () if self._is_over else self._pin(cpus)

    @abstractmethod
    def _pin(self, cpus: frozenset[int] | None) -> tuple[Uncontrolled, ...]: ...

    def hold(self, by: Holder = Holder.PROOF) -> bool:
        with self._holding:
            if self._ends:
                return False
            try:
                if not self._holders:
                    self._stand_still(_HOLD_SECONDS[by])
            except IsolationError as error:
                if self._ends:
                    return False
                raise IsolationError(f"{self.task}: {error}") from error
            self._holders.add(by)
            return True

    def release(self, by: Holder = Holder.PROOF) -> None:
        with self._holding:
            self._let_go({by})

    def _release_for_good(self) -> None:
        """Let the task run on, whoever holds it, or is about to: it is to end."""
        self._ending = True
        with self._holding:
            self._let_go(set(Holder))

    def _let_go(self, holders: set[Holder]) -> None:
        was_held = bool(self._holders)
        self._holders -= holders
        if was_held and not self._holders:
            self._go_on()

    def _stand_still(self, seconds: float) -> None:
        """Stop every process, within `seconds`.

        Raises:
            IsolationError: They cannot be stopped.
        """
        self._enclosure.hold(seconds, lambda: self._ending)

    def _go_on(self) -> None:
        self._enclosure.release()

    def ask(self, number: int) -> None:
        self._release_for_good()
        if not self._closed and self._leader is not None:
            asked = targets(self._leader, number, self._enclosure.pids())
            self._asked += [process.pid for process in asked]
            processes.send(asked, number)

    def terminate(self) -> None:
        self._release_for_good()
        if not self._closed:
            self._enclosure.terminate(but=self._asked)

    def record(self) -> dict[str, object]:
        return {
            "task": self.task,
            "boot": processes.boot_id(),
            "pid": self.pid,
            "started": self._leader.started if self._leader is not None else None,
        }


class ProcessBox(EnclosedBox):
    """A task that `ProcessIsolation` started."""

    def __init__(
        self,
        task: TaskId,
        child: KeptProcess,
        enclosure: Enclosure,
        mode: Mode,
        where: str = "this machine",
    ) -> None:
        """
        Args:
            task: Id of the task.
            child: Its first process, which is or was in the enclosure.
            enclosure: Its enclosure.
            mode: The kind of enclosure.
            where: Where memory ran out if it is killed below its own limit.
        """
        super().__init__(task, child.pid, enclosure)
        self._mode = mode
        self._where = where
        self._child = child
        self._reaped = False

    @property
    def exit_fd(self) -> int:
        return self._child.exit_fd

    def plan_keeping(self, log: str, folder: Path) -> None:
        self._child.plan(log, folder)

    def keep(self, output: int) -> None:
        self._child.keep(output)

    def pids(self) -> list[int]:
        return [] if self._closed else self._enclosure.pids()

    def apply(self, share: Share) -> tuple[Uncontrolled, ...]:
        with self._lock:
            if self._closed:
                return ()
            return self._while_it_lives(lambda: self._enclosure.apply(share))

    def _pin(self, cpus: frozenset[int] | None) -> tuple[Uncontrolled, ...]:
        return self._while_it_lives(lambda: self._enclosure.pin(cpus))

    def kills(self) -> int:
        return self._enclosure.kills()

    def shortage(self) -> str:
        return said_shortage(self._enclosure.memory(), self._where)

    def kill(self) -> None:
        self._ending = True
        if not self._closed:
            self._enclosure.kill()

    def reap(self) -> Exit:
        self._reaped = True
        if (ended := self._child.end()) is None:
            return Exit(code=None, reason="how it ended is not known: its keeper is gone")
        # A new process starts with the peak of its parent. Only what exceeds that is its own.
        own = ended.largest_kib > self._child.floor_kib
        largest = ended.largest_kib * 1024 if own else None
        end = told_exit(ended.status, largest, self._enclosure.memory(), self._where)
        counted = self._enclosure.cpu_seconds()
        # Without a counter for the whole: the first process, and all its waited-for descendants.
        return replace(end, cpu_seconds=ended.cpu_seconds if counted is None else counted)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._ending = True
            self._enclosure.kill()
            if not self._reaped and is_readable(self.exit_fd, STUCK_SECONDS):
                self.reap()
            self._enclosure.remove()
            self._closed = True
            self._child.close()

    def record(self) -> dict[str, object]:
        folders = {name: str(path) for name, path in self.cgroups.items()}
        kept = {"keeper": dict(self._child.kept)} if self._child.kept else {}
        return {**super().record(), "mode": self._mode, "folders": folders, **kept}

    @property
    def _has_ended(self) -> bool:
        return self._reaped or super()._has_ended

    def _while_it_lives(
        self, change: Callable[[], tuple[Uncontrolled, ...]]
    ) -> tuple[Uncontrolled, ...]:
        try:
            return change()
        except (IsolationError, OSError) as error:
            if self._has_ended:
                return ()
            raise IsolationError(f"{self.task}: {error}") from error


def told_exit(status: int, largest_bytes: int | None, memory: MemoryRecord, where: str) -> Exit:
    """How a task ended.

    Args:
        status: Its exit status; a negative signal number.
        largest_bytes: Peak memory of its largest process; None if unknown.
        memory: The kernel's record of the whole task.
        where: As of `ProcessBox`.
    """
    peaks = [peak for peak in (memory.peak_bytes, largest_bytes) if peak is not None]
    peak = max(peaks) if peaks else None
    limit, reason = None, None
    if status != 0 and memory.kills:
        limit = memory.limit_bytes if memory.at_limit else None
        if peak is not None and limit is not None:
            # mapped files are not counted in the limit
            peak = min(peak, limit)
        reason = f"killed: {said_shortage(replace(memory, peak_bytes=peak), where)}"
    return Exit(
        code=status if status >= 0 else None,
        signal=-status if status < 0 else None,
        memory_peak_bytes=peak,
        over_memory=limit is not None,
        reason=reason,
        kills=memory.kills,
        limit_bytes=limit,
    )


def said_shortage(memory: MemoryRecord, where: str) -> str:
    """In words, which memory ran out when processes were killed."""
    cause = f"{where} ran out of memory"
    if memory.limit_bytes is not None and memory.at_limit:
        cause = f"over its memory limit of {say_bytes(memory.limit_bytes)}"
    return cause + (
        f" (peak {say_bytes(memory.peak_bytes)})" if memory.peak_bytes is not None else ""
    )
