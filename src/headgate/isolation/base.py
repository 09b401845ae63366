"""The contract of an isolation: what a task is boxed in."""

from __future__ import annotations

import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.isolation.process_attributes import Attributes
from headgate.machine import processes
from headgate.model.cluster import Place
from headgate.model.errors import IsolationError
from headgate.model.events import Exit
from headgate.model.identifiers import TaskId
from headgate.model.mounts import Mount
from headgate.model.shares import Share, Uncontrolled

HOST_IMAGE = "host"
"""Image that no registry has: what this machine itself has installed."""
WHILE_RUNNING = "of a task that runs"
"""Scope of what can only be set as a task starts."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Exactly what is started: `headgate run --dry-run` prints it.

    Args:
        task: Id of the task.
        argv: Program and arguments; no shell is put around it.
        env: The whole environment.
        cwd: Folder to start in; exists.
        threads: Compute threads that the environment asks for.
        place: Where on this machine it runs; None: on the machine as it is.
        isolation: What it is boxed in, as `Isolation.name`; empty: what its engine boxes in by
            itself.
        image: What a container is made of: an image that is on this machine, or `HOST_IMAGE`.
        runtime: What a container is run with, as its daemon calls it; None: the daemon's default.
        daemon: Where the daemon listens that runs the container; empty: as the process that starts
            it is told.
        reads: Files and folders that it has to see, where not all of this machine's are seen.
        writes: Those that it has to write as well; so is its folder.
        mounts: What its user named besides: it is not started where one is not there.
        keeps: Folder for copies of what a container would take along with it; empty: nothing is
            copied.
        gpus: Numbers of the GPUs that it may see; None: all.
        stop_signal: What asks it to end, where its library does not.
        attributes: What its process has of umask, nice value and limits; None: what whoever starts
            it was started with.
        stdin: Descriptor, of the process that starts it, that it reads as its standard input; None:
            it has none. Isolations that start processes of this machine can give it one.
        tty: Whether its output is a pseudo-terminal, which its engine opens.
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


class Box(ABC):
    """One running task and all its descendants, boxed in."""

    task: TaskId
    pid: int
    """Process id of the task's first process, as the hub sees it."""

    @property
    @abstractmethod
    def exit_fd(self) -> int:
        """A file descriptor that turns readable once the first process has ended; owned by the
        box.
        """

    @property
    @abstractmethod
    def cgroups(self) -> Mapping[str, Path]:
        """Folder of the task's cgroup by controller (`cpu`, `cpuacct`, `memory`, `blkio`, ...,
        `unified` for a cgroup2 folder); empty where there is none. Samplers read them.
        """

    @abstractmethod
    def pids(self) -> list[int]:
        """Every living process of the task, descendants included, daemons too."""

    @abstractmethod
    def apply(self, share: Share) -> tuple[Uncontrolled, ...]:
        """Change the limits while the task runs; fields that are None stay as they are. Takes
        effect within half a second.

        Returns:
            Each field that cannot be applied here, and what stands in for it. Empty when all was
            applied. For each task, an engine tells of each lever only once.

        Raises:
            IsolationError: The kernel refused a field that can be applied here. The other fields
                are applied all the same. Never raised for a task that has ended meanwhile.
        """

    @abstractmethod
    def pin(self, cpus: frozenset[int] | None) -> tuple[Uncontrolled, ...]:
        """Let the task run on these cores only, at once and while it runs.

        Args:
            cpus: Numbers as the kernel counts them; None: all cores.

        Returns:
            As `apply`.

        Raises:
            IsolationError: The task may use none of these cores here. Never raised for a task that
                has ended meanwhile.
        """

    def kills(self) -> int:
        """How many of its processes the kernel has killed so far because memory ran out; 0 where
        nobody counts them. Read often.
        """
        return 0

    def shortage(self) -> str:
        """Which memory ran out: `over its memory limit of 64 MiB`, for example, or that of this
        machine.
        """
        return ""

    def hold(self) -> bool:
        """Stop every process of the task where it stands, until `release`; takes some milliseconds.
        May be called from any thread.

        Returns:
            Whether it is held. A task that has ended, or that was asked to end, is not.

        Raises:
            IsolationError: It cannot be held here, or not in time. It runs on.
        """
        raise IsolationError(
            f"{self.task}: what it is boxed in cannot hold a task; leave out the proof"
        )

    def release(self) -> None:  # noqa: B027  # most hold nothing
        """Let the task run on; does nothing when it is not held. May be called from any thread.
        Whatever ends a task does so too: what is held hears no signal.
        """

    def ask(self, number: int) -> None:
        """Ask the task's main process to end, by a signal, and none of its helpers. Returns at
        once. Does nothing when it has ended. A box that cannot tell them apart asks all.
        """
        self.terminate()

    def wake(self) -> None:
        """Let those of its processes run on that somebody stopped (SIGSTOP): else they hear of
        nothing.
        """
        processes.wake(self.pids())

    @abstractmethod
    def terminate(self) -> None:
        """Ask every process to end (SIGTERM) that was not asked before; returns at once; does
        nothing when all have ended.
        """

    @abstractmethod
    def kill(self) -> None:
        """End every process, those forked meanwhile too. None is left when it returns, except one
        stuck in the kernel.
        """

    @abstractmethod
    def reap(self) -> Exit:
        """How the task ended. Called once, after `exit_fd` turned readable. Where processes of it
        were killed for want of memory and it did not end well, that is the reason: whoever watched
        it knows better whether it is.
        """

    @abstractmethod
    def close(self) -> None:
        """Kill what is left, then remove the box: nothing of it stays on the machine. May be called
        twice.
        """

    @abstractmethod
    def record(self) -> dict[str, object]:
        """What `Isolation.sweep` needs to remove this box from another process, as plain JSON
        values.
        """


class Isolation(ABC):
    """How tasks are boxed in.

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
    """Whether it asks another program to make, change and close its boxes. That may take a while,
    so an engine does it beside its other work. Boxes are then called from any thread, one call at a
    time for each task. Only `kill` may come during any other call.
    """

    @abstractmethod
    def start(self, launch: Launch, share: Share, output_fd: int) -> Box:
        """Start a task in a new box.

        Raises:
            IsolationError: The program does not exist or cannot be executed, or the box cannot be
                made. The message says which.
        """

    def start_unless(
        self, stopped: threading.Event, launch: Launch, share: Share, output_fd: int
    ) -> Box:
        """As `start`, for a task that may be stopped meanwhile. A start that waits for another
        program to be there fails as soon as `stopped` is set. A start that waits for an answer ends
        with that answer.
        """
        return self.start(launch, share, output_fd)

    @abstractmethod
    def describe(self, launch: Launch, share: Share) -> Sequence[str]:
        """What `start` would do, a line each, without doing it."""

    def check(self) -> None:  # noqa: B027  # most can always start a task
        """Find out whether it can start tasks here at all; may take seconds.

        Raises:
            HeadgateError: It cannot, and why.
        """

    @abstractmethod
    def uncontrolled(self) -> tuple[Uncontrolled, ...]:
        """What cannot be had on this machine, with its cause and its cure; empty when all can."""

    @abstractmethod
    def sweep(self, record: Mapping[str, object]) -> None:
        """Kill and remove a box of a process that is gone, from its `Box.record`. Does nothing when
        there is nothing left, and never touches a process that merely has a recycled process id.
        """

    def release(self, record: Mapping[str, object]) -> None:  # noqa: B027  # most hold nothing
        """Let a task of a process that is gone run on, if it was held, from its `Box.record`."""
