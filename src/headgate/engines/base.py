"""The contract of an engine, which starts tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headgate.isolation.base import Box, Launch
from headgate.model.cluster import Cluster, Node
from headgate.model.endings import Exit
from headgate.model.errors import HeadgateError
from headgate.model.identifiers import JobId, TaskId
from headgate.model.reasons import Reason
from headgate.model.shares import Share, Uncontrolled
from headgate.sampling.columns import Column

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """An engine by name, and its cluster.

    Args:
        name: As `Engine.name`.
        address: The address of the cluster, in the engine's form; empty: the engine finds or starts
            one.
        shared_files: Whether the nodes have the same files as this machine, under the same paths.
            Then no files are sent.
    """

    name: str = "local"
    address: str = ""
    shared_files: bool = False

    @property
    def has_own_files(self) -> bool:
        """Whether its nodes have files that this machine does not see."""
        return bool(self.address) and not self.shared_files

    def __str__(self) -> str:
        return f"{self.name} at {self.address}" if self.address else self.name


LOCAL = EngineSpec()


@dataclass(frozen=True, slots=True)
class Slot:
    """What a task takes of a node, for engines with accounts.

    Args:
        node: Name of the node.
        cores: Cores of its plan, which may be fractional; 0 if the plan states none.
        memory_bytes: Memory limit of its job; None: no limit.
        gpus: Number of the node's GPUs that are its own.
        private: Other users of the node see only whose job it is.
        takes: Seconds that its job takes from its start: likely, least, most; None: not known.
    """

    node: str
    cores: float
    memory_bytes: int | None = None
    gpus: int = 0
    private: bool = False
    takes: tuple[float, float, float] | None = field(default=None, compare=False)


class Listener(ABC):
    """Receives an engine's reports. Calls may come from any thread. For each task they come one at
    a time, in order.
    """

    @abstractmethod
    def started(self, task: TaskId, pid: int) -> None: ...

    @abstractmethod
    def output(self, task: TaskId, lines: Sequence[str]) -> None:
        """Lines of the task's output. Carriage returns and line feeds both end a line. A flood may
        be thinned out here, but never in the log.
        """

    @abstractmethod
    def message(self, task: TaskId, message: Mapping[str, object]) -> None:
        """A message up the task channel."""

    @abstractmethod
    def exited(self, task: TaskId, exit: Exit) -> None:
        """The task has ended, all its output was delivered, and its box is gone. Called exactly
        once for each `start`.
        """

    @abstractmethod
    def warned(self, task: TaskId | None, what: Reason | str) -> None:
        """Report a workaround; an engine of a plug-in may give it in words."""

    def waits(self, task: TaskId, what: str) -> None:
        """A task waits for what `Engine.reserve` is to set aside, for example `for the cluster: 2
        CPUs on node b`.
        """
        self.warned(task, f"it waits {what}")

    def usage(self, target: str, reading: Mapping[Column, float]) -> None:  # noqa: B027  # those who do not record
        """Usage of a task or a node on another machine since the last call, once a second while a
        task runs there.

        `target` is the task's id, or `node:` and the node's name. Tasks on this machine are read
        from `Engine.boxes`.
        """

    def joined(self, node: Node) -> None:  # noqa: B027  # those whose nodes stay as they are
        """A node joined or changed after `Engine.open`."""

    def left(self, name: str, reason: str, for_good: bool = False) -> None:  # noqa: B027  # as above
        """A node is gone. Each of its tasks then has `exited`, `lost`, which is no failure of its
        own.

        `for_good`: no node by that name can join while the engine is open. This may also be
        reported later.
        """


class Engine(ABC):
    """Starts tasks on the nodes of a cluster.

    An implementation must behave so:

    1. `open` comes first; then `cluster` says what there is. `open` may take a while. Where it
       fails it raises a `HeadgateError` and leaves nothing behind.
    2. `start` returns at once. `started` follows, then `exited`. When the start failed, `exited`
       comes alone, with its `reason`.
    3. The task's output is appended to its log file.
    4. `stop` asks once. A connected task is asked down the channel: it saves a checkpoint at a step
       boundary and ends. Otherwise the launch's signal goes to the task's main process, and SIGTERM
       to the rest when the grace nears its end. After `grace` seconds everything that is left is
       killed. A second `stop` can only shorten the grace.
    5. `reserve` comes before the first `start` of an attempt, with what all its tasks take. It
       comes again before each task that is added. A task whose part is not free waits, and `waits`
       says once what it waits for. `release` gives back what these tasks had, and leaves the other
       tasks of the attempt theirs.
    6. Calls that name an unknown or ended task do nothing.
    7. `close` kills what still runs, and returns when every task's box is gone.
    """

    name: str

    @abstractmethod
    def open(self, listener: Listener) -> None: ...

    @abstractmethod
    def cluster(self) -> Cluster: ...

    def uncontrolled(self) -> tuple[Uncontrolled, ...]:
        """What cannot be controlled on the nodes of the tasks."""
        return ()

    def called(self) -> str:
        """A name for its cluster that fits into a file name, and does not depend on how the cluster
        was reached.

        Calibrations of its nodes are kept under it; empty: none are kept.
        """
        return ""

    def ask(self, node: str, function: Callable[..., T], *arguments: object) -> T:
        """Call one of Headgate's own functions on a node, and wait for its result. Arguments and
        result are pickled.

        Raises:
            HeadgateError: The function raised, the node is gone, or the node has no code of
                Headgate's.
        """
        raise HeadgateError(
            f"engine {self.name!r} cannot measure its nodes: it has no agents there"
        )

    def reserve(self, job: JobId, attempt: int, slots: Mapping[TaskId, Slot]) -> None:  # noqa: B027  # as below
        """Reserve what tasks of an attempt take. Returns at once.

        This adds to the reservations of the attempt's other tasks, and replaces those of the same
        tasks. Engines whose nodes have no accounts ignore it.
        """

    def release(self, job: JobId, attempt: int, tasks: Collection[TaskId]) -> None:  # noqa: B027  # as above
        """Give back the reservations of tasks of an attempt that have ended. Its other tasks may
        run on.
        """

    def waiting(self) -> frozenset[JobId]:
        """Jobs without a running task, because their reservations cannot be granted now."""
        return frozenset()

    @abstractmethod
    def start(self, launch: Launch, share: Share, log: str) -> None:
        """Start a task. `log` is the path of the file for its output, in an existing folder."""

    def take_up(self, record: Mapping[str, Any], share: Share, log: str) -> None:
        """Take up a task that outlived its hub, as `start` would begin it.

        Args:
            record: What the engine had registered of its box.
        """
        raise HeadgateError(f"engine {self.name!r} cannot take up tasks")

    @abstractmethod
    def set_share(self, task: TaskId, share: Share) -> None: ...

    @abstractmethod
    def send(self, task: TaskId, message: Mapping[str, object]) -> None:
        """Send a message down the task channel. It is dropped if the task is not connected."""

    @abstractmethod
    def stop(self, task: TaskId, grace: float) -> None: ...

    @abstractmethod
    def boxes(self) -> Mapping[TaskId, Box]:
        """The boxes of the tasks on this machine, for the samplers. `Listener.usage` reports tasks
        elsewhere.
        """

    @abstractmethod
    def close(self) -> None: ...
