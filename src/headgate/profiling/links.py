"""Rates and round trips between nodes that are on this machine, measured over TCP."""

from __future__ import annotations

import ctypes
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

from headgate.cluster import Node
from headgate.errors import HeadgateError

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_TRIPS = 20
_WARM, _COUNTED = 0.15, 0.4  # seconds of a transfer: what fills queues and buffers, and what counts
_PATIENCE_SECONDS = 5.0
_BLOCK = 1 << 18
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Link:
    """From one node to another: bytes a second, and seconds of a message there and back (median of 20)."""

    sender: str
    receiver: str
    bytes_per_second: float
    round_trip_seconds: float


def measure(nodes: Sequence[Node], told: Callable[[Link], None] = lambda _: None) -> tuple[Link, ...]:
    """The links of a ring over the nodes, and from the end of the fastest of these to all others: with them each node's
    NIC was tried against the fastest. A little more than a second for each node.

    Args:
        nodes: At least two, each with a `place`.
        told: Called with each as it is known.

    Raises:
        HeadgateError: A node cannot be reached, or we may not enter its network.
    """
    found: dict[tuple[str, str], Link] = {}

    def add(sender: Node, receiver: Node) -> None:
        if sender.name != receiver.name and (sender.name, receiver.name) not in found:
            link = found[sender.name, receiver.name] = between(sender, receiver)
            told(link)

    for sender, receiver in zip(nodes, (*nodes[1:], nodes[0])):
        add(sender, receiver)
    best = max(found.values(), key=lambda link: link.bytes_per_second)
    [hub] = [node for node in nodes if node.name == best.receiver]
    for node in nodes:
        add(hub, node)
    return tuple(found.values())


def between(sender: Node, receiver: Node) -> Link:
    """One link.

    Raises:
        HeadgateError: The receiver cannot be reached, or we may not enter the network of one of them.
    """
    try:
        with ExitStack() as open_:
            with _network(receiver):
                listener = open_.enter_context(socket.create_server((receiver.address, 0)))
            with _network(sender):
                out = open_.enter_context(socket.create_connection(listener.getsockname()[:2], _PATIENCE_SECONDS))
            taken, _ = listener.accept()
            open_.enter_context(taken)
            for end in (out, taken):
                end.settimeout(_PATIENCE_SECONDS)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trip = _round_trip(out, taken)
            return Link(sender.name, receiver.name, _rate(out, taken), trip)
    except OSError as error:
        what = error.strerror or str(error)
        cure = "" if os.geteuid() == 0 else "; it needs root"
        raise HeadgateError(
            f"the link from {sender.name} to {receiver.name} cannot be measured: {what}{cure}"
        ) from error


@contextmanager
def _network(node: Node) -> Iterator[None]:
    """Have this thread's new sockets be in the network of a node."""
    if node.place is None:
        yield
        return
    with open("/proc/thread-self/ns/net") as own, open(node.place.namespace) as there:
        _enter(there.fileno())
        try:
            yield
        finally:
            _enter(own.fileno())


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _CLONE_NEWNET) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _round_trip(out: socket.socket, taken: socket.socket) -> float:
    trips = []
    for _ in range(_TRIPS):
        begun = time.monotonic()
        out.sendall(b"x")
        taken.recv(1)
        taken.sendall(b"x")
        out.recv(1)
        trips.append(time.monotonic() - begun)
    return median(trips)


def _rate(out: socket.socket, taken: socket.socket) -> float:
    """Bytes a second that arrive, once the first are there."""
    ended = threading.Event()

    def send() -> None:
        block = memoryview(bytes(_BLOCK))
        try:
            while not ended.is_set():
                out.sendall(block)
        except OSError:  # the other end was closed, or is out of reach: the reader tells
            return

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        _read(taken, _WARM)
        return _read(taken, _COUNTED)
    finally:
        ended.set()
        taken.close()
        sender.join()


def _read(taken: socket.socket, seconds: float) -> float:
    begun, count = time.monotonic(), 0
    buffer = memoryview(bytearray(_BLOCK))
    while (took := time.monotonic() - begun) < seconds:
        if not (got := taken.recv_into(buffer)):
            raise ConnectionResetError(None, "the connection was closed")
        count += got
    return count / took
