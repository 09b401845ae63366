"""Reads the traffic of a network namespace from inside it."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_SIOCGIFFLAGS = 0x8913  # linux/sockios.h
_RUNNING = 0x40  # IFF_RUNNING of linux/if.h: up, and with a link
_SIOCETHTOOL = 0x8946  # linux/sockios.h
_ETHTOOL_GDRVINFO = 3  # linux/ethtool.h
# struct ethtool_drvinfo: command, driver, and unused fields
_DRIVER_INFO = struct.Struct("=I32s160x")
_REQUEST = struct.Struct("@16sP16x")  # struct ifreq: name, pointer to the data
_FLAGS = struct.Struct("@16sH22x")  # struct ifreq: name, flags

T = TypeVar("T")

_LIBC = ctypes.CDLL(None, use_errno=True)
_STACKED = frozenset({b"vxlan", b"geneve", b"bridge", b"bonding", b"802.1Q VLAN Support"})
"""Drivers of interfaces whose bytes also pass another interface."""


@dataclass(frozen=True, slots=True)
class Inside:
    """A network namespace at one moment.

    Args:
        inode: Distinguishes it from a later one with the same name.
        table: Its /proc/net/dev.
        snmp: Its /proc/net/snmp.
        stacked: Names of interfaces whose bytes also pass another one.
    """

    inode: int
    table: bytes
    snmp: bytes
    stacked: frozenset[bytes]


def look(namespace: str) -> Inside:
    """Read the network namespace at a path. Needs root. Takes a tenth of a millisecond.

    Raises:
        OSError: It does not exist, or may not be entered.
    """
    return inside(namespace, _look)


def linked(namespace: str) -> bool:
    """Whether an interface of the network namespace at a path has a link. Needs root.

    Raises:
        OSError: It does not exist, or may not be entered.
    """
    return inside(namespace, _linked)


def inside(namespace: str, act: Callable[[int], T]) -> T:
    """The result of `act`, called inside a namespace with the namespace's inode.

    A new thread enters it and ends there. A thread or open file that stayed would keep the
    namespace alive after the node, and with it the far ends of its links.
    """
    results: list[T] = []
    failed: list[OSError] = []

    def enter() -> None:
        try:
            results.append(act(_enter(namespace)))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=enter, name="namespace", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return results[0]


def _enter(namespace: str) -> int:
    fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _LIBC.setns(fd, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), namespace)
        return os.fstat(fd).st_ino
    finally:
        os.close(fd)


def _look(inode: int) -> Inside:
    with open("/proc/thread-self/net/dev", "rb") as file:
        table = file.read()
    with open("/proc/thread-self/net/snmp", "rb") as file:
        snmp = file.read()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        names = (name.encode() for _, name in socket.if_nameindex())
        return Inside(
            inode,
            table,
            snmp,
            frozenset(name for name in names if _driver(asking, name) in _STACKED),
        )


def _linked(_: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        names = [name.encode() for _, name in socket.if_nameindex() if name != "lo"]
        return any(_runs(asking, name) for name in names if _driver(asking, name) not in _STACKED)


def _runs(asking: socket.socket, name: bytes) -> bool:
    data = fcntl.ioctl(asking, _SIOCGIFFLAGS, _FLAGS.pack(name, 0))
    return bool(_FLAGS.unpack(data)[1] & _RUNNING)


def _driver(asking: socket.socket, name: bytes) -> bytes:
    data = array("B", _DRIVER_INFO.pack(_ETHTOOL_GDRVINFO, b""))
    try:
        fcntl.ioctl(asking, _SIOCETHTOOL, _REQUEST.pack(name, data.buffer_info()[0]))
    except OSError:  # loopback has no driver
        return b""
    driver: bytes = _DRIVER_INFO.unpack(data)[1]
    return driver.rstrip(b"\0")
