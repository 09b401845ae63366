"""The contract of an engine: what starts tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from headgate.cluster import Cluster
from headgate.events import Exit, TaskId
from headgate.isolation.base import Box, Launch
from headgate.shares import Share


class Listener(ABC):
    """Whom an engine tells. Calls may come from any thread, one at a time for each task, in the order things
    happened."""

    @abstractmethod
    def started(self, task: TaskId, pid: int) -> None: ...

    @abstractmethod
    def output(self, task: TaskId, lines: Sequence[str]) -> None:
        """Lines of the task's output, carriage returns and line feeds both ending a line; a flood may be thinned out
        here, never in the log."""

    @abstractmethod
    def message(self, task: TaskId, message: Mapping[str, object]) -> None:
        """A message up the task channel."""

    @abstractmethod
    def exited(self, task: TaskId, exit: Exit) -> None:
        """The task has ended, all its output was delivered, and its box is gone. Exactly once for each `start`."""

    @abstractmethod
    def warned(self, task: TaskId | None, text: str) -> None:
        """Something was worked around."""


class Engine(ABC):
    """What starts tasks on the nodes of a cluster.

    An implementation must behave so:

    1. `open` comes first; then `cluster` says what there is.
    2. `start` returns at once. `started` follows, then `exited`; or `exited` alone, with its `reason`, when the
    start failed.
    3. The task's output is appended to its log file.
    4. `stop` asks once: down the channel if the task is connected (it saves a checkpoint at a step boundary and
    ends), by SIGTERM
       otherwise; `grace` seconds later everything that is left is killed. A second `stop` can only shorten the grace.
    5. Calls that name a task which is unknown or has ended do nothing.
    6. `close` kills what still runs, and returns when every task's box is gone.
    """

    name: str

    @abstractmethod
    def open(self, listener: Listener) -> None: ...

    @abstractmethod
    def cluster(self) -> Cluster: ...

    def lost(self) -> tuple[str, ...]:
        """What cannot be controlled where the tasks run, a line each: what it is, a colon, cause and cure."""
        return ()

    @abstractmethod
    def start(self, launch: Launch, share: Share, log: str) -> None:
        """Start a task; `log` is the path of the file its output is appended to, in an existing folder."""

    @abstractmethod
    def set_share(self, task: TaskId, share: Share) -> None: ...

    @abstractmethod
    def send(self, task: TaskId, message: Mapping[str, object]) -> None:
        """Send a message down the task channel; dropped when the task is not connected."""

    @abstractmethod
    def stop(self, task: TaskId, grace: float) -> None: ...

    @abstractmethod
    def boxes(self) -> Mapping[TaskId, Box]:
        """The boxes of the tasks that run on this machine, for the samplers."""

    @abstractmethod
    def close(self) -> None: ...


EngineFactory = Callable[[], Engine]
