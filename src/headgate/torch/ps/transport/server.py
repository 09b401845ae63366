"""A parameter server: one socket, the views, and the services that answer the workers."""

from __future__ import annotations

import json
import sys
import threading
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.task import Channel
from headgate.torch.ps.transport import wire
from headgate.torch.ps.transport.loop import Loop
from headgate.torch.ps.transport.views import View
from headgate.torch.ps.transport.wire import Buffer, Header, Message, MessageKind

ORPHANED_SECONDS = 10.0
"""Time after which a server without a hub ends if no worker sends a message."""
_LOOK_SECONDS = 1.0


class Service(ABC):
    """Answers some kinds of messages. All calls come from the server's one thread."""

    kinds: frozenset[int]

    @abstractmethod
    def received(self, worker: int, message: Message) -> None:
        """Handle a message from a worker of the present view."""

    @abstractmethod
    def entered(self, view: View) -> None:
        """Note a change of the view."""

    def close(self) -> None:  # noqa: B027 - most have nothing to close
        """Release resources when the server ends."""


class Server:
    """Receives and sends for its services.

    A message from a worker whose view is newer than the server's waits for that view. Messages from
    a former life of a worker, or from a worker that has left, are dropped.

    Args:
        channel: The channel to the hub, after its welcome.
        services: Makes the services, given the server.
        beside: Path of a Unix socket for workers on this node. Only its user may be able to enter
            its folder.

    Attributes:
        index: Index of this server.
        life: How often it was started.
        plan: The fields of the job's plan.
        loop: Drives the socket.
        view: The present view.
        socket: The socket.
        notify: Sends a message to the hub.
    """

    def __init__(
        self,
        channel: Channel,
        services: Callable[[Server], Sequence[Service]],
        beside: Path | None = None,
    ) -> None:
        welcome = channel.welcome
        self.index: int = welcome["index"]
        self.life = 1
        self.plan: Mapping[str, Any] = welcome["plan"]
        self.notify = channel.send
        self.view = View()
        self.loop = Loop("headgate-server", self._crashed)
        self._channel = channel
        self._make_services = services
        self._beside = beside
        self._services: dict[int, Service] = {}
        self._routes: dict[int, bytes] = {}
        self._early: list[Message] = []
        self._heard = time.monotonic()
        self.failed = False
        self.loop.call(self._start, welcome)

    # --- for services -----------------------------------------------------------------------------

    def send(self, worker: int, header: Header, *frames: Buffer) -> None:
        """Send a message to a worker. A worker that never sent anything cannot be reached and is
        skipped.
        """
        route = self._routes.get(worker)
        if route is not None:
            self.socket.send(
                header._replace(sender=self.index, life=self.life), *frames, route=route
            )

    def send_json(self, worker: int, header: Header, content: Mapping[str, object]) -> None:
        """Send a message with one frame of JSON."""
        self.send(worker, header, json.dumps(content).encode())

    def note(self, text: str) -> None:
        """Tell the user something."""
        self.notify({"type": "note", "text": f"server-{self.index}: {text}"})

    # --- the process ------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until the hub says stop, or is gone and no worker sends any more. Returns the exit
        code.
        """
        self._channel.wait_for(lambda: self.failed, threading.TIMEOUT_MAX)
        while not self.failed and self._channel.stopping != "stop":
            left = self._heard + ORPHANED_SECONDS - time.monotonic()
            if left > 0:
                time.sleep(min(left, _LOOK_SECONDS))
            elif not self._hears():
                break
        finished = threading.Event()
        self.loop.call(self._finish, finished)
        self._await(finished)
        if not self.failed:
            self.loop.close(linger_seconds=1.0)
        if self._beside is not None:
            self._beside.unlink(missing_ok=True)
        self._channel.flush(1.0)
        return 1 if self.failed else 0

    def _hears(self) -> bool:
        """Take the messages that wait, as after a time in which the machine stood still; whether
        there were any.
        """
        heard, taken = self._heard, threading.Event()
        # a timer comes after what the socket has received
        self.loop.call(self.loop.after, 0.0, taken.set)
        self._await(taken)
        return self._heard > heard

    def _await(self, event: threading.Event) -> None:
        """Wait until the thread of the loop has set an event, or has failed."""
        while not self.failed and not event.wait(_LOOK_SECONDS):
            pass

    def _start(self, welcome: Mapping[str, Any]) -> None:
        self.socket, endpoints = wire.serve(
            self.loop, welcome["secrets"], welcome["address"], self._beside
        )
        for service in self._make_services(self):
            self._services.update(dict.fromkeys(service.kinds, service))
        self.loop.add(self.socket.zmq, self._receive)
        self._channel.watcher = lambda message: self.loop.call(self._watch, message)
        self._watch(self._channel.peers)
        self.notify({"type": "listening", "endpoints": endpoints})

    def _finish(self, finished: threading.Event) -> None:
        for service in dict.fromkeys(self._services.values()):
            service.close()
        finished.set()

    def _crashed(self, error: BaseException) -> None:
        traceback.print_exception(type(error), error, error.__traceback__, file=sys.stderr)
        self.failed = True
        self._channel.close()  # whoever waits for the hub is to wake up

    # --- arriving messages ------------------------------------------------------------------------

    def _watch(self, message: Mapping[str, Any]) -> None:
        view = View.read(message) if message.get("type") == "peers" else self.view
        if view.number <= self.view.number:
            return
        for index, member in self.view.workers.items():
            if index not in view.workers or view.workers[index].life != member.life:
                self._routes.pop(index, None)
        self.view = view
        if self.index in view.servers:
            self.life = view.servers[self.index].life
        for service in dict.fromkeys(self._services.values()):
            service.entered(view)
        early, self._early = self._early, []
        for waiting in early:
            self._take(waiting)

    def _receive(self) -> None:
        message = self.socket.receive()
        if message is not None:
            self._heard = message.at
            self._take(message)

    def _take(self, message: Message) -> None:
        header = message.header
        if header.view > self.view.number:
            self._early.append(message)
            return
        member = self.view.workers.get(header.sender)
        if member is None or member.life != header.life:
            return
        self._routes[header.sender] = message.route
        if header.kind == MessageKind.PING:
            self.send(header.sender, Header(MessageKind.PONG, asked=message.at))
        elif header.kind in self._services:
            self._services[header.kind].received(header.sender, message)
