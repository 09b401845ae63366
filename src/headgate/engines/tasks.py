"""The engine `local`'s records of its tasks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Protocol

from headgate.engines.log import TaskLog
from headgate.engines.oom import OomMonitor
from headgate.isolation.base import Box, Isolation
from headgate.model.endings import Exit
from headgate.model.identifiers import TaskId
from headgate.model.shares import NOTHING, Lever, Share, Uncontrolled


class BoxRegistry(Protocol):
    """Looks after boxes in case this process dies."""

    def add(self, task: TaskId, record: Mapping[str, object], output_fd: int, log: str) -> None: ...

    def connected(self, task: TaskId) -> None: ...

    def remove(self, task: TaskId) -> None: ...


@dataclass(slots=True)
class PendingStart:
    """A task that is being started: its key, whether it is to be stopped, and actions to take once
    it runs.
    """

    key: str
    stopped: threading.Event = field(default_factory=threading.Event)
    held: list[Callable[[], None]] = field(default_factory=list)


@dataclass(slots=True)
class Task:
    """A running task. Times are those of `time.monotonic`."""

    id: TaskId
    isolation: Isolation
    box: Box
    key: str
    output: int
    log: TaskLog
    kills: OomMonitor
    stop_signal: int
    wanted: deque[Share] = field(default_factory=deque)  # shares that are not in force yet
    grace: float = 0.0  # that it had when it was asked to end
    overdue: bool = False  # it was killed when that was over
    waits_until: float | None = None  # for what its first process left behind, once that has ended
    kill_at: float | None = None
    rest_at: float | None = None  # when what was not asked to end is, before that
    killed: bool = False  # by its engine
    reads_again: float | None = None
    complained: str | None = None
    told_of: set[Lever] = field(default_factory=set)  # what cannot be controlled
    exit: Exit | None = None  # None: it has not ended, as far as is known

    def presumed_exit(self) -> Exit:
        """How the task ended. Nothing waits for it any longer."""
        if self.exit is not None:
            return self.exit
        if self.box.pids():
            return Exit(code=None, reason="it could not be killed: it is stuck in the kernel")
        return Exit(code=None, reason="it was killed, and how it ended was not told in time")

    def change(self) -> tuple[Uncontrolled, ...]:
        """Apply all pending changes of its share: the first of several waiting changes applies all.
        Returns the result of `Box.apply`.
        """
        shares = []
        while self.wanted:
            shares.append(self.wanted.popleft())
        return self.box.apply(reduce(Share.merged, shares, NOTHING)) if shares else ()

    def news(self, uncontrolled: Sequence[Uncontrolled]) -> list[Uncontrolled]:
        """The controls in a result of `Box.apply` that were not reported before. Each change of a
        share brings other figures.
        """
        news = [limit for limit in uncontrolled if limit.lever not in self.told_of]
        self.told_of.update(limit.lever for limit in news)
        return news
