"""The hub's side of a task's keeper (`keeper.py`)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.isolation.keeper import READ_BYTES
from headgate.machine import processes
from headgate.model.errors import IsolationError

_ANSWER_SECONDS = 10.0
_LOOK_SECONDS = 0.02


@dataclass(frozen=True, slots=True)
class End:
    """How a task's first process ended.

    Args:
        status: Its exit status; a negative signal number.
        cpu_seconds: CPU time of it and of the descendants that it waited for.
        largest_kib: Peak memory of the largest of these.
    """

    status: int
    cpu_seconds: float
    largest_kib: int

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> End:
        return cls(values["status"], values["cpu_seconds"], values["largest_kib"])


class KeptProcess:
    """A task's first process, whose parent is its keeper.

    Args:
        pid: Its process id.
        exit_fd: A descriptor that turns readable at its end; owned from now on.
        channel: The socket to its keeper; None: the keeper is gone.
        floor_kib: Peak memory with which it began.
        keeper: The keeper's process, if this process started it.
    """

    def __init__(
        self,
        pid: int,
        exit_fd: int,
        channel: socket.socket | None,
        floor_kib: int,
        keeper: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.pid = pid
        self.exit_fd = exit_fd
        self.floor_kib = floor_kib
        self._channel = channel
        self._keeper = keeper
        self._end: End | None = None
        self._kept: dict[str, object] = {}

    @classmethod
    def taken_up(cls, record: Mapping[str, Any]) -> tuple[KeptProcess, int, int]:
        """The process of a hub that is gone, from `record` of its box.

        Returns:
            The process, a descriptor of its output, and how many bytes of output the keeper
            appended to the log. A process that has ended is known by its exit status.

        Raises:
            IsolationError: It is gone, and how it ended is not known.
        """
        kept, pid = record["keeper"], record["pid"]
        end_path = Path(kept["places"]["end"])
        channel = _connected(kept)
        message, output = _received(channel) if channel is not None else ({}, None)
        if (end := message.get("end") or _written(end_path)) is not None:
            exit_fd = os.eventfd(1, os.EFD_CLOEXEC)
        else:
            exit_fd = _pidfd(pid, record["started"])
        process = cls(pid, exit_fd, channel, kept["floor"])
        process._kept = kept
        process._end = End.read(end) if end is not None else None
        appended = message.get("appended") or (end or {}).get("appended", 0)
        if output is None:
            output, writes = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            os.close(writes)
        return process, output, appended

    @property
    def kept(self) -> Mapping[str, object]:
        """What the next hub needs to take it up; empty: it ends with this hub."""
        return self._kept

    def plan(self, log: str, folder: Path) -> None:
        """Plan to have its output appended to a log, and its end written beside that, once this
        process is gone.

        Args:
            log: Path of the log.
            folder: Folder for the keeper's socket.
        """
        if self._keeper is None or (started := processes.look(self._keeper.pid)) is None:
            return
        number = self._keeper.pid
        end, socket_path = f"{log}.{number}.end", str(folder / f"{number}.keeper")
        places = {"log": log, "end": end, "socket": socket_path}
        self._kept = {
            "pid": number,
            "started": started.started,
            "places": places,
            "floor": self.floor_kib,
        }

    def keep(self, output: int) -> None:
        """Let it outlive this process from now on, if that is planned.

        Args:
            output: Descriptor of the reading end of its output.
        """
        if self._channel is not None and self._kept:
            message = json.dumps({"op": "keep", "places": self._kept["places"]}).encode()
            with contextlib.suppress(OSError):  # the keeper is gone
                socket.send_fds(self._channel, [message], [output])

    def end(self) -> End | None:
        """How it ended, once `exit_fd` is readable; None: its keeper is gone, and did not tell."""
        if self._end is None and self._channel is not None:
            self._channel.settimeout(_ANSWER_SECONDS)
            with contextlib.suppress(OSError, ValueError):
                self._end = End.read(json.loads(self._channel.recv(READ_BYTES)))
        written = _written(_place(self._kept)) if self._kept and self._end is None else None
        if written is not None:
            self._end = End.read(written)
        return self._end

    def close(self) -> None:
        """Dismiss the keeper."""
        if self._channel is not None:
            with contextlib.suppress(OSError):
                self._channel.send(b'{"op": "bye"}')
            self._channel.close()
        if self._keeper is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._keeper.wait(_ANSWER_SECONDS)
        os.close(self.exit_fd)


def _place(kept: Mapping[str, Any]) -> Path:
    return Path(kept["places"]["end"])


def _written(path: Path) -> dict[str, Any] | None:
    try:
        values: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return values


def _connected(kept: Mapping[str, Any]) -> socket.socket | None:
    """A connection to a keeper, which listens once it has noticed the end of its hub; None: it is
    gone.
    """
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            channel.connect(kept["places"]["socket"])
        except OSError:
            channel.close()
        else:
            channel.settimeout(_ANSWER_SECONDS)
            return channel
        keeper = processes.look(kept["pid"])
        if keeper is None or keeper.started != kept["started"]:
            return None
        time.sleep(_LOOK_SECONDS)
    return None


def _received(channel: socket.socket) -> tuple[dict[str, Any], int | None]:
    try:
        data, descriptors, _, _ = socket.recv_fds(channel, READ_BYTES, 1)
        message: dict[str, Any] = json.loads(data)
    except (OSError, ValueError):
        return {}, None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
        os.set_blocking(descriptor, False)
    return message, descriptors[0] if descriptors else None


def _pidfd(pid: int, started: object) -> int:
    """A pidfd of a process that is still the same.

    Raises:
        IsolationError: It is gone, even if its number is in use again.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        fd = -1
    process = processes.look(pid)
    if fd < 0 or process is None or process.started != started:
        if fd >= 0:
            os.close(fd)
        raise IsolationError(f"process {pid} is gone, and how it ended was not told")
    return fd
