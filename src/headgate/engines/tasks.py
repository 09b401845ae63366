"""The engine `local`'s records of its tasks."""

from __future__ import annotations

import os
import resource
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce
from typing import Protocol

from headgate.engines.oom import OomMonitor
from headgate.engines.task_output import TaskOutput
from headgate.isolation.base import Box, Isolation, Launch
from headgate.model.endings import Exit
from headgate.model.errors import HeadgateError
from headgate.model.identifiers import TaskId
from headgate.model.shares import NOTHING, Lever, Share, Uncontrolled

REST_SECONDS = 2.0
"""Time before the end of a task's grace at which its remaining processes are asked to end. The
first process was asked earlier.
"""
FILES_OF_A_TASK = 12
"""Its output, log, end, keeper and connection, files of its cgroups, and some during its start."""
_LOOK_SECONDS = 0.05
_OTHER_FILES = 32
"""For the stores of runs, clients and samplers."""
_AMPLE_FILES = 4096  # of some 360 tasks


class BoxRegistry(Protocol):
    """Looks after boxes in case this process dies."""

    def add(self, task: TaskId, record: Mapping[str, object], output_fd: int, log: str) -> None: ...

    def connected(self, task: TaskId) -> None: ...

    def remove(self, task: TaskId) -> None: ...


@dataclass(slots=True)
class PendingStart:
    """A task that is being started.

    Args:
        key: Its key at the task channel.
        begin_by: Time by which `begin` is called, as of `time.monotonic`.
        stopped: Whether it is to be stopped.
        is_registered: Whether the registry has its box.
        held: Actions to take once it runs.
    """

    key: str
    _begin: Callable[[], None] | None
    begin_by: float
    stopped: threading.Event = field(default_factory=threading.Event)
    is_registered: bool = False
    held: list[Callable[[], None]] = field(default_factory=list)

    @property
    def has_begun(self) -> bool:
        return self._begin is None

    def begin(self) -> None:
        """Begin it, unless it has begun."""
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()

    def record(self, launch: Launch, isolation: Isolation, box: Box) -> Mapping[str, object]:
        """What the registry has of its box."""
        return {
            "stop_signal": launch.stop_signal,
            "key": self.key,
            "gpus": None if launch.gpus is None else list(launch.gpus),
            "attempt": launch.attempt,
            "isolation": isolation.name,
            **box.record(),
        }


class GraceStep(Enum):
    """What is due at a time of a task's grace period."""

    TERMINATE = "its remaining processes are asked to end"
    KILL = "all are killed"


@dataclass(slots=True)
class GracePeriod:
    """The time that a task has to end, once it is asked to. Times are those of `time.monotonic`.

    Args:
        seconds: How long it was when the task was first asked.
        terminates: Whether only the first process was asked, so that the others are asked shortly
            before the end.
        overdue_seconds: `seconds`, if it is over and the task had not ended; None: not so.
    """

    seconds: float = 0.0
    terminates: bool = False
    overdue_seconds: float | None = None
    _kill_at: float | None = None
    _rest: float = 0.0  # before the end

    @property
    def runs(self) -> bool:
        """Whether the task was asked to end, and the time is not over."""
        return self._kill_at is not None

    def grant(self, now: float, seconds: float) -> None:
        """Begin it; one that runs only becomes shorter."""
        if self._kill_at is None:
            self.seconds = seconds
        if self._kill_at is None or now + seconds < self._kill_at:
            self._kill_at, self._rest = now + seconds, min(REST_SECONDS, seconds / 2)

    def times(self) -> list[float]:
        """When `due` has to be called."""
        if self._kill_at is None:
            return []
        return [self._kill_at - self._rest if self.terminates else self._kill_at]

    def due(self, now: float) -> set[GraceStep]:
        """What is due; each once."""
        due = set[GraceStep]()
        if self._kill_at is None:
            return due
        if self.terminates and now >= self._kill_at - self._rest:
            self.terminates = False
            due.add(GraceStep.TERMINATE)
        if now >= self._kill_at:
            self._kill_at, self.overdue_seconds = None, self.seconds
            due.add(GraceStep.KILL)
        return due

    def end(self) -> None:
        """Nothing is due any longer: the task has ended."""
        self._kill_at = None


@dataclass(slots=True)
class Task:
    """A running task. Times are those of `time.monotonic`."""

    id: TaskId
    isolation: Isolation
    box: Box
    key: str
    output: TaskOutput
    kills: OomMonitor
    stop_signal: int
    wanted: deque[Share] = field(default_factory=deque)  # shares that are not in force yet
    grace: GracePeriod = field(default_factory=GracePeriod)
    waits_until: float | None = None  # for what its first process left behind, once that has ended
    killed: bool = False  # by its engine
    told_of: set[Lever] = field(default_factory=set)  # what cannot be controlled
    exit: Exit | None = None  # None: it has not ended, as far as is known

    def times(self, now: float) -> list[float]:
        """When it has to be looked at again, if it is now `now`."""
        times = self.grace.times()
        times += [self.output.reads_again] if self.output.reads_again is not None else []
        times += [now + _LOOK_SECONDS] if self.waits_until is not None else []
        return times

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


class Descriptors:
    """Counts how many tasks the limit on open files allows (`ulimit -n`). One task too many would
    cost others their output.

    It counts the other open files of this process when it is made.
    """

    def __init__(self) -> None:
        self._besides = len(os.listdir("/proc/self/fd")) + _OTHER_FILES

    def check(self, tasks: int) -> None:
        """Check that `tasks` tasks can run at once.

        Raises:
            HeadgateError: They cannot. The message says which limit to raise.
        """
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if self._besides + tasks * FILES_OF_A_TASK <= most:
            return
        fitting, ample = (
            max(most - self._besides, 0) // FILES_OF_A_TASK,
            max(_AMPLE_FILES, 4 * most),
        )
        where = "`ulimit -n`, /etc/security/limits.conf, LimitNOFILE of a service"
        raise HeadgateError(
            f"{most} open files are allowed here (`ulimit -Hn`), enough for {fitting} tasks at "
            f"once; have fewer, or raise it to {ample} ({where}) where the hub is started, once "
            "the one that runs has ended"
        )
