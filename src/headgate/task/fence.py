"""Confines a process's writes to folders: by the kernel (Landlock), for it and all its child
processes.

Without Landlock, Python itself refuses to open other files for writing. Extensions that open files
themselves are not confined.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from headgate.task import landlock

_BENEATH = 1
_TO_FILES = 1 << 1
_WRITES = _TO_FILES | sum(1 << bit for bit in range(4, 13))
"""Access rights: write to, make and remove files and folders of every kind."""
_MOVES, _TRUNCATES = 1 << 13, 1 << 14
_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC
_OF_PATHS = {
    "os.remove": 1,
    "os.rename": 2,
    "os.rmdir": 1,
    "os.mkdir": 1,
    "os.truncate": 1,
    "os.symlink": 2,
}
"""Audit events that change the file system, and the number of their arguments that are paths."""


class _Ruleset(ctypes.Structure):
    _fields_ = [("handled", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def shut(folders: Sequence[str], outside: Callable[[str], None]) -> bool:
    """Refuse all writing outside of `folders` from now on.

    Args:
        folders: Folders that may be written. Missing ones are left out.
        outside: Called with each path that Python tried to write outside of them.

    Returns:
        Whether the kernel enforces it.
    """
    roots = [os.path.realpath(folder) for folder in folders if os.path.exists(folder)]
    by_kernel = False
    # the kernel has no Landlock, or a container forbids it
    with suppress(OSError, AttributeError):
        _restrict(roots)
        by_kernel = True
    within = tuple(root.rstrip("/") + "/" for root in roots)

    def seen(event: str, given: tuple[object, ...]) -> None:
        for path in _written(event, given):
            with suppress(TypeError, ValueError):
                name = os.path.realpath(os.fsdecode(path))  # type: ignore[arg-type]
                if not f"{name}/".startswith(within):
                    outside(name)
                    if not by_kernel:
                        raise PermissionError(
                            13, "a verification keeps what is written away from other files", name
                        )

    sys.addaudithook(seen)
    return by_kernel


def is_there() -> bool:
    """Whether the kernel has Landlock."""
    return landlock.version() > 0


def _written(event: str, given: tuple[object, ...]) -> tuple[object, ...]:
    """The paths that an audited event is about to change."""
    if event == "open":
        path, _, flags = given
        writes = isinstance(flags, int) and bool(flags & _CHANGES)
        return (path,) if writes and isinstance(path, (str, bytes)) else ()
    return given[: _OF_PATHS.get(event, 0)]


def _restrict(roots: Sequence[str]) -> None:
    """
    Raises:
        OSError: The kernel does not support it.
    """
    version = landlock.version()
    rights = _WRITES | (_MOVES if version >= 2 else 0) | (_TRUNCATES if version >= 3 else 0)

    def rules() -> Iterator[tuple[int, ctypes.Structure]]:
        for root in roots:
            parent = os.open(root, os.O_PATH | os.O_CLOEXEC)
            try:
                allowed = rights if os.path.isdir(root) else rights & (_TO_FILES | _TRUNCATES)
                yield _BENEATH, _Beneath(allowed, parent)
            finally:
                os.close(parent)

    landlock.restrict(_Ruleset(rights), rules())
