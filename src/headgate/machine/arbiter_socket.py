"""Where the arbiter of this machine listens, and whether it is root's."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path
from typing import NamedTuple

SOCKET = Path("/run/headgate/arbiter.sock")
VARIABLE = "HEADGATE_ARBITER"
"""Names another socket; empty: this machine has no arbiter."""
_ROOT = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class Peer(NamedTuple):
    """Who is at the other end of a connection, as of its beginning."""

    pid: int
    uid: int
    gid: int


def path() -> Path | None:
    """The arbiter's socket, whether it is there or not; None: there is to be none."""
    named = os.environ.get(VARIABLE)
    if named is None:
        return SOCKET
    return Path(named) if named else None


def is_there(path: Path | None) -> bool:
    """Whether root has made a socket here, in a folder that only root writes."""
    try:
        if path is None:
            return False
        folder, made = path.parent.stat(), path.lstat()
    except OSError:
        return False
    is_roots = folder.st_uid == made.st_uid == _ROOT and not folder.st_mode & _OTHERS_WRITE
    return is_roots and stat.S_ISSOCK(made.st_mode)


def is_shared() -> bool:
    """Whether an arbiter divides this machine."""
    return is_there(path())


def peer(connection: socket.socket) -> Peer:
    """Who is at the other end, as the kernel knows."""
    form = "3i"
    size = struct.calcsize(form)
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    return Peer(*struct.unpack(form, credentials))


def is_roots(connection: socket.socket) -> bool:
    """Whether root listens at the other end."""
    return peer(connection).uid == _ROOT
