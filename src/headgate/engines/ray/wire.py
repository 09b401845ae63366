"""What hub, bridge and agents say to each other."""

from __future__ import annotations

import pickle
import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from headgate.cluster import Node
from headgate.engines.base import Slot
from headgate.events import Exit, TaskId
from headgate.isolation.base import Launch
from headgate.shares import Share
from headgate.telemetry.columns import Column

_HEADER = struct.Struct("!Q")

# --- commands: hub to bridge, these four on to the agent of a node


@dataclass(frozen=True, slots=True)
class Start:
    launch: Launch
    share: Share


@dataclass(frozen=True, slots=True)
class SetShare:
    task: TaskId
    share: Share


@dataclass(frozen=True, slots=True)
class Send:
    task: TaskId
    message: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Stop:
    task: TaskId
    grace: float


Command = Start | SetShare | Send | Stop


@dataclass(frozen=True, slots=True)
class To:
    """A command for the agent of a node."""

    node: str
    command: Command


@dataclass(frozen=True, slots=True)
class Open:
    """The first that the bridge is told.

    Args:
        address: Of the cluster's head, HOST:PORT; empty: start one on this machine.
        shared: The nodes see the files of this machine under the same paths.
        speeds: Measured GFLOP/s of a core, by `speed_key`; nodes of other kinds are measured.
    """

    address: str
    shared: bool
    speeds: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Reserve:
    """Set aside what tasks take; `key` tells it from every other."""

    key: str
    slots: Mapping[TaskId, Slot]


@dataclass(frozen=True, slots=True)
class Release:
    key: str


@dataclass(frozen=True, slots=True)
class Close:
    """End every task, give everything back, then end."""


Request = Open | To | Reserve | Release | Close


# --- events: agent to bridge and on to the hub


@dataclass(frozen=True, slots=True)
class Started:
    task: TaskId
    pid: int


@dataclass(slots=True)
class Output:
    """Bytes of a task's output, all of them in order."""

    task: TaskId
    data: bytearray = field(default_factory=bytearray)


@dataclass(frozen=True, slots=True)
class Message:
    task: TaskId
    message: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Saved:
    """A message that names a file or folder on the node; it belongs to `path` on the hub's machine."""

    task: TaskId
    message: Mapping[str, object]
    path: str


@dataclass(frozen=True, slots=True)
class Exited:
    task: TaskId
    exit: Exit


@dataclass(frozen=True, slots=True)
class Warned:
    task: TaskId | None
    text: str


@dataclass(frozen=True, slots=True)
class Usage:
    target: str
    reading: Mapping[Column, float]


Event = Started | Output | Message | Saved | Exited | Warned | Usage


# --- what the bridge adds


@dataclass(frozen=True, slots=True)
class Opened:
    """The bridge is connected.

    Args:
        address: Of the cluster's head.
        nodes: Those that an agent answers from.
        lost: As `Engine.lost`.
    """

    address: str
    nodes: tuple[Node, ...]
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refused:
    """It cannot be; the bridge ends. `usage`: because of what was asked for."""

    text: str
    usage: bool


@dataclass(frozen=True, slots=True)
class Joined:
    node: Node


@dataclass(frozen=True, slots=True)
class Left:
    """A node and all that ran there is gone."""

    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class Granted:
    key: str


@dataclass(frozen=True, slots=True)
class Waits:
    """A reservation cannot be had now."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Impossible:
    """A reservation can never be had."""

    key: str
    text: str


Report = Event | Opened | Refused | Joined | Left | Granted | Waits | Impossible


class Pipe:
    """Objects over a stream socket, both ways; sending may be done from any thread, receiving from one."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._lock = threading.Lock()

    def send(self, what: Request | Report) -> None:
        """Send an object; what is sent to an end that is gone is lost."""
        data = pickle.dumps(what)
        with self._lock:
            try:
                self._socket.sendall(_HEADER.pack(len(data)))
                self._socket.sendall(data)
            except OSError:
                return

    def receive(self) -> Request | Report | None:
        """The next object; None when the other end is gone."""
        head = self._exactly(_HEADER.size)
        data = self._exactly(_HEADER.unpack(head)[0]) if head is not None else None
        if data is None:
            return None
        received: Request | Report = pickle.loads(data)
        return received

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def _exactly(self, count: int) -> bytes | None:
        data = bytearray(count)
        view = memoryview(data)
        while view:
            try:
                got = self._socket.recv_into(view)
            except OSError:
                return None
            if not got:
                return None
            view = view[got:]
        return bytes(data)


def speed_key(cpu_model: str, cores: float) -> str:
    """What the measured speed of a core is kept under."""
    return f"{cpu_model} x {cores:g}"
