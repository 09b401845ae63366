"""TCP connections: the bytes a second that each task exchanges with other nodes, even if tasks
share a network.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from headgate.machine.namespaces import inside
from headgate.sampling.base import Boxed, Sampler, Target
from headgate.sampling.columns import Column

# linux/netlink.h, linux/sock_diag.h
_SOCK_DIAG, _BY_FAMILY, _DUMP, _DONE, _ERROR = 4, 20, 0x301, 3, 2
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr
# struct inet_diag_req_v2: family, protocol, extensions, states, any socket
_REQUEST = struct.Struct("=BBBxI48x")
_FROM = struct.Struct("=4x4x16s16s")  # struct inet_diag_msg: state and so on, ports, addresses
_NUMBER = struct.Struct("=I")
_INODE, _MESSAGE = 68, 72  # where the inode stands in it, and its size
_ATTRIBUTE = struct.Struct("=HH")  # struct rtattr
_INFO = 2  # INET_DIAG_INFO
_COUNTED = struct.Struct("=QQ")  # bytes_acked and bytes_received of struct tcp_info
_COUNTED_AT = 120
# all states but LISTEN and TIME_WAIT, which has no owner any more
_CONNECTED = 0b1111_1111_1110 & ~(1 << 10 | 1 << 6)
_LISTEN = "0A"  # TCP_LISTEN of net/tcp_states.h, as /proc/net/tcp has it
_OURS = "/proc/self/ns/net"
_LOOPBACK = (b"\x7f", bytes(15) + b"\x01", bytes(10) + b"\xff\xff\x7f")


class _Bytes(NamedTuple):
    sent: int
    received: int


class ConnectionsSampler(Sampler):
    """Reads `tcp_out` and `tcp_in` of a task: the bytes of its connections to other addresses,
    without headers.

    The kernel reports inode and bytes of each connection. The descriptors of a task's processes
    show which are its own. They are listed again only if there is a new connection.
    """

    name = "connections"

    def __init__(self) -> None:
        self._owner: dict[int, str | None] = {}
        self._last: dict[int, _Bytes] = {}
        self._since: dict[str, float] = {}

    def read(self, now: float, targets: Sequence[Target]) -> Mapping[str, Mapping[Column, float]]:
        tasks = {target.id: target.box for target in targets if target.box is not None}
        bytes_by_socket: dict[int, _Bytes] = {}
        looked_at: set[str] = set()
        for path, names in self._namespaces(tasks).items():
            try:
                sockets = dict(
                    connections() if path == _OURS else inside(path, lambda _: list(connections()))
                )
            except OSError:  # its processes ended meanwhile, or this kernel does not tell
                continue
            looked_at |= names
            if not sockets.keys() <= self._owner.keys():
                self._find_owners(sockets, {name: tasks[name] for name in names})
            bytes_by_socket |= sockets
        readings = self._rates(now, bytes_by_socket, looked_at)
        self._owner = {
            inode: owner for inode, owner in self._owner.items() if inode in bytes_by_socket
        }
        self._last = bytes_by_socket
        self._since = dict.fromkeys(looked_at, now)
        return readings

    def _rates(
        self, now: float, bytes_by_socket: Mapping[int, _Bytes], names: set[str]
    ) -> dict[str, dict[Column, float]]:
        carried = {name: _Bytes(0, 0) for name in names if now > self._since.get(name, now)}
        for inode, counted in bytes_by_socket.items():
            owner = self._owner.get(inode)
            if owner in carried:
                before, sums = self._last.get(inode, _Bytes(0, 0)), carried[owner]
                sent, received = (
                    max(new - old, 0) for new, old in zip(counted, before, strict=True)
                )
                carried[owner] = _Bytes(sums.sent + sent, sums.received + received)
        return {
            name: {
                "tcp_out": sums.sent / (now - self._since[name]),
                "tcp_in": sums.received / (now - self._since[name]),
            }
            for name, sums in carried.items()
        }

    def _namespaces(self, tasks: Mapping[str, Boxed]) -> dict[str, set[str]]:
        """The tasks in each network namespace, by a path to the namespace."""
        paths = {os.stat(_OURS).st_ino: _OURS}  # to enter another one takes root
        names: dict[int, set[str]] = {}
        for name, box in tasks.items():
            for pid in box.pids():
                path = f"/proc/{pid}/ns/net"
                with suppress(OSError):
                    inode = os.stat(path).st_ino
                    paths.setdefault(inode, path)
                    names.setdefault(inode, set()).add(name)
                    break
        return {paths[inode]: owners for inode, owners in names.items()}

    def _find_owners(self, sockets: Mapping[int, _Bytes], tasks: Mapping[str, Boxed]) -> None:
        owners: dict[int, str] = {}
        for name, box in tasks.items():
            for pid in box.pids():
                owners |= dict.fromkeys(self._sockets(pid), name)
        for inode in sockets:
            if self._owner.get(inode) is None:
                self._owner[inode] = owners.get(inode)

    def _sockets(self, pid: int) -> Iterator[int]:
        folder = f"/proc/{pid}/fd"
        try:
            names = os.listdir(folder)
        except OSError:  # it ended, or is another user's
            return
        for name in names:
            with suppress(OSError):
                target = os.readlink(f"{folder}/{name}")
                if target.startswith("socket:["):
                    yield int(target[8:-1])


def listens(pid: int, port: int) -> bool:
    """Whether a program listens at a TCP port in the network namespace of a process. False if the
    process has ended.
    """
    wanted = f":{port:04X}"
    for name in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]
        except OSError:
            continue
        if any(
            (fields := line.split())[1].endswith(wanted) and fields[3] == _LISTEN for line in lines
        ):
            return True
    return False


def connections() -> Iterator[tuple[int, _Bytes]]:
    """The inode of each TCP connection to another address in this network namespace, and its bytes
    so far.

    Raises:
        OSError: The kernel does not report them.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG
        ) as asking:
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 1 << (_INFO - 1), _CONNECTED)
            asking.send(
                _HEADER.pack(_HEADER.size + len(request), _BY_FAMILY, _DUMP, 1, 0) + request
            )
            for message in _messages(asking):
                source, destination = _FROM.unpack_from(message)
                (inode,) = _NUMBER.unpack_from(message, _INODE)
                stays = source == destination or destination.startswith(_LOOPBACK)
                if inode and not stays and (counted := _counted(message)) is not None:
                    yield inode, counted


def _messages(asking: socket.socket) -> Iterator[bytes]:
    while True:
        data = asking.recv(1 << 17)
        at = 0
        while at + _HEADER.size <= len(data):
            size, kind, *_ = _HEADER.unpack_from(data, at)
            if kind == _DONE:
                return
            if kind == _ERROR:
                raise OSError("the kernel does not tell of TCP connections (CONFIG_INET_DIAG)")
            yield data[at + _HEADER.size : at + size]
            at += (size + 3) & ~3


def _counted(message: bytes) -> _Bytes | None:
    at = _MESSAGE
    while at + _ATTRIBUTE.size <= len(message):
        size, kind = _ATTRIBUTE.unpack_from(message, at)
        if kind == _INFO and size >= _ATTRIBUTE.size + _COUNTED_AT + _COUNTED.size:
            return _Bytes(*_COUNTED.unpack_from(message, at + _ATTRIBUTE.size + _COUNTED_AT))
        if size < _ATTRIBUTE.size:
            return None
        at += (size + 3) & ~3
    return None
