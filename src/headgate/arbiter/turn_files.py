"""Files by which jobs of several users take turns on a GPU. Only users with a grant open them."""

from __future__ import annotations

import os
import struct
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

TURNS = "turns"
"""Their folder, beside the arbiter's socket; that of the jobs of one user alone is in the hub's
folder.
"""
_ACL = "system.posix_acl_access"
_OWNER, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_READ_WRITE, _NOBODY = 6, 0xFFFFFFFF


class TurnFiles:
    """One file for each GPU, which a task locks while it computes.

    Args:
        folder: Their folder; all files in it are the arbiter's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._members: dict[int, frozenset[int]] = {}

    def let(self, gpu: int, uids: Collection[int]) -> None:
        """Let these users open the file of a GPU, and nobody else. What is open stays open.

        Raises:
            OSError: The file system has no access lists, or is full.
        """
        members = frozenset(uids)
        if self._members.get(gpu) == members:
            return
        self._folder.mkdir(mode=0o755, exist_ok=True)
        file = os.open(self._folder / f"gpu-{gpu}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.setxattr(file, _ACL, _access_list(members))
        finally:
            os.close(file)
        self._members[gpu] = members

    def remove(self) -> None:
        """Remove all files."""
        with suppress(FileNotFoundError):
            for path in self._folder.iterdir():
                path.unlink()
            self._folder.rmdir()


def _access_list(uids: Collection[int]) -> bytes:
    """An access list as the kernel stores it (linux/posix_acl_xattr.h): its version, then entries
    of kind, rights and user, in this order.
    """
    entries = [
        (_OWNER, _READ_WRITE, _NOBODY),
        *((_USER, _READ_WRITE, uid) for uid in sorted(uids)),
        (_GROUP, 0, _NOBODY),
        (_MASK, _READ_WRITE, _NOBODY),
        (_OTHERS, 0, _NOBODY),
    ]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
