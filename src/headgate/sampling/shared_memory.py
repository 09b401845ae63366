"""Shared memory left behind by a task: files in /dev/shm that no process uses any more."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

FOLDER = Path("/dev/shm")
_CLOCK_SECONDS = 0.02
"""Resolution of the kernel's file times, one tick."""


class LeftFile(NamedTuple):
    """A file in /dev/shm; `size` in bytes."""

    name: str
    size: int


def left_since(began: float, folder: Path = FOLDER) -> list[LeftFile]:
    """This user's files made since `began` that no process has open or mapped.

    Args:
        began: Seconds since the epoch.
    """
    made: dict[int, LeftFile] = {}
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                is_new = max(status.st_ctime, status.st_mtime) >= began - _CLOCK_SECONDS
                if (
                    is_new
                    and status.st_uid == os.geteuid()
                    and entry.is_file(follow_symlinks=False)
                ):
                    made[status.st_ino] = LeftFile(entry.name, status.st_blocks * 512)
    if made:
        for used in _in_use(folder):
            made.pop(used, None)
    return sorted(made.values())


def _in_use(folder: Path) -> set[int]:
    """Inodes of a folder's files that any process visible to this user has open or mapped."""
    used: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            lines = (process / "maps").read_text(errors="replace").splitlines()
            mapped = (line.split(maxsplit=5) for line in lines if f"{folder}/" in line)
            used.update(int(inode) for _, _, _, _, inode, _ in mapped)
        with suppress(OSError):
            for link in os.scandir(process / "fd"):
                with suppress(OSError):
                    if os.readlink(link.path).startswith(f"{folder}/"):
                        used.add(os.stat(link.path).st_ino)
    return used
