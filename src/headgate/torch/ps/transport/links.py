"""A worker's connections: a socket to each running server, updated with the hub's views."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from headgate.task import Channel
from headgate.torch.ps.transport import wire
from headgate.torch.ps.transport.loop import Loop
from headgate.torch.ps.transport.views import Member, View
from headgate.torch.ps.transport.wire import Buffer, Header, Message, MessageKind, Socket

_CLOCK_SECONDS = 10.0
"""Interval between two comparisons of the clocks."""
_PINGS = 4
"""Round trips in a comparison. The fastest counts, because the first waits for the connection."""


class _Link:
    """A socket to one life of a server."""

    def __init__(self, socket: Socket, member: Member) -> None:
        self.socket = socket
        self.member = member
        self.clock = 0.0
        self.compared = float("-inf")
        self.pinged = 0.0
        self.pings = 0
        self.fastest = (float("inf"), 0.0)


class Links:
    """The connections of a worker. Call everything but `start` in the loop's thread.

    Args:
        channel: The channel to the hub, after its welcome.
        loop: Drives the sockets.

    Attributes:
        index: Index of this worker.
        node: Name of its node.
        servers: Number of servers in the plan.
        view: The present view.
        handlers: The handler of each kind of message; it gets the server's index.
        watchers: Called with the former view after each change.
    """

    def __init__(self, channel: Channel, loop: Loop) -> None:
        welcome = channel.welcome
        self.index: int = welcome["index"]
        self.node: str = welcome["node"]
        self.servers: int = welcome["plan"]["servers"]
        self.view = View()
        self.handlers: dict[int, Callable[[int, Message], None]] = {
            MessageKind.PONG: self._compared
        }
        self.watchers: list[Callable[[View], None]] = []
        self._secrets: Mapping[str, Any] = welcome["secrets"]
        self._channel = channel
        self._loop = loop
        self._links: dict[int, _Link] = {}

    def start(self) -> None:
        """Follow the views from now on."""
        before = self._channel.watcher

        def watch(message: Mapping[str, Any]) -> None:
            if before is not None:
                before(message)
            self._loop.call(self._watch, message)

        self._channel.watcher = watch
        self._loop.call(self._watch, self._channel.peers)

    def send(self, server: int, header: Header, *frames: Buffer) -> bool:
        """Send a message to a server. Returns whether it is connected. Large frames must not change
        until they are answered.
        """
        link = self._links.get(server)
        if link is None:
            return False
        life = self.view.workers[self.index].life
        link.socket.send(header._replace(sender=self.index, life=life), *frames)
        return True

    def send_json(self, server: int, header: Header, content: Mapping[str, object]) -> bool:
        """Send a message with one frame of JSON."""
        return self.send(server, header, json.dumps(content).encode())

    def member(self, server: int) -> Member | None:
        """The server of that index, if it is connected."""
        link = self._links.get(server)
        return None if link is None else link.member

    def ours(self, server: int, seconds: float) -> float:
        """Convert a time of the server's clock to this worker's clock."""
        link = self._links.get(server)
        return seconds if link is None else seconds - link.clock

    def compare_clocks(self) -> None:
        """Compare this worker's clock with the servers', if it is due. Call it while no other
        message is in flight.
        """
        now = time.monotonic()
        for server, link in self._links.items():
            if now - link.compared > _CLOCK_SECONDS:
                link.compared, link.pings, link.fastest = now, _PINGS, (float("inf"), 0.0)
                self._ping(server, link)

    def _ping(self, server: int, link: _Link) -> None:
        link.pings -= 1
        link.pinged = time.monotonic()
        self.send(server, Header(MessageKind.PING))

    def _compared(self, server: int, message: Message) -> None:
        link = self._links[server]
        header = message.header
        forth, back = header.asked - link.pinged, header.sent - message.at
        # As in NTP, both ways are assumed to take the same time.
        link.fastest = min(link.fastest, (forth - back, (forth + back) / 2))
        if link.pings:
            self._ping(server, link)
        else:
            link.clock = link.fastest[1]

    def _watch(self, message: Mapping[str, Any]) -> None:
        view = View.read(message) if message.get("type") == "peers" else self.view
        if view.number <= self.view.number:
            return
        former, self.view = self.view, view
        for server, link in list(self._links.items()):
            if view.servers.get(server) != link.member:
                self._loop.remove(link.socket.zmq)
                link.socket.close()
                del self._links[server]
        for server, member in view.servers.items():
            if member.endpoint and server not in self._links:
                self._connect(server, member)
        self.compare_clocks()
        for watcher in self.watchers:
            watcher(former)

    def _connect(self, server: int, member: Member) -> None:
        near = member.node == self.node and member.beside and wire.reaches(member.beside)
        socket = wire.connect(self._loop, self._secrets, member.beside if near else member.endpoint)

        def receive() -> None:
            message = socket.receive()
            if message is not None and message.header.kind in self.handlers:
                self.handlers[message.header.kind](server, message)

        self._links[server] = _Link(socket, member)
        self._loop.add(socket.zmq, receive)
