"""Rates and round trips between nodes, measured over TCP: in a lab from this process, in other
clusters by their agents.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from statistics import median

from headgate.engines.base import Engine
from headgate.model.cluster import Node
from headgate.model.errors import HeadgateError

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_TRIPS = 20
_WARM_SECONDS = 0.15  # of a transfer: what fills queues and buffers
_WINDOWS, _WINDOW_SECONDS = 8, 0.05  # what counts
_PATIENCE_SECONDS = 15.0
_BLOCK = 1 << 18
_ANSWER = struct.Struct("!d")
_DROP_REST = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 s
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """From one node to another: bytes per second, and seconds of a round trip (median of 20)."""

    sender: str
    receiver: str
    bytes_per_second: float
    round_trip_seconds: float


Between = Callable[[Node, Node], MeasuredLink]
"""Measures the link from the first node to the second. Raises a `HeadgateError` if it cannot."""


def in_lab(sender: Node, receiver: Node) -> MeasuredLink:
    """Measure a link between nodes of a lab, each with a `place`.

    Raises:
        HeadgateError: The receiver cannot be reached, or the network of a node may not be entered.
    """
    try:
        with _network(receiver):
            port = listen(receiver.address)
        with _network(sender):
            return MeasuredLink(sender.name, receiver.name, *send(receiver.address, port))
    except OSError as error:
        cure = "" if os.geteuid() == 0 else "; it needs root"
        raise _unmeasured(sender, receiver, f"{error.strerror or error}{cure}") from error
    except HeadgateError as error:
        raise _unmeasured(sender, receiver, str(error)) from error


def by(engine: Engine) -> Between:
    """A function that measures links between an engine's nodes, by its agents there."""

    def between(sender: Node, receiver: Node) -> MeasuredLink:
        try:
            port = engine.ask(receiver.name, listen, receiver.address)
            return MeasuredLink(
                sender.name, receiver.name, *engine.ask(sender.name, send, receiver.address, port)
            )
        except HeadgateError as error:
            raise _unmeasured(sender, receiver, str(error)) from error

    return between


def measure(
    nodes: Sequence[Node],
    progress: Callable[[MeasuredLink], None] = lambda _: None,
    between: Between = in_lab,
) -> tuple[MeasuredLink, ...]:
    """Measure the links of a ring over the nodes, and from the end of the fastest link to all other
    nodes.

    So each node's NIC is measured against the fastest one. It takes a little more than a second for
    each node.

    Args:
        nodes: At least two nodes.
        progress: Called with each measured link.
        between: Measures a link.

    Raises:
        HeadgateError: A node cannot be reached, or its network may not be entered.
    """
    measured_links: dict[tuple[str, str], MeasuredLink] = {}

    def add(sender: Node, receiver: Node) -> None:
        if sender.name != receiver.name and (sender.name, receiver.name) not in measured_links:
            link = measured_links[sender.name, receiver.name] = between(sender, receiver)
            progress(link)

    for sender, receiver in zip(nodes, (*nodes[1:], nodes[0])):
        add(sender, receiver)
    best = max(measured_links.values(), key=lambda link: link.bytes_per_second)
    [hub] = [node for node in nodes if node.name == best.receiver]
    for node in nodes:
        add(hub, node)
    return tuple(measured_links.values())


def _unmeasured(sender: Node, receiver: Node, why: str) -> HeadgateError:
    return HeadgateError(
        f"the link from {sender.name} to {receiver.name} cannot be measured: {why}"
    )


@contextmanager
def _network(node: Node) -> Iterator[None]:
    """A context in which this thread's new sockets are in the network of a node."""
    if node.place is None:
        yield
        return
    with open("/proc/thread-self/ns/net") as own, open(node.place.namespace) as target:
        _enter(target.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


# --- the two ends of a link, each on its node


def listen(address: str) -> int:
    """Receive one `send` in a thread, which ends with it, or after 15 s without a sender. Returns
    the port.

    Raises:
        OSError: The address is not one of the node.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.create_server((address, 0), family=family)
    port: int = server.getsockname()[1]
    threading.Thread(target=_receive, args=(server,), name="link", daemon=True).start()
    return port


def send(address: str, port: int) -> tuple[float, float]:
    """Send to a `listen`. Returns bytes per second that arrive after the first, and seconds of a
    round trip.

    Raises:
        HeadgateError: It cannot be reached, or no longer.
    """
    try:
        with socket.create_connection((address, port), _PATIENCE_SECONDS) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Data in flight at the end would disturb the next link.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DROP_REST)
            trip = _round_trip(connection)
            return _rate(connection), trip
    except OSError as error:
        raise HeadgateError(
            f"{address} cannot be reached at port {port}: {error.strerror or error}; nodes have to "
            "reach each other at any port"
        ) from error


def _receive(server: socket.socket) -> None:
    """Answer messages, then count the data that arrive and report the rate."""
    with suppress(OSError), server:  # the other end tells
        server.settimeout(_PATIENCE_SECONDS)
        taken, _ = server.accept()
        with taken:
            taken.settimeout(_PATIENCE_SECONDS)
            taken.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(_TRIPS):
                taken.sendall(taken.recv(1))
            _read(taken, _WARM_SECONDS)
            _catch_up(taken, _WARM_SECONDS)
            windows = [_read(taken, _WINDOW_SECONDS) for _ in range(_WINDOWS)]
            whole = sum(count for count, _ in windows) / sum(seconds for _, seconds in windows)
            # A moment without the CPU does not change the median; on a slow link most windows are
            # empty. What arrives in that moment is read at once: a mean of rates would be too high.
            rate = max(median(count / seconds for count, seconds in windows), whole)
            taken.sendall(_ANSWER.pack(rate))
            # to the end: if it were closed earlier, the connection would not carry the answer
            _read(taken, _PATIENCE_SECONDS)


def _round_trip(connection: socket.socket) -> float:
    trips = []
    for _ in range(_TRIPS):
        begun = time.monotonic()
        connection.sendall(b"x")
        if not connection.recv(1):
            raise _closed()
        trips.append(time.monotonic() - begun)
    return median(trips)


def _rate(connection: socket.socket) -> float:
    """Send until the other end reports its count."""
    block = memoryview(bytes(_BLOCK))
    ready = select.poll()
    ready.register(connection, select.POLLIN | select.POLLOUT)
    connection.setblocking(False)
    while events := ready.poll(1e3 * _PATIENCE_SECONDS):
        [(_, event)] = events
        if event != select.POLLOUT:
            connection.settimeout(_PATIENCE_SECONDS)
            recv = connection.recv(_ANSWER.size, socket.MSG_WAITALL)
            if len(recv) < _ANSWER.size:
                raise _closed()
            rate: float = _ANSWER.unpack(recv)[0]
            return rate
        with suppress(BlockingIOError):
            connection.send(block)
    raise TimeoutError("timed out")


def _catch_up(taken: socket.socket, most_seconds: float) -> None:
    """Receive what has arrived before now. Where data arrive faster than this process reads, there
    is always more.
    """
    begun, buffer = time.monotonic(), memoryview(bytearray(_BLOCK))
    ready = select.poll()
    ready.register(taken, select.POLLIN)
    while ready.poll(0) and time.monotonic() - begun < most_seconds:
        if not taken.recv_into(buffer):
            raise _closed()


def _read(taken: socket.socket, seconds: float) -> tuple[int, float]:
    """Receive data. Returns how many bytes, in how many seconds."""
    begun, count = time.monotonic(), 0
    buffer = memoryview(bytearray(_BLOCK))
    while (took := time.monotonic() - begun) < seconds:
        if not (got := taken.recv_into(buffer)):
            raise _closed()
        count += got
    return count, took


def _closed() -> ConnectionResetError:
    return ConnectionResetError(None, "the connection was closed")
