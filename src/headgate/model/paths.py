"""Resolve paths, open user files, and check who else can change them."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import select
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

_MOST_PARTS = 10_000
"""Most parts of a path, including those of its links."""
PIPE_SECONDS = 10.0
"""Most seconds that a pipe may be silent before the first byte: a named pipe may never get a
writer.
"""


def is_readable(fd: int, seconds: float) -> bool:
    """Wait until a descriptor can be read: a pipe, a socket, a pidfd; false after `seconds`."""
    waiting = select.poll()  # `select.select` takes no descriptor above 1023
    waiting.register(fd, select.POLLIN)
    return bool(waiting.poll(seconds * 1000))


def opened(
    path: str | Path, encoding: str = "utf-8", errors: str = "strict", newline: str | None = None
) -> TextIO:
    """Open a user's file, or a pipe with a writer, to read it to its end. Devices are refused: some
    have no end.

    Raises:
        OSError: The file cannot be read, or is a device or folder; `strerror` says why.
        ValueError: The path contains a NUL.
    """
    # opening a pipe without a writer would block
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        kind = stat.S_IFMT(os.fstat(fd).st_mode)
        if kind == stat.S_IFDIR:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if kind == stat.S_IFIFO and not is_readable(fd, PIPE_SECONDS):
            raise OSError(
                errno.ETIMEDOUT, f"nobody has written into this pipe for {PIPE_SECONDS:g} s"
            )
        if kind not in (stat.S_IFREG, stat.S_IFIFO):
            raise OSError(errno.EINVAL, "it is a device; expected a file")
        os.set_blocking(fd, True)
        return open(fd, encoding=encoding, errors=errors, newline=newline)
    except BaseException:
        os.close(fd)
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: readers see the old text or the new one.

    Raises:
        OSError: It cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(text)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


def remove_unfinished(folder: Path) -> None:
    """Remove the files of a folder that processes were killed in writing (`write_whole`)."""
    for path in folder.glob(".*"):
        pid = path.name.rpartition(".")[2]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            path.unlink(missing_ok=True)


def secure(*paths: Path) -> None:
    """Have files, and the names in folders, outlast a power cut. Takes as long as the disk.

    Raises:
        OSError: The disk does not tell.
    """
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def below(folder: str | Path, path: str | Path) -> str | None:
    """A path relative to a folder, with `..` and links resolved; None if it is not inside the
    folder.
    """
    base, resolved = os.path.realpath(folder), os.path.realpath(path)
    return (
        os.path.relpath(resolved, base)
        if resolved.startswith(base.rstrip(os.sep) + os.sep)
        else None
    )


def exposure(path: Path) -> str | None:
    """How other users could change the files of a folder; None: they cannot.

    They could write to it or to a folder in it, or replace it or a folder above it. As ssh does for
    its keys, folders that only root or this user can write count as safe. So do sticky folders
    (`/tmp`), for the files in them.

    Raises:
        OSError: The folder does not exist.
    """
    inside: list[Path] = []
    if path.stat().st_mode & (stat.S_IXGRP | stat.S_IXOTH):  # else nobody else gets to its parts
        inside = [entry for entry in path.iterdir() if entry.is_dir() and not entry.is_symlink()]
    home = path.resolve()
    for path_on_way in dict.fromkeys((*inside, *_way(path))):
        facts = os.lstat(path_on_way)
        if facts.st_uid not in (0, os.geteuid()) and not _is_nobody(facts.st_uid):
            return f"{path_on_way} belongs to user {user_name(facts.st_uid)}"
        can_write = "" if stat.S_ISLNK(facts.st_mode) else _who_writes(facts)
        shared = bool(facts.st_mode & stat.S_ISVTX) and path_on_way not in (home, *inside)
        if can_write and not shared:
            mode = f"{stat.S_IMODE(facts.st_mode):04o}"
            return f"{path_on_way} can be written by {can_write} (mode {mode})"
    return None


def _way(path: Path) -> Iterator[Path]:
    """Every folder and link on the way to a path: whoever can write their parent could replace
    them.

    Raises:
        OSError: Links form a loop.
    """
    at, left = Path(os.sep), [*reversed(path.absolute().parts)]
    for _ in range(_MOST_PARTS):
        if not left:
            return
        # `..` of the root is the root
        step = at.parent if (part := left.pop()) == os.pardir else at / part
        yield step
        if step.is_symlink():
            left += reversed(Path(os.readlink(step)).parts)
        else:
            at = step
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _who_writes(facts: os.stat_result) -> str:
    if facts.st_mode & stat.S_IWOTH:
        return "everybody"
    if facts.st_mode & stat.S_IWGRP and not _is_private(facts.st_gid):
        return f"group {_group(facts.st_gid)}"
    return ""


def _is_private(group: int) -> bool:
    """Whether this user alone is in a group, as on systems with one group for each user."""
    try:
        user, group_entry = pwd.getpwuid(os.geteuid()), grp.getgrgid(group)
    except KeyError:
        return False
    return (
        group == user.pw_gid
        and group_entry.gr_name == user.pw_name
        and set(group_entry.gr_mem) <= {user.pw_name}
    )


def _is_nobody(user: int) -> bool:
    """Whether a user id is the one that stands for owners unknown in this user namespace, such as
    the machine's root.
    """
    with open("/proc/sys/kernel/overflowuid") as overflow, open("/proc/self/uid_map") as known:
        return user == int(overflow.read()) and known.read().split() != ["0", "0", "4294967295"]


def user_name(user: int) -> str:
    """The name of a user; the number if it has no name."""
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _group(group: int) -> str:
    try:
        return grp.getgrgid(group).gr_name
    except KeyError:
        return str(group)
