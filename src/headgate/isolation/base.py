"""The contract of an isolation, which boxes tasks in."""

from __future__ import annotations

import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from headgate.isolation.process_attributes import Attributes
from headgate.machine import processes
from headgate.model.cluster import Place
from headgate.model.endings import Exit
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.mounts import Mount
from headgate.model.shares import Share, Uncontrolled

HOST_IMAGE = "host"
"""The image with this machine's own installation. It is in no registry."""
WHILE_RUNNING = "of a task that runs"
"""Scope of limits that can only be set when a task starts."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Exactly what is started: `headgate run --dry-run` prints it.

    Args:
        task: Id of the task.
        argv: Program and arguments; no shell is put around it.
        env: The whole environment.
        cwd: Existing folder to start in.
        threads: Compute threads that the environment sets.
        place: The place on this machine where it runs; None: the machine itself.
        isolation: Its isolation, as `Isolation.name`; empty: that of its engine.
        image: Image of a container: one on this machine, or `HOST_IMAGE`.
        runtime: The runtime of a container, by its daemon's name; None: the daemon's default.
        daemon: Address of the container daemon; empty: that of the process that starts it.
        reads: Files and folders that it has to see, if it does not see all of this machine's.
        writes: Those that it has to write as well, besides its folder.
        mounts: Further ones that its user names. Without one of these it is not started.
        keeps: Folder for copies of files that would disappear with a container; empty: no copies.
        gpus: Indices of the visible GPUs; None: all.
        stop_signal: The signal that asks it to end, if its library does not.
        attributes: Umask, nice value and limits of its process; None: those of the process that
            starts it.
        stdin: Descriptor of its standard input, in the process that starts it; None: none. Only
            isolations that start processes of this machine can pass it on.
        tty: Whether its output is a pseudo-terminal, which its engine opens.
        outlives: Whether it goes on if its hub dies.
        attempt: Number of its job's attempt.
        private: Whether the name of its cgroup says nothing of its job.
    """

    task: TaskId
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    threads: int
    place: Place | None = None
    isolation: str = ""
    image: str = HOST_IMAGE
    runtime: str | None = None
    daemon: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    keeps: str = ""
    gpus: tuple[int, ...] | None = None
    stop_signal: int = signal.SIGTERM
    attributes: Attributes | None = None
    stdin: int | None = None
    tty: bool = False
    outlives: bool = False
    attempt: int = 1
    private: bool = False


class Holder(StrEnum):
    """What stops the processes of a task: a proof for a moment, or a pause."""

    PROOF = "proof"
    PAUSE = "pause"


class Box(ABC):
    """One running task and all its descendants, boxed in."""

    task: TaskId
    pid: int
    """Process id of the task's first process, as the hub sees it."""

    @property
    @abstractmethod
    def exit_fd(self) -> int:
        """A file descriptor that turns readable once the first process has ended. The box owns
        it.
        """

    @property
    @abstractmethod
    def cgroups(self) -> Mapping[str, Path]:
        """Folder of the task's cgroup by controller (`cpu`, `cpuacct`, `memory`, `blkio`, ...,
        `unified` for a cgroup2 folder), for samplers. Empty without cgroups.
        """

    @abstractmethod
    def pids(self) -> list[int]:
        """Every living process of the task, descendants included, daemons too."""

    @abstractmethod
    def apply(self, share: Share) -> tuple[Uncontrolled, ...]:
        """Change the limits while the task runs; fields that are None stay as they are. Takes
        effect within half a second.

        Returns:
            Each field that cannot be applied here, with its substitute. Empty if all were applied.
            An engine reports each lever once per task.

        Raises:
            IsolationError: The kernel refused a field that can be applied here. The other fields
                are applied. Never raised for a task that has ended.
        """

    @abstractmethod
    def pin(self, cpus: frozenset[int] | None) -> tuple[Uncontrolled, ...]:
        """Restrict the task to these cores, at once and while it runs.

        Args:
            cpus: Numbers as the kernel counts them; None: all cores.

        Returns:
            As `apply`.

        Raises:
            IsolationError: The task may use none of these cores. Never raised for a task that has
                ended.
        """

    def kills(self) -> int:
        """Number of its processes that the kernel has killed so far for lack of memory; 0 if
        nothing counts them. Read often.
        """
        return 0

    def shortage(self) -> str:
        """Which memory ran out: `over its memory limit of 64 MiB`, for example, or the
        machine's.
        """
        return ""

    def hold(self, by: Holder = Holder.PROOF) -> bool:
        """Stop every process of the task until all who hold it have called `release`. Takes some
        milliseconds. May be called from any thread.

        Returns:
            Whether it is held. A task that has ended, or was asked to end, is not.

        Raises:
            IsolationError: It cannot be held, or not in time. It runs on.
        """
        raise IsolationError(f"{self.task}: its isolation cannot hold a task")

    def release(self, by: Holder = Holder.PROOF) -> None:  # noqa: B027  # most hold nothing
        """Let the task run on if nobody else holds it. May be called from any thread.

        Ending a task releases it too, because held processes receive no signal.
        """

    def ask(self, number: int) -> None:
        """Send the task's main process a signal to end, and none of its helpers. Returns at once.
        Does nothing if it has ended.

        A box that cannot tell them apart signals all.
        """
        self.terminate()

    def plan_keeping(self, log: str, folder: Path) -> None:  # noqa: B027  # most end with their hub
        """Plan to let the task outlive this process. Its record then has a `keeper`, if it can.

        Args:
            log: Path of its log, to which its output is appended meanwhile.
            folder: Folder for a socket, by which the next process takes the task up.
        """

    def keep(self, output: int) -> None:  # noqa: B027  # as above
        """Let the task outlive this process from now on, if that is planned: its record is kept.

        Args:
            output: Descriptor of the reading end of its output.
        """

    def wake(self) -> None:
        """Continue processes that were stopped by SIGSTOP, because these receive no other
        signal.
        """
        processes.wake(self.pids())

    @abstractmethod
    def terminate(self) -> None:
        """Ask every process to end (SIGTERM) that was not asked before. Returns at once. Does
        nothing if all have ended.
        """

    @abstractmethod
    def kill(self) -> None:
        """End every process, including those forked meanwhile. None is left when it returns, except
        one stuck in the kernel.
        """

    @abstractmethod
    def reap(self) -> Exit:
        """How the task ended. Called once, after `exit_fd` turned readable.

        If it did not end well and processes were killed for lack of memory, that is the reason. An
        engine that watched it may know better.
        """

    @abstractmethod
    def close(self) -> None:
        """Kill what is left, then remove the box completely. May be called twice."""

    @abstractmethod
    def record(self) -> dict[str, object]:
        """What `Isolation.sweep` needs to remove this box from another process, as plain JSON
        values.
        """


NEVER = threading.Event()
"""Nobody sets it: a start that is not stopped."""


def ignore(_: Box) -> None:
    """Take no note of a box."""


class Isolation(ABC):
    """Boxes tasks in.

    An implementation must, in this order:

    1. `start`: create the box with the share's limits, then start the task inside it. No
       instruction of the task runs outside. Both output streams go to `output_fd`. The task leads a
       session of its own and inherits no other descriptor.
    2. On a failure to start, leave nothing behind and raise.
    3. Keep each box apart: closing or killing one does not touch another.
    4. Start a task with a place there, within the limits of that place's cgroups, or refuse it.
       Never start it elsewhere.
    """

    name: str
    waits: bool = False
    """Whether it asks another program to make, change and close its boxes.

    That may block, so an engine does it in other threads. Boxes are then called from any thread,
    one call at a time for each task. Only `kill` may come during any other call.
    """

    @abstractmethod
    def start(
        self,
        launch: Launch,
        share: Share,
        output_fd: int,
        stopped: threading.Event = NEVER,
        made: Callable[[Box], None] = ignore,
    ) -> Box:
        """Start a task in a new box.

        Args:
            stopped: A start that waits for another program to be ready fails as soon as this is
                set. One that waits for an answer ends with that answer.
            made: Called with the box. A task that may outlive this process begins only then: what
                has begun is known to the next one. If it raises, the task is ended.

        Raises:
            IsolationError: The program does not exist or cannot be executed, or the box cannot be
                made. The message says which.
        """

    @abstractmethod
    def describe(self, launch: Launch, share: Share) -> Sequence[str]:
        """What `start` would do, one line for each step, without doing it."""

    def check(self) -> None:  # noqa: B027  # most can always start a task
        """Check that it can start tasks here. May take seconds.

        Raises:
            HeadgateError: It cannot. The message says why.
        """

    @abstractmethod
    def uncontrolled(self) -> tuple[Uncontrolled, ...]:
        """Levers that are missing on this machine, with cause and cure; empty if all exist."""

    def take_up(self, record: Mapping[str, object]) -> tuple[Box, int, int]:
        """Take up a task that outlived the process which started it.

        Args:
            record: Its `Box.record`.

        Returns:
            Its box, a descriptor of its output, and the bytes of output that are in its log without
            having been read.

        Raises:
            IsolationError: It is gone, and how it ended is not known.
        """
        raise IsolationError(f"isolation {self.name!r} cannot take up tasks")

    @abstractmethod
    def sweep(self, record: Mapping[str, object]) -> None:
        """Kill and remove the box of a process that is gone, from its `Box.record`.

        Does nothing if nothing is left. Never touches a process that merely has a recycled process
        id.
        """

    def release(self, record: Mapping[str, object]) -> None:  # noqa: B027  # most hold nothing
        """Let a held task of a process that is gone run on, from its `Box.record`."""
