"""The engine's end of the task channel without an engine, for tests of code that runs in a task."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from headgate.testing import wait


class ChannelListener:
    """Listens on a real Unix socket, keeps every message of the task that connects, and sends
    messages for the test.

    Args:
        folder: Folder of the socket and the task's checkpoints.
        welcome: Sent after the task's hello; None: no welcome.
    """

    def __init__(self, folder: Path, welcome: Mapping[str, Any] | None = None) -> None:
        self.path = folder / "channel"
        self.checkpoints = folder / "checkpoints"
        self.messages: list[dict[str, Any]] = []
        self._welcome = welcome
        self._connection: socket.socket | None = None
        self._closing = False
        self._changed = threading.Condition()
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(str(self.path))
        self._server.listen(1)
        self._thread = threading.Thread(target=self._serve, name="channel-listener", daemon=True)
        self._thread.start()

    def __enter__(self) -> ChannelListener:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a task that connects here."""
        return {
            "HEADGATE_CHANNEL": f"unix:{self.path}",
            "HEADGATE_TASK": "run/job/worker-0",
            "HEADGATE_KEY": "secret",
            "HEADGATE_CHECKPOINTS": str(self.checkpoints),
            "HEADGATE_MODE": "run",
            **more,
        }

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The messages of that type so far."""
        with self._changed:
            return [message for message in self.messages if message.get("type") == kind]

    def wait_for(self, kind: str, count: int = 1, seconds: float = 30.0) -> list[dict[str, Any]]:
        """The messages of that type, once there are at least `count`.

        Raises:
            TimeoutError: There are fewer after `seconds`.
        """
        wait.until(lambda: len(self.of(kind)) >= count, seconds, f"message {count} of type {kind}")
        return self.of(kind)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message to the task, which has to be connected."""
        if self._connection is None:
            raise ConnectionError("no task is connected")
        self._connection.sendall((json.dumps(message) + "\n").encode())

    def hang_up(self) -> None:
        """Close the connection, like a hub that dies."""
        if self._connection is not None:
            self._connection.shutdown(socket.SHUT_RDWR)

    def finish(self, seconds: float = 60.0) -> None:
        """Wait until the task has hung up and all its messages were read.

        Raises:
            TimeoutError: It is still connected after `seconds`.
        """
        self._thread.join(seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the task has not hung up within {seconds:g} s")

    def close(self) -> None:
        """Hang up and stop listening."""
        self._closing = True
        try:
            self._server.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        try:
            self.hang_up()
        except OSError:
            pass
        self._thread.join(10)
        self._server.close()
        if self._connection is not None:
            self._connection.close()

    def _serve(self) -> None:
        try:
            self._connection, _ = self._server.accept()
        except OSError:
            return
        if self._closing:
            return
        with self._connection.makefile("rb") as lines:
            try:
                for line in lines:
                    message = json.loads(line)
                    with self._changed:
                        self.messages.append(message)
                    if message["type"] == "hello" and self._welcome is not None:
                        with suppress(BrokenPipeError):  # it has ended; the rest is there yet
                            self.send({"type": "welcome", "v": 1, **self._welcome})
            except OSError:
                return
