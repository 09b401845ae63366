"""Isolates a trial from networks: its tasks enter a namespace with only a loopback device."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET = 0x1000_0000, 0x4000_0000  # linux/sched.h
_SIOCSIFFLAGS, _SIOCSIFADDR = 0x8914, 0x8916  # linux/sockios.h
_UP = 1  # IFF_UP of linux/if.h
_FLAGS = struct.Struct("@16sH22x")  # struct ifreq: name, flags
_ADDRESS = struct.Struct("@16sHH4s16x")  # the same: name, family, port, address
_PATIENCE_SECONDS = 10.0


class Namespaces:
    """Namespaces for the tasks of a trial, while a process holds them.

    Args:
        pid: The process; None: the kernel allows no namespaces.
    """

    def __init__(self, pid: int | None) -> None:
        self._pid = pid
        self._seen = self._lost()

    @property
    def folder(self) -> str:
        """Their path for tasks; empty: there are none."""
        return f"/proc/{self._pid}/ns" if self._pid is not None else ""

    def tried(self) -> bool:
        """Whether a program in them has tried to reach another machine since the last call."""
        seen, self._seen = self._seen, self._lost()
        return self._seen > seen

    def _lost(self) -> int:
        """Number of packets without a route, and of UDP packets, as of DNS, to ports where nobody
        listens.
        """
        if self._pid is None:
            return 0
        counts: dict[tuple[str, str], int] = {}
        with suppress(OSError, ValueError):
            lines = Path(f"/proc/{self._pid}/net/snmp").read_text().splitlines()
            for names, values in zip(lines[::2], lines[1::2]):
                kind, *columns = names.split()
                counts.update(
                    ((kind, name), int(value)) for name, value in zip(columns, values.split()[1:])
                )
        return counts.get(("Ip:", "OutNoRoutes"), 0) + counts.get(("Udp:", "NoPorts"), 0)


@contextmanager
def apart() -> Iterator[Namespaces]:
    """Make namespaces for the tasks of a trial. They end with the context, or with this process."""
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # a Ctrl-C is none of its business
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        ready = bool(process.stdout.readline())
        yield Namespaces(process.pid if ready else None)
    finally:
        with suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_PATIENCE_SECONDS)
        process.kill()
        process.wait()


def _hold() -> None:
    """Make the namespaces, announce them, and hold them until standard input ends.

    Raises:
        OSError: The kernel allows none.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group, address = os.geteuid(), os.getegid(), _own_address()
    if libc.unshare(_CLONE_NEWNET):
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, _SIOCSIFFLAGS, _FLAGS.pack(b"lo", _UP))
        if address is not None:  # by which libraries reach this machine where they ask for its name
            with suppress(OSError):
                fcntl.ioctl(
                    asking, _SIOCSIFADDR, _ADDRESS.pack(b"lo:1", socket.AF_INET, 0, address)
                )
    print("ready", flush=True)
    sys.stdin.read()


def _own_address() -> bytes | None:
    """The address of this machine's name; None: loopback, or none."""
    try:
        address = socket.inet_aton(socket.gethostbyname(socket.gethostname()))
    except OSError:
        return None
    return None if address[0] in (0, 127) else address


if __name__ == "__main__":
    _hold()
