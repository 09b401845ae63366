"""Makes all workers of a job obey the engine at the same step: no worker can do a step that
exchanges gradients alone.

It costs nothing at other steps. Worker 0 obeys the engine for all. When the engine asks for
something, worker 0 halts before its next step and asks the others how many steps they have begun.
Each answers from a thread, and begins no further step until it knows where to obey. No worker gets
more than a step ahead of worker 0, so all can reach the highest of these numbers. There they obey.
"""

from __future__ import annotations

import hmac
import json
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

from headgate.task import Channel, PeerLost
from headgate.task.membership import START_SECONDS, endpoint_of

_ANSWER_SECONDS = 60.0
_LATE = (
    f"not all workers of the job started within {START_SECONDS:g} s; their logs say why: "
    "headgate logs JOB --all"
)


class Agreement:
    """One worker's end.

    Args:
        channel: To the engine; was welcomed.
        listener: On worker 0, where it listens for the others; they find it as its second endpoint.

    Attributes:
        leads: Whether this is worker 0. It saves the checkpoints.
        stopping: The channel's reason to stop, once all workers have reached the step at which they
            stop.

    Raises:
        PeerLost: Not all workers started.
    """

    def __init__(self, channel: Channel, listener: socket.socket | None) -> None:
        self._channel = channel
        self._workers = int(channel.welcome["plan"]["workers"])
        self.leads = listener is not None
        self.stopping = ""
        self._checkpoint = False
        self._begun = 0
        self._target: Mapping[str, Any] | None = None
        self._asked = False
        self._lost = False
        self._answers: list[int] = []
        self._changed = threading.Condition()
        self._links = self._meet(listener)
        for link in self._links:
            threading.Thread(
                target=self._read, args=(link,), name="headgate-agreement", daemon=True
            ).start()

    def boundary(self) -> bool:
        """Whether there is something to do before the step that is about to begin. All workers get
        the same answer.
        """
        with self._changed:
            if self.leads:
                self._decide()
            else:
                self._changed.wait_for(lambda: not self._asked or self._lost)
                if self._lost and self._channel.stopping:
                    self.stopping = self._channel.stopping  # the others are gone already
            if self._target is not None and self._begun >= self._target["at"]:
                self.stopping = self.stopping or self._target["stopping"]
                self._checkpoint = self._target["checkpoint"]
                self._target = None
            self._begun += 1
        return bool(self.stopping) or self._checkpoint

    def take_checkpoint(self) -> bool:
        """Whether a checkpoint is to be saved here."""
        asked, self._checkpoint = self._checkpoint, False
        return asked

    # --- inside -----------------------------------------------------------------------------------

    def _decide(self) -> None:
        """On worker 0: if there is a request, agree with the others on the step at which it is
        handled.
        """
        channel = self._channel
        if self._target is not None or not channel.pending:
            return
        stopping, checkpoint = channel.stopping, channel.take_checkpoint()
        if not stopping and not checkpoint:
            return
        self._answers = []
        self._tell({"ask": True})
        self._changed.wait_for(
            lambda: len(self._answers) == len(self._links) or self._lost, _ANSWER_SECONDS
        )
        at = max([self._begun, *self._answers])
        self._target = {"at": at, "stopping": stopping, "checkpoint": checkpoint}
        self._tell(self._target)

    def _meet(self, listener: socket.socket | None) -> list[socket.socket]:
        secrets = self._channel.welcome["secrets"]
        key = (
            hmac.new(secrets["client_secret"].encode(), b"headgate.keras", "sha256")
            .hexdigest()
            .encode()
            + b"\n"
        )
        if listener is None:
            self._wait(lambda: bool(endpoint_of(self._channel, "worker", 0, 1)))
            host, _, port = endpoint_of(self._channel, "worker", 0, 1).rpartition(":")
            link = socket.create_connection((host.strip("[]"), int(port)), START_SECONDS)
            link.settimeout(None)
            link.sendall(key)
            return [link]
        listener.settimeout(START_SECONDS)
        links: list[socket.socket] = []
        while len(links) < self._workers - 1:
            try:
                link, _ = listener.accept()
                link.settimeout(START_SECONDS)
                known = hmac.compare_digest(_exactly(link, len(key)), key)
            except OSError:
                raise PeerLost(_LATE) from None
            if known:
                link.settimeout(None)
                links.append(link)
            else:
                link.close()
        listener.close()
        return links

    def _wait(self, condition: Callable[[], bool]) -> None:
        if not self._channel.wait_for(condition, START_SECONDS):
            raise PeerLost(_LATE)

    def _tell(self, message: Mapping[str, Any]) -> None:
        line = (json.dumps(message) + "\n").encode()
        for link in self._links:
            try:
                link.sendall(line)
            except OSError:
                self._lost = True

    def _read(self, link: socket.socket) -> None:
        try:
            with link.makefile("rb") as lines:
                for line in lines:
                    self._take(json.loads(line))
        except (OSError, ValueError):
            pass  # the end of the connection, which is told below
        with self._changed:
            self._lost = True
            self._changed.notify_all()

    def _take(self, message: Mapping[str, Any]) -> None:
        with self._changed:
            if "ask" in message:
                self._asked = True
                self._tell({"begun": self._begun})
            elif "begun" in message:
                self._answers.append(int(message["begun"]))
            elif "at" in message:
                self._target = message
                self._asked = False
            self._changed.notify_all()


def _exactly(link: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        more = link.recv(count - len(received))
        if not more:
            break
        received += more
    return received
