"""The arbiter's socket: accepts connections, and bounds what a flood of them costs."""

from __future__ import annotations

import asyncio
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from headgate.machine import arbiter_socket

MOST_OF_USER, MOST_IN_ALL = 16, 1_000
"""Most connections of a user, and of all."""
_AT_ONCE, _PER_SECOND = 50.0, 10.0
"""Connections that a user may begin at once, and from then on."""
_IN_A_ROW = 200
_REST = 9.0
"""After refusals nobody is accepted for so many times the CPU time that they took: a tenth of a
core at most.
"""
_TOO_MANY = b'{"error": "too many connections; close some"}\n'


class PacedListener:
    """Accepts connections.

    Args:
        welcome: Takes a connection that is within the bounds, and its peer. `left` gives it back.
    """

    def __init__(self, welcome: Callable[[socket.socket, arbiter_socket.Peer], None]) -> None:
        self._welcome = welcome
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._of_users = Counter[int]()
        # when each user's connections so far are paid for
        self._paid_at: defaultdict[int, float] = defaultdict(float)
        self._loop = asyncio.get_running_loop()
        self._resumes: asyncio.TimerHandle | None = None

    def open(self, path: Path) -> None:
        """Listen; everybody may connect.

        Raises:
            OSError: The socket cannot be made.
        """
        with suppress(FileNotFoundError):
            path.unlink()
        self._socket.bind(str(path))
        path.chmod(0o666)
        self._socket.listen(MOST_IN_ALL)
        self._resume()

    def left(self, uid: int) -> None:
        """A connection was closed."""
        self._of_users[uid] -= 1

    def close(self) -> None:
        """Accept nobody any more."""
        self._pause()
        if self._resumes is not None:
            self._resumes.cancel()
        self._socket.close()

    def _resume(self) -> None:
        self._loop.add_reader(self._socket, self._accept)

    def _pause(self) -> None:
        self._loop.remove_reader(self._socket)

    def _accept(self) -> None:
        began, refused = time.thread_time(), False
        for _ in range(_IN_A_ROW):
            try:
                connection, _address = self._socket.accept()
            except OSError:  # nobody waits, or there are no more file descriptors
                break
            peer = arbiter_socket.peer(connection)
            if self._may(peer.uid):
                self._of_users[peer.uid] += 1
                connection.setblocking(False)
                self._welcome(connection, peer)
            else:
                refused = True
                with suppress(OSError):
                    connection.send(_TOO_MANY, socket.MSG_DONTWAIT)
                connection.close()
        if refused:
            self._pause()
            rest = _REST * (time.thread_time() - began)
            self._resumes = self._loop.call_later(rest, self._resume)

    def _may(self, uid: int) -> bool:
        if self._of_users[uid] >= MOST_OF_USER or self._of_users.total() >= MOST_IN_ALL:
            return False
        now = time.monotonic()
        paid_at = max(self._paid_at[uid], now - _AT_ONCE / _PER_SECOND) + 1.0 / _PER_SECOND
        if uid and paid_at > now:  # root can do worse than connect
            return False
        self._paid_at[uid] = paid_at
        return True
