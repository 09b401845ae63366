"""The connections to an engine's task channel, driven by the engine's one thread."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from headgate.engines.base import Listener
from headgate.engines.channel import (
    HELLO_SECONDS,
    LINE_BYTES,
    MESSAGES_A_SECOND,
    Connection,
    listen,
)
from headgate.model.identifiers import TaskId
from headgate.model.reasons import Reason, ReasonKind

ACCEPT_PAUSE_SECONDS = 1.0
"""Pause after the process has run out of descriptors or memory for new connections."""

_DRAIN_ACCEPTS = 64
MOST_STRANGERS = 64
"""Most connections that have not said hello. If there are more, the oldest is closed."""


class Connections:
    """Accepts connections of tasks, and reads their messages no faster than the engine can handle
    them.

    A task that sends more finds its socket full. It waits, or drops what can be missed. Other tasks
    are not affected.

    Args:
        path: Path of the channel's socket. Only this user may be able to enter its folder.
        selector: The selector of the engine's thread. The data of each entry is the function to
            call.
        key_of: Returns the key of a running task; None for any other.
        greeted: Called when a task has said hello, before its other messages.
        on_message: Called with the messages of tasks.
        listener: Gets warnings about workarounds.
    """

    def __init__(
        self,
        path: Path,
        selector: selectors.BaseSelector,
        key_of: Callable[[TaskId], str | None],
        greeted: Callable[[TaskId, Connection], None],
        on_message: Callable[[TaskId, Mapping[str, object]], None],
        listener: Listener,
    ) -> None:
        self._path = path
        self._selector = selector
        self._key_of = key_of
        self._greeted = greeted
        self._said = on_message
        self._listener = listener
        self._server = listen(path)
        self._number = path.stat().st_ino
        self._open: set[Connection] = set()
        self._of: dict[TaskId, Connection] = {}
        self._paused: dict[Connection, float] = {}  # until when nothing is read from it
        self._flooding: set[TaskId] = set()
        self._accepts_again: float | None = None
        self._crowded = False
        self._missing = False  # its socket, and it cannot be made again
        self._strangers: dict[Connection, None] = {}  # that have not said hello, the oldest first
        self._swarmed = False
        selector.register(self._server, selectors.EVENT_READ, self._accept)

    def keep(self) -> None:
        """Make the channel's socket again if it was removed, so that new tasks can connect.
        Existing connections stay.
        """
        with suppress(OSError):
            if self._path.stat().st_ino == self._number:
                return
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            server = listen(self._path)
            self._number = self._path.stat().st_ino
        except OSError as error:
            if not self._missing:
                self._missing = True
                facts = {"path": str(self._path), "error": error.strerror}
                self._listener.warned(None, Reason(ReasonKind.SOCKET_GONE, facts))
            return
        self._missing = False
        again = Reason.of(ReasonKind.SOCKET_MADE_AGAIN, path=str(self._path))
        self._listener.warned(None, again)
        if self._accepts_again is None:
            self._selector.unregister(self._server)
            self._selector.register(server, selectors.EVENT_READ, self._accept)
        self._server.close()
        self._server = server

    def of(self, task: TaskId) -> Connection | None:
        """The connection of a task; None if it has none."""
        return self._of.get(task)

    def reads_again(self) -> list[float]:
        """The times at which `read_on` has to be called."""
        oldest = next(iter(self._strangers), None)
        hello = [oldest.since + HELLO_SECONDS] if oldest is not None else []
        again = [self._accepts_again] if self._accepts_again is not None else []
        return [*self._paused.values(), *again, *hello]

    def read_on(self, now: float) -> None:
        """Read connections whose pause is over, and close those that have not said hello in
        time.
        """
        for stranger in [
            unknown_connection
            for unknown_connection in self._strangers
            if now >= unknown_connection.since + HELLO_SECONDS
        ]:
            self._disconnect(stranger)
        if self._accepts_again is not None and now >= self._accepts_again:
            self._accepts_again = None
            self._selector.register(self._server, selectors.EVENT_READ, self._accept)
        for connection in [
            paused_connection for paused_connection, until in self._paused.items() if now >= until
        ]:
            del self._paused[connection]
            self._watch(connection)

    def settle(self, task: TaskId) -> None:
        """Read everything that a task sent before it ended, then close its connections."""
        for _ in range(_DRAIN_ACCEPTS):
            try:
                self._accept_one()
            except OSError:
                break
        for connection in list(self._open):
            while connection.task in (None, task) and self._receive(connection):
                pass
            if connection.task == task and connection in self._open:
                self._disconnect(connection)
        self._flooding.discard(task)

    def close(self) -> None:
        for connection in self._open:
            connection.close()
        self._server.close()
        self._path.unlink(missing_ok=True)

    # --- new connections --------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            self._accept_one()
            self._crowded = False
        except (BlockingIOError, ConnectionError):  # it has gone again
            return
        except OSError as error:
            # Out of descriptors or memory: a waiting connection would be announced again and again.
            self._selector.unregister(self._server)
            self._accepts_again = time.monotonic() + ACCEPT_PAUSE_SECONDS
            if not self._crowded:
                self._crowded = True
                cannot = Reason.of(ReasonKind.CANNOT_CONNECT, error=error.strerror)
                self._listener.warned(None, cannot)

    def _accept_one(self) -> None:
        connection = Connection(self._server.accept()[0], self._key_of)
        self._strangers[connection] = None
        if len(self._strangers) > MOST_STRANGERS:
            self._disconnect(next(iter(self._strangers)))
            if not self._swarmed:
                self._swarmed = True
                strangers = Reason.of(ReasonKind.MANY_STRANGERS, most=MOST_STRANGERS)
                self._listener.warned(None, strangers)
        self._open.add(connection)
        self._watch(connection)

    def _watch(self, connection: Connection) -> None:
        self._selector.register(
            connection, selectors.EVENT_READ, lambda: self._readable(connection)
        )

    # --- messages ---------------------------------------------------------------------------------

    def _readable(self, connection: Connection) -> None:
        if not self._receive(connection):
            return
        pause = connection.resumes_in(now := time.monotonic())
        if pause <= 0:
            return
        self._selector.unregister(connection)
        self._paused[connection] = now + pause
        task = connection.task
        if task is not None and task not in self._flooding:
            self._flooding.add(task)
            flood = Reason.of(ReasonKind.MESSAGE_FLOOD, most=MESSAGES_A_SECOND)
            self._listener.warned(task, flood)

    def _receive(self, connection: Connection) -> bool:
        """Read what has arrived. Returns False if it was nothing, or the end."""
        known = connection.task
        try:
            messages = connection.receive()
        except BlockingIOError:
            return False
        task = connection.task
        if connection.is_endless and task is not None:
            too_long = Reason.of(ReasonKind.MESSAGE_TOO_LONG, most_bytes=LINE_BYTES)
            self._listener.warned(task, too_long)
        if messages is None or (task is not None and self._key_of(task) is None):
            self._disconnect(connection)
            return False
        if task is None:
            return True  # it has not said hello yet
        self._strangers.pop(connection, None)
        if known is None:
            first = self._of.get(task)
            if first is None or first.hung_up():
                self._of[task] = connection
                self._greeted(task, connection)
            elif first.pid and connection.pid not in (0, first.pid):
                # a task has one connection that trains; the first stays
                connection.send({"type": "refused", "pid": first.pid})
                self._disconnect(connection)
                return False
        for message in messages:
            self._said(task, message)
        return True

    def _disconnect(self, connection: Connection) -> None:
        if self._paused.pop(connection, None) is None:
            self._selector.unregister(connection)
        self._open.discard(connection)
        self._strangers.pop(connection, None)
        connection.close()
        if connection.task is not None and self._of.get(connection.task) is connection:
            del self._of[connection.task]
