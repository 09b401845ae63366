"""The engine's end of the task channel (docs/channel.md): JSON lines over a Unix socket."""

from __future__ import annotations

import hmac
import json
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headgate.model.identifiers import TaskId

LINE_BYTES = 4 * 2**20
"""Longest message that is accepted from a task."""
_HELLO_BYTES = 2**16
_LINE_SHOWN = 80

HELLO_SECONDS = 30.0
"""Time for a connection to say hello."""

MESSAGES_A_SECOND = 500
"""Most messages a second that are accepted from one connection. The library sends about ten."""

BURST_MESSAGES = 10 * MESSAGES_A_SECOND
"""Most messages that are accepted at once from a connection that was quiet."""

MESSAGE_BYTES = 2048
"""Bytes of a long message that count as another message."""


def listen(path: Path) -> socket.socket:
    """A listening socket at `path`, which only its user can connect to. It replaces one left by a
    dead process.
    """
    path.unlink(missing_ok=True)
    server = socket.socket(
        socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
    )
    server.bind(str(path))
    os.chmod(path, 0o600)
    server.listen(64)
    return server


class Connection:
    """One task's connection. It is not trusted before it said hello with the task's key.

    Args:
        peer: The connected socket.
        key_of: Returns the key of a running task; None for any other.
    """

    def __init__(self, peer: socket.socket, key_of: Callable[[TaskId], str | None]) -> None:
        peer.setblocking(False)
        self._peer = peer
        self._key_of = key_of
        self._buffer = b""
        self._unsent = b""
        self._credit = float(BURST_MESSAGES)
        self._credited = self.since = time.monotonic()
        self.task: TaskId | None = None
        self.pid = 0
        """Process id in the hello; 0 if not given."""
        self.observes = False
        """Whether its script does not know of it, and is stopped as if there was none."""
        self.over = False
        """Whether the task has closed its end, as noticed by sending."""
        self.is_endless = False
        """Whether it was refused for a line that is too long."""

    def fileno(self) -> int:
        return self._peer.fileno()

    def receive(self) -> list[dict[str, Any]] | None:
        """Read messages, hello first. None once the connection is over or was refused.

        A line that is no message is returned as one of type `unreadable`.

        Raises:
            BlockingIOError: Nothing has arrived.
        """
        try:
            data = self._peer.recv(1 << 16)
        except BlockingIOError:
            raise
        except OSError:
            return None
        if not data:
            return None
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        self._credit -= len(lines) + len(data) / MESSAGE_BYTES
        if len(self._buffer) > (LINE_BYTES if self.task is not None or lines else _HELLO_BYTES):
            self.is_endless = True
            return None
        messages = []
        for line in lines:
            message = _read(line)
            if self.task is None and not self._admit(message):
                return None
            messages.append(message)
        return messages

    def resumes_in(self, now: float) -> float:
        """Seconds from `now` on until more may be read; 0: at once. The pause lets the hub handle
        what was read.
        """
        earned = (now - self._credited) * MESSAGES_A_SECOND
        self._credit, self._credited = min(self._credit + earned, BURST_MESSAGES), now
        return max(-self._credit / MESSAGES_A_SECOND, 0.0)

    def _admit(self, hello: Mapping[str, Any]) -> bool:
        task = TaskId(first_task) if isinstance(first_task := hello.get("task"), str) else None
        key = self._key_of(task) if task is not None and hello.get("type") == "hello" else None
        if key is None or not hmac.compare_digest(key.encode(), _bytes(hello.get("key"))):
            return False
        self.task = task
        self.pid = pid if isinstance(pid := hello.get("pid"), int) else 0
        self.observes = hello.get("observes") is True
        return True

    def send(self, message: Mapping[str, object]) -> bool:
        """Send a message. Returns False if the task does not read or is gone."""
        data = json.dumps(message).encode() + b"\n"
        try:
            if self._unsent:
                self._unsent = self._unsent[self._peer.send(self._unsent) :]
            if self._unsent:
                return False
            # A begun message is finished before the next one, so that a slow reader never sees a
            # torn line.
            self._unsent = data[self._peer.send(data) :]
        except ConnectionError:
            self.over = True
            return False
        except OSError:
            return False
        return not self._unsent

    def hung_up(self) -> bool:
        """Whether the task has closed its end, or died, even if data are still unread."""
        ended = select.poll()
        ended.register(self._peer, select.POLLRDHUP)
        return bool(ended.poll(0))

    def close(self) -> None:
        self._peer.close()


def _read(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    return (
        message
        if isinstance(message, dict)
        else {"type": "unreadable", "line": repr(line[:_LINE_SHOWN])}
    )


def _bytes(key: object) -> bytes:
    # JSON can spell half of a surrogate pair, which UTF-8 cannot encode.
    return str(key).encode("utf-8", "surrogatepass")
