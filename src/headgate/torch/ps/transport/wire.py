"""The messages between workers and parameter servers: a fixed header and raw frames, over ZeroMQ.

A server has one ROUTER socket, a worker one DEALER for each server. No message is ever dropped at a
high-water mark, because the rounds bound the messages in flight. With keys (CURVE), a server admits
only holders of the job's own client key. Without keys, each header carries a token of the job, and
messages with another token are ignored. A worker on the server's node uses a Unix socket, in a
folder that only their user can enter. There nothing is encrypted.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import json
import struct
import time
from collections.abc import Mapping
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from socket import AF_UNIX
from socket import socket as Connection
from typing import TYPE_CHECKING, Any, NamedTuple, Union

import torch
import zmq
from zmq.utils import z85

if TYPE_CHECKING:
    from headgate.torch.ps.transport.loop import Loop

Buffer = Union[bytes, memoryview]

DTYPES = (
    torch.float32,
    torch.float64,
    torch.uint8,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.int32,
)
"""Types of payloads. A header has the index of a type in this list."""
LATE = 1
"""Flag: the sum was formed without the receiver's contribution."""
COMPLETE = 2
"""Flag: this server has every sum of the round."""
EMPTY = 4
"""Flag: a contribution of zeros, without payload."""
SHARED = 8
"""Flag: the payload is at `offset` in shared memory."""
ALL = 16
"""Flag: the sum needs the contributions of all workers that count, whatever the plan says."""

_LARGEST_BYTES = 1 << 30
_SMALL_BYTES = 16384
_DOMAIN = b"headgate"
_UNIX = "ipc://"


class MessageKind(IntEnum):
    """Kind of a message. Dense synchronous rounds use those below 32."""

    PING = 1
    PONG = 2
    ASK = 3
    ANSWER = 4
    PUSH = 5
    SUM = 6
    PULL = 7
    PENDING = 8
    WANT = 9
    SUPPLY = 10
    SHARE = 11
    MAPPED = 12
    PAUSE = 13


class Header(NamedTuple):
    """The first frame of every message.

    Args:
        kind: Kind of the message.
        flags: Combination of the flags in this module.
        dtype: Type of the payload, as an index in `DTYPES`.
        sender: Index of the worker or server that sends it.
        life: How often that task was started.
        view: Number of the view that the sender acts in.
        round: Number of the round.
        chunk: Number of the chunk.
        chunks: Chunks of the round on that server.
        offset: Offset of the payload in shared memory, in bytes.
        size: Bytes of the payload.
        weight: Weight of the contribution, or total weight of a sum.
        asked: When the message that this one answers arrived, on the sender's clock, in seconds.
        step: Number of the sender's step, from 1; 0 if the message belongs to none.
        sent: When this message was sent, on the sender's clock, in seconds.
    """

    kind: int
    flags: int = 0
    dtype: int = 0
    sender: int = 0
    life: int = 0
    view: int = 0
    round: int = 0
    chunk: int = 0
    chunks: int = 0
    offset: int = 0
    size: int = 0
    weight: float = 0.0
    asked: float = 0.0
    step: int = 0
    sent: float = 0.0


_LAYOUT = struct.Struct("<8sBBBxHHIqIIQQddqd")


class Message(NamedTuple):
    """A message that arrived.

    Args:
        route: Route of an answer; empty on a worker.
        header: Its header.
        frames: The frames after the header.
        at: When it arrived, by this task's clock, in seconds.
    """

    route: bytes
    header: Header
    frames: list[zmq.Frame]
    at: float

    def json(self) -> Any:
        """The first frame as JSON; an empty object without frames."""
        return json.loads(self.frames[0].bytes) if self.frames else {}

    def tensor(self) -> torch.Tensor:
        """The first frame as a flat tensor of the header's type, in the memory that it arrived in.

        Only the receiver has this memory, so it may be written to.
        """
        # Small frames are unaligned within the buffer that they were read into.
        frame = self.frames[0]
        data = bytearray(frame.buffer) if len(frame.buffer) < _SMALL_BYTES else frame.buffer
        return (
            torch.frombuffer(data, dtype=DTYPES[self.header.dtype]) if len(data) else torch.empty(0)
        )


def memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy. They keep the tensor alive."""
    array = (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(
        tensor.data_ptr()
    )
    array.owner = tensor  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


class Socket:
    """A socket that frames messages."""

    def __init__(self, socket: zmq.Socket[bytes], secrets: Mapping[str, Any], routed: bool) -> None:
        self.zmq = socket
        self._token = token(secrets)
        self._routed = routed

    def send(self, header: Header, *frames: Buffer, route: bytes = b"") -> None:
        """Send a message. Returns at once. The memory of a large frame must not change until it is
        answered.
        """
        first = _LAYOUT.pack(self._token, *header[:-1], time.monotonic())
        parts: list[Buffer] = [route, first, *frames] if self._routed else [first, *frames]
        self.zmq.send_multipart(parts, copy=False)

    def receive(self) -> Message | None:
        """The next message of this job. None for a message that is malformed or of another job.

        Raises:
            zmq.Again: No message has arrived.
        """
        parts = self.zmq.recv_multipart(zmq.NOBLOCK, copy=False)
        now = time.monotonic()
        route = parts.pop(0).bytes if self._routed else b""
        if not parts or len(parts[0]) != _LAYOUT.size:
            return None
        mark, *fields = _LAYOUT.unpack(parts[0].buffer)
        if not hmac.compare_digest(mark, self._token):
            return None
        return Message(route, Header(*fields), parts[1:], now)

    def close(self) -> None:
        self.zmq.close(linger=0)


def token(secrets: Mapping[str, Any]) -> bytes:
    """The token that marks the messages of a job."""
    keys = f"{secrets['server_public']} {secrets['client_public']}"
    return hashlib.sha256(keys.encode()).digest()[:8]


def serve(
    loop: Loop, secrets: Mapping[str, Any], address: str, beside: Path | None = None
) -> tuple[Socket, list[str]]:
    """A server's socket, bound to a free port of `address`, and its endpoints.

    Args:
        loop: Drives the socket and the gatekeeper.
        secrets: Secrets of the task's welcome.
        address: IP address of the task's node.
        beside: Path of a Unix socket for workers on the same node. Only their user may be able to
            enter its folder.
    """
    socket = _socket(loop, zmq.ROUTER, address)
    near = []
    if beside is not None:  # before there are keys: they hold for what is bound from then on
        # as in a container that may not write there; workers use the other endpoint
        with suppress(zmq.ZMQError):
            socket.bind(f"{_UNIX}{beside}")
            near = [f"{_UNIX}{beside}"]
    if secrets["encrypt"]:
        _keep_gate(loop, secrets["client_public"].encode())
        socket.zap_domain = _DOMAIN
        socket.curve_server = True
        socket.curve_secretkey = secrets["server_secret"].encode()
    socket.bind(f"tcp://{_host(address)}:0")
    return Socket(socket, secrets, routed=True), [str(socket.get_string(zmq.LAST_ENDPOINT)), *near]


def reaches(endpoint: str) -> bool:
    """Whether this process can reach the Unix socket of an endpoint."""
    with Connection(AF_UNIX) as probe:
        try:
            probe.connect(endpoint.removeprefix(_UNIX))
        except OSError:
            return False
        return True


def connect(loop: Loop, secrets: Mapping[str, Any], endpoint: str) -> Socket:
    """A worker's socket to the server at `endpoint`."""
    socket = _socket(loop, zmq.DEALER, endpoint.removeprefix("tcp:"))
    if secrets["encrypt"] and not endpoint.startswith(_UNIX):
        socket.curve_serverkey = secrets["server_public"].encode()
        socket.curve_publickey = secrets["client_public"].encode()
        socket.curve_secretkey = secrets["client_secret"].encode()
    socket.connect(endpoint)
    return Socket(socket, secrets, routed=False)


def _socket(loop: Loop, kind: int, address: str) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = loop.context.socket(kind)
    socket.set_hwm(0)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST_BYTES)
    socket.setsockopt(zmq.IPV6, int("[" in address or address.count(":") > 1))
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
    return socket


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def _keep_gate(loop: Loop, client_public: bytes) -> None:
    """Answer the library's requests for admission (ZAP, RFC 27): admit holders of the job's client
    key.
    """
    admitted = z85.decode(client_public)
    gate = loop.context.socket(zmq.REP)
    gate.linger = 0
    gate.bind("inproc://zeromq.zap.01")

    def decide() -> None:
        version, request, _domain, _address, _identity, mechanism, *credentials = (
            gate.recv_multipart(zmq.NOBLOCK)
        )
        admit = (
            mechanism == b"CURVE"
            and len(credentials) == 1
            and hmac.compare_digest(credentials[0], admitted)
        )
        status, text = (b"200", b"OK") if admit else (b"400", b"not a task of this job")
        gate.send_multipart([version, request, status, text, b"", b""])

    loop.add(gate, decide)
