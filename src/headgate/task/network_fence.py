"""Keeps a process and its child processes from connecting to other programs: by a network
namespace, or by Landlock.

If the kernel has neither, Python itself refuses to connect. Extensions that connect themselves are
not held back.
"""

from __future__ import annotations

import ctypes
import errno
import ipaddress
import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from headgate.task import landlock

NAMESPACE, PORTS, PYTHON = "namespace", "ports", "python"
"""The kinds of fence: a namespace with only a loopback device; Landlock, which knows TCP ports;
Python itself.
"""
_WORKERS_PORTS = range(15_000, 65_536)
"""TCP ports at which a job's workers connect. Without a namespace they are allowed."""
_KINDS = (("user", 0x1000_0000), ("net", 0x4000_0000))
"""Namespaces in the order in which they are entered, with their flags from linux/sched.h."""
_CONNECT_TCP, _TO_PORT = 1 << 1, 2
_ABI = 4
"""The first version of Landlock with rules for TCP."""
_NAMES = frozenset({"socket.getaddrinfo", "socket.gethostbyname"})
_ADDRESSES = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
"""Audit events that resolve a host name, and those that connect to an address."""
_OWN_NAMES = frozenset({"", "localhost", "localhost.localdomain", "ip6-localhost"})
_LISTENING = "0A"
_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")


class _NetworkRules(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64)]


class _Port(ctypes.Structure):
    _fields_ = [("allowed", ctypes.c_uint64), ("port", ctypes.c_uint64)]


def shut(namespaces: str, tried: Callable[[str], None], sockets: Sequence[str]) -> str:
    """Let this process connect only to itself and its job from now on.

    Args:
        namespaces: Folder of the namespaces to enter (`/proc/PID/ns`); empty: none.
        tried: Called with each other address that Python tries to reach: `host`, `host:port`, or
            the path of a socket.
        sockets: Folders and files of the Unix sockets that it may connect to.

    Returns:
        The kind of fence: `NAMESPACE`, `PORTS` or `PYTHON`.
    """
    held = PYTHON
    with suppress(OSError, AttributeError):
        if namespaces:
            _enter(namespaces)
            held = NAMESPACE
    if held == PYTHON:
        with suppress(OSError, AttributeError):
            _restrict()
            held = PORTS
    within = tuple(os.path.realpath(path).rstrip("/") + "/" for path in sockets)
    own = _OWN_NAMES | {socket.gethostname()}

    def seen(event: str, given: tuple[object, ...]) -> None:
        if event in _NAMES:
            name = _text(given[0])
            # an address is reported later, with its port
            if name not in own and _address(name) is None:
                tried(name)
        elif (
            event in _ADDRESSES
            and len(given) > 1
            and (place := _outside_destination(given[1], own, within))
        ):
            tried(place)
            raise OSError(
                errno.ENETUNREACH, "a verification keeps a script from the network", place
            )
        elif event == "socket.connect" and held == NAMESPACE and (place := _silent_port(given[1])):
            # a program of this machine outside of the namespace; the kernel refuses the connection
            tried(place)

    sys.addaudithook(seen)
    return held


def _outside_destination(address: object, own: frozenset[str], within: Sequence[str]) -> str:
    """The destination of an address outside of this process and its job; empty if it is inside."""
    if isinstance(address, (str, bytes)):
        path = os.fsdecode(address)
        if not path or path[0] == "\0" or f"{os.path.realpath(path)}/".startswith(tuple(within)):
            return ""
        return path
    if isinstance(address, tuple) and len(address) >= 2:
        host = _text(address[0])
        return "" if host in own or _is_own(host) else f"{host}:{address[1]}"
    return ""


def _silent_port(address: object) -> str:
    """A loopback port at which no process of this namespace listens; empty for any other
    address.
    """
    if not isinstance(address, tuple) or len(address) < 2 or not isinstance(address[1], int):
        return ""
    ports = set[int]()
    for table in _TABLES:
        with suppress(OSError), open(table, encoding="ascii") as file:
            rows = [line.split() for line in file.readlines()[1:]]
            ports.update(int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == _LISTENING)
    return "" if address[1] in ports else f"{_text(address[0])}:{address[1]}"


def _text(name: object) -> str:
    return (
        name.decode(errors="replace") if isinstance(name, (bytes, bytearray)) else str(name or "")
    )


def _is_own(host: str) -> bool:
    """Whether a host is a loopback address, or empty."""
    address = _address(host)
    return address is not None and (address.is_loopback or address.is_unspecified)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """A host's IP address; None if it is a name."""
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None


def _enter(namespaces: str) -> None:
    """
    Raises:
        OSError: The namespaces cannot be entered.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    for name, kind in _KINDS:
        file = os.open(f"{namespaces}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(file).st_ino == os.stat(f"/proc/self/ns/{name}").st_ino:
                continue
            if libc.setns(file, kind):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        finally:
            os.close(file)


def _restrict() -> None:
    """
    Raises:
        OSError: The kernel does not support it.
    """
    if landlock.version() < _ABI:
        raise OSError(errno.EOPNOTSUPP, "no Landlock for TCP")

    def rules() -> Iterator[tuple[int, ctypes.Structure]]:
        return ((_TO_PORT, _Port(_CONNECT_TCP, port)) for port in _WORKERS_PORTS)

    landlock.restrict(_NetworkRules(0, _CONNECT_TCP), rules())
