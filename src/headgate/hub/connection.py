"""A connection to a hub: one JSON object on each line, in both directions."""

from __future__ import annotations

import json
import select
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import headgate
from headgate.config import settings
from headgate.hub.standard_input import StandardInput, offered
from headgate.model.errors import (
    HeadgateError,
    HubError,
    IsolationError,
    NotFoundError,
    StorageError,
    UsageError,
)
from headgate.recorded import runs

ANSWER_SECONDS = 60.0
TAKE_IN_SECONDS = 300.0
"""Most seconds for submitting a run, which may first start an engine."""


_KINDS: Mapping[int, type[HeadgateError]] = {
    kind.exit_code: kind
    for kind in (UsageError, StorageError, NotFoundError, HubError, IsolationError)
}


class HubGoneError(HubError):
    """The hub closed the connection: it died, or it was ending."""


class HubConnection:
    """A connection to the hub of `HEADGATE_HOME`.

    Raises:
        HubError: The hub does not answer, or has another version.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""
        self._poll = select.poll()  # `select` takes no descriptor above 1023
        self._poll.register(connection, select.POLLIN)
        hello = self.ask("hello")
        self.pid = int(hello["pid"])
        if hello["headgate"] != headgate.__version__:
            raise HubError(
                f"a hub of Headgate {hello['headgate']} is running (process {hello['pid']}), "
                f"this is {headgate.__version__}; it ends a minute after its last job, or when "
                "you stop that process"
            )

    def __enter__(self) -> HubConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; submitted jobs go on."""
        self._socket.close()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, op: str, **request: object) -> None:
        """Send a request without waiting for its answer."""
        try:
            self._socket.sendall(json.dumps({"op": op, **request}).encode() + b"\n")
        except OSError as error:
            raise HubGoneError(f"the hub is gone: {error.strerror}") from error

    def submit(
        self,
        submission: object,
        policy: str | None,
        attach: bool,
        given: StandardInput | None = None,
    ) -> dict[str, Any]:
        """Submit a run as plain JSON values. Returns its id and folder.

        Args:
            given: Standard input of its only task; None: nothing.

        Raises:
            HeadgateError: As `ask`.
        """
        request = {
            "submission": submission,
            "policy": policy,
            "usual_policy": settings.usual_policy(),
            "attach": attach,
        }
        if given is None:
            return self.ask("submit", patience=TAKE_IN_SECONDS, **request)
        with offered(given) as path:
            return self.ask("submit", patience=TAKE_IN_SECONDS, **request, stdin=path)

    def ask(
        self, op: str, *, patience: float = ANSWER_SECONDS, **request: object
    ) -> dict[str, Any]:
        """Send a request and wait up to `patience` seconds for its answer. The connection must not
        be attached to a run with messages under way.

        Raises:
            HeadgateError: The hub's own error, with its exit code.
            HubError: The hub is gone or does not answer.
        """
        self.send(op, **request)
        answer = self.receive(patience)
        if answer is None:
            raise HubError(f"the hub did not answer within {patience:g} s")
        if "error" in answer:
            code = int(answer["exit_code"])
            error = _KINDS.get(code, HeadgateError)(answer["error"])
            error.exit_code = code
            raise error
        return answer

    def receive(self, timeout: float | None = None) -> dict[str, Any] | None:
        """The next message; None after `timeout` seconds without one.

        Raises:
            HubGoneError: The hub is gone.
        """
        deadline = time.monotonic() + timeout if timeout is not None else None
        while b"\n" not in self._buffer:
            left = max(deadline - time.monotonic(), 0.0) * 1000 if deadline is not None else None
            if not self._poll.poll(left):
                return None
            try:
                data = self._socket.recv(1 << 16)
            except OSError:
                data = b""
            if not data:
                raise HubGoneError("the hub died; `headgate status` says what became of its jobs")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        message = json.loads(line)
        return message if isinstance(message, dict) else {}

    def follow(self, timeout: float) -> Iterator[dict[str, Any] | None]:
        """Messages of the attached run until its report is written; None after each `timeout`
        seconds of silence.
        """
        while True:
            message = self.receive(timeout)
            yield message
            # An unexpected answer may be an error: a Ctrl-C after the end has nothing to stop.
            if message is not None and message.get("type") == "reported":
                return


def connect(folder: Path | None = None) -> HubConnection | None:
    """Connect to the running hub of a folder (None: of this process); None: no hub runs.

    Raises:
        HubError: A hub runs but does not answer.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        connection.connect(str(runs.sockets(folder) / "hub.sock"))
        return HubConnection(connection)
    except (FileNotFoundError, ConnectionRefusedError, HubGoneError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
