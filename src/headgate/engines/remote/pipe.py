"""Objects over a stream socket, between the hub and its bridge."""

from __future__ import annotations

import hashlib
import hmac
import io
import pickle
import socket
import struct
import sys
import threading
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, Protocol

from headgate.engines.remote.wire import Report, Request
from headgate.model.identifiers import IDENTIFIERS

_HEADER = struct.Struct("!Q")
_IDLE_SECONDS = 20
_MAC_BYTES = hashlib.sha256().digest_size


class ByteStream(Protocol):
    """What objects go over: a socket, or what behaves so."""

    def recv_into(self, buffer: memoryview, /) -> int:
        """Fill what is there into a buffer. Returns its length; 0: the other end is gone."""

    def sendall(self, data: bytes, /) -> None:
        """Send all of it."""

    def close(self) -> None:
        """Hang up."""


class Pipe:
    """Sends and receives objects. Any thread may send; one thread may receive.

    Args:
        connection: To the other end.
        key: A secret of both ends, if strangers can reach the connection; else empty. It
            authenticates every object: HMAC-SHA256 of its place in the order and its content. Other
            objects are refused.
        side: Which end this is, "hub" or "bridge". The hub accepts only plain facts (`facts`), so
            that the cluster cannot make it call anything.
    """

    def __init__(self, connection: ByteStream, key: bytes, side: str) -> None:
        self._socket = connection
        self._load = facts if side == "hub" else pickle.loads
        self._lock = threading.Lock()
        other = "bridge" if side == "hub" else "hub"
        self._seal = _Seal(key, side) if key else None
        self._check = _Seal(key, other) if key else None
        if key and isinstance(connection, socket.socket):
            _notice_silence(connection)

    def send(self, what: Request | Report) -> None:
        """Send an object. If the other end is gone, the object is lost."""
        data = pickle.dumps(what)
        with self._lock:
            seal = self._seal.next(data) if self._seal is not None else b""
            try:
                self._socket.sendall(_HEADER.pack(len(data)) + seal)
                self._socket.sendall(data)
            except OSError:
                return

    def receive(self) -> Request | Report | None:
        """The next object; None if the other end is gone, or if somebody tampered with the
        connection.
        """
        head = self._exactly(_HEADER.size)
        seal = self._exactly(_MAC_BYTES) if head is not None and self._check is not None else b""
        data = (
            self._exactly(_HEADER.unpack(head)[0])
            if head is not None and seal is not None
            else None
        )
        if data is None or (
            self._check is not None and not hmac.compare_digest(self._check.next(data), seal or b"")
        ):
            return None
        try:
            received: Request | Report = self._load(data)
        except pickle.UnpicklingError:
            return None
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


def facts(data: bytes) -> Any:
    """Unpickle plain values and Headgate's own dataclasses, enumerations and identifiers, and
    nothing else.

    Raises:
        pickle.UnpicklingError: The data hold something else, which could run any code, or are
            damaged.
    """
    try:
        return _Facts(io.BytesIO(data)).load()
    except pickle.UnpicklingError:
        raise
    except Exception as error:  # a class that does not take what it is given, for example
        raise pickle.UnpicklingError(f"{type(error).__name__}: {error}") from error


class _Facts(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "bytearray"):
            return bytearray
        if (module, name) == ("builtins", "getattr"):
            return _member  # before 3.11.4, Python packs members of enumerations so
        # Of what is loaded here already: importing runs a module.
        loaded_class = (
            super().find_class(module, name)
            if module.startswith("headgate.") and module in sys.modules
            else None
        )
        if isinstance(loaded_class, type) and (
            is_dataclass(loaded_class)
            or issubclass(loaded_class, Enum)
            or loaded_class in IDENTIFIERS
        ):
            return loaded_class
        raise pickle.UnpicklingError(
            f"found {module}.{name}; expected plain values and Headgate's own"
        )


def _member(of: object, name: object) -> Enum:
    if isinstance(of, type) and issubclass(of, Enum) and isinstance(name, str):
        return of[name]
    raise pickle.UnpicklingError("found getattr; expected a member of an enumeration")


def _notice_silence(connection: socket.socket) -> None:
    """Let TCP give up within a minute on an end whose machine or network is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if connection.family in (socket.AF_INET, socket.AF_INET6):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _IDLE_SECONDS // 2)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 3000 * _IDLE_SECONDS)


class _Seal:
    """Seals the objects that one end sends, in their order."""

    def __init__(self, key: bytes, side: str) -> None:
        self._key = key
        self._side = side.encode()
        self._count = 0

    def next(self, data: bytes) -> bytes:
        sealed = hmac.new(self._key, self._side + _HEADER.pack(self._count), hashlib.sha256)
        sealed.update(data)
        self._count += 1
        return sealed.digest()
