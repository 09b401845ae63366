"""Mounting, in a guest. The file is loaded by itself, without the package around it."""

from __future__ import annotations

import ctypes
import os

REMOUNT, BIND, READ_ONLY, NOSUID, NODEV = 32, 4096, 1, 2, 4  # linux/mount.h
LIBC = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int = 0, data: bytes | None = None) -> None:
    """Mount a file system.

    Raises:
        OSError: The kernel refuses. The message names source and target.
    """
    if (
        LIBC.mount(source.encode(), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data)
        != 0
    ):
        number = ctypes.get_errno()
        if (kind, number) != ("devtmpfs", 16):  # the kernel has mounted it already
            raise OSError(number, f"cannot mount {source} on {target}: {os.strerror(number)}")
