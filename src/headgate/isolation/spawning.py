"""Starts a task's first process, held back until its box is ready."""

from __future__ import annotations

import errno
import marshal
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress

from headgate.isolation import launcher
from headgate.isolation.base import Launch
from headgate.isolation.keeper import READ_BYTES
from headgate.isolation.kept import KeptProcess
from headgate.isolation.process_attributes import Attributes
from headgate.model.errors import IsolationError


def find_program(launch: Launch) -> str:
    """Path of the program that `launch` names, found as a shell would in its folder and on its
    PATH.

    Raises:
        IsolationError: There is none, or it may not be executed.
    """
    if not launch.argv or not launch.argv[0]:
        raise IsolationError(
            f"{launch.task}: no program was named; expected at least one word in its command"
        )
    if not os.path.isdir(launch.cwd):
        raise IsolationError(
            f"{launch.task}: its folder {launch.cwd!r} does not exist; create it or name another"
        )
    name = launch.argv[0]
    if os.sep in name:
        candidates = [os.path.join(launch.cwd, name)]
    else:
        path = launch.env.get("PATH", os.defpath)
        candidates = [os.path.join(launch.cwd, folder, name) for folder in path.split(os.pathsep)]
    files = [candidate for candidate in candidates if os.path.isfile(candidate)]
    for file in files:
        if os.access(file, os.X_OK):
            return file
    if files:
        raise IsolationError(
            f"{launch.task}: {files[0]} may not be executed; try: chmod +x {files[0]}"
        )
    if os.sep in name:
        problem = "is a folder" if os.path.isdir(candidates[0]) else "does not exist"
        raise IsolationError(
            f"{launch.task}: the program {candidates[0]} {problem}; expected an executable file"
        )
    raise IsolationError(
        f"{launch.task}: no program {name!r} on its PATH ({path}); install it or give its full path"
    )


OWN = Attributes.of_this_process()
"""The attributes with which this process was started, before it raised its limit of open files."""


class Spawned:
    """A process that waits to become a task. It leads its own session and has only its three
    streams open.

    Its parent is its keeper. The caller that releases it owns `process`.
    """

    def __init__(self, launch: Launch, output_fd: int) -> None:
        """Start the process.

        Raises:
            IsolationError: The process cannot be started.
        """
        self._launch = launch
        self._channel, theirs = socket.socketpair()
        self._keeper_channel, keepers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, keepers:
                fds = (theirs.fileno(), keepers.fileno())
                keeper = subprocess.Popen(
                    [
                        sys.executable,
                        "-I",
                        "-S",
                        launcher.__file__,
                        *map(str, fds),
                        str(int(launch.outlives)),
                    ],
                    stdin=subprocess.DEVNULL if launch.stdin is None else launch.stdin,
                    stdout=output_fd,
                    stderr=output_fd,
                    cwd=launch.cwd,
                    close_fds=True,
                    pass_fds=fds,
                    start_new_session=True,
                )
        except OSError as error:
            self._channel.close()
            self._keeper_channel.close()
            raise IsolationError(f"{launch.task}: no process can be started: {error}") from error
        try:
            self.pid, floor = map(int, self._keeper_channel.recv(READ_BYTES).split())
            exit_fd = os.pidfd_open(self.pid)
        except (OSError, ValueError) as error:
            self._channel.close()
            self._keeper_channel.close()
            status = keeper.wait()
            why = f"its end cannot be waited for: {error}"
            if isinstance(error, ValueError):  # it told nothing: it was killed
                why = _ended_before(status)
            raise IsolationError(f"{launch.task}: {why}") from error
        self.process = KeptProcess(self.pid, exit_fd, self._keeper_channel, floor, keeper)

    def release(self, program: str) -> None:
        """Let it become the task. Returns when it has.

        Raises:
            IsolationError: The program could not be executed. The process is gone.
        """
        launch = self._launch
        with self._channel as channel:
            try:
                channel.sendall(marshal.dumps(order(program, launch)))
                channel.shutdown(socket.SHUT_WR)
                answer = b""
                while part := channel.recv(4096):
                    answer += part
            except OSError:  # it died: the answer stays short
                answer = b""
        if answer == launcher.BEGINS:
            return
        end = self.process.end()
        status = end.status if end is not None else 0
        if answer.startswith(launcher.REFUSED):
            raise IsolationError(f"{launch.task}: {_why_not_there(launch, answer)}")
        if not answer:
            raise IsolationError(f"{launch.task}: {_ended_before(status)}")
        raise IsolationError(f"{launch.task}: {_why_not(program, int(answer[1:]))}")

    def abort(self) -> None:
        """End the waiting process if it exists. It will not become a task."""
        self._channel.close()
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.process.exit_fd, signal.SIGKILL)
        self.process.close()


_Attributes = tuple[int, int, list[tuple[int, int, int]]]
Order = tuple[
    bytes, list[bytes], dict[bytes, bytes], _Attributes, tuple[bytes, bytes, bytes] | None
]


def order(program: str, launch: Launch) -> Order:
    """The order as bytes, because the launcher may have another locale and so encode text
    differently.
    """
    env = {os.fsencode(name): os.fsencode(value) for name, value in launch.env.items()}
    place_order = None
    if (place := launch.place) is not None:
        place_order = (
            os.fsencode(place.namespace),
            os.fsencode(place.hostname),
            os.fsencode(place.hosts),
        )
    attributes = (launch.attributes or OWN).order(OWN)
    return (
        os.fsencode(program),
        [os.fsencode(word) for word in launch.argv],
        env,
        attributes,
        place_order,
    )


def _ended_before(status: int) -> str:
    how = f"signal {-status}" if status < 0 else f"status {status}"
    return f"its process ended with {how} before the program began"


def _why_not_there(launch: Launch, answer: bytes) -> str:
    number, _, tried = answer.removeprefix(launcher.REFUSED).decode(errors="replace").partition(" ")
    name = launch.place.hostname if launch.place is not None else ""
    match int(number):
        case errno.EPERM:
            cure = "tasks of a lab run as root only"
        case errno.ENOENT | errno.EINVAL:
            cure = "is the lab down? bring it up again: headgate lab up FILE"
        case _:
            cure = "look at the node: headgate lab status"
    return f"node {name!r} cannot be entered: {tried}: {os.strerror(int(number))}; {cure}"


def _why_not(program: str, number: int) -> str:
    if number == errno.ENOENT:
        return (
            f"{program} cannot be executed: the interpreter named in its first line does not exist"
        )
    if number == errno.ENOEXEC:
        return (
            f"{program} cannot be executed: it is neither a program of this machine nor "
            "begins with a #! line"
        )
    return f"{program} cannot be executed: {os.strerror(number)}"
