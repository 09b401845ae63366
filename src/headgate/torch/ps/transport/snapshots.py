"""Writes the state that only a server knows to disk every few seconds. A restarted server continues
from it.

If the folder disappears with its node, a copy is brought to the run at intervals. The server
continues from the copy on another node.

A snapshot is written from the live tensors while they change, so each number is from some moment of
the writing. Training does not wait, and no memory is copied. If workers do not wait for each other,
no moment is better than another.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from headgate.torch.ps.transport.payload import PayloadError, octets, pack, unpack

EVERY_SECONDS = 10.0
VARIABLE = "HEADGATE_SNAPSHOT_SECONDS"
"""Environment variable with another interval, in seconds."""
BROUGHT_BYTES_PER_SECOND = 1.25e6
"""Highest rate of copies: 1 % of a network of 1 Gbit/s, which training needs itself."""
_MAGIC = b"headgate server 3\n"
_HEAD = struct.Struct("<QQQ")
_END = struct.Struct("<QI")
_PIECE = 1 << 20


class SnapshotError(Exception):
    """A snapshot could not be written or read."""


def interval() -> float:
    try:
        return max(0.1, float(os.environ.get(VARIABLE, "")))
    except ValueError:
        return EVERY_SECONDS


def copy_of(path: Path) -> Path:
    """Path of the copy of a snapshot that is brought to the run."""
    return path.with_suffix(".copy")


def former_of(path: Path) -> Path:
    """Path of the previous snapshot, used if this one is damaged."""
    return path.with_suffix(".former")


def write(path: Path, text: bytes, tensors: list[Any]) -> int:
    """Write what `pack` returned, atomically. The previous snapshot is kept. Returns the bytes.

    Raises:
        SnapshotError: It could not be written. The previous one is untouched.
    """
    partial = _partial(path)
    # At the beginning and the end, so that a reader of parts can detect that another file has
    # replaced this one.
    stamp = time.time_ns()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            checksum = _put(file, _MAGIC + _HEAD.pack(stamp, len(text), len(tensors)) + text, 0)
            for tensor in tensors:
                content = memoryview(octets(tensor)).cast("B")
                checksum = _put(file, struct.pack("<Q", len(content)), checksum)
                for begin in range(0, len(content), _PIECE):
                    # A copy, because the checksum has to be of the numbers that are written, which
                    # change meanwhile.
                    checksum = _put(file, bytes(content[begin : begin + _PIECE]), checksum)
            file.write(_END.pack(stamp, checksum))
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, former_of(path))
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise SnapshotError(f"{path} could not be written: {error.strerror}") from error
    return size


def _put(file: BinaryIO, content: bytes, checksum: int) -> int:
    file.write(content)
    return zlib.crc32(content, checksum)


def read(path: Path) -> Any:
    """Read a snapshot. Its tensors are in the file until they are changed.

    Raises:
        SnapshotError: It does not exist, or cannot be read.
    """
    try:
        with open(path, "rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        view = memoryview(content)
        if view[: len(_MAGIC)] != _MAGIC:
            raise SnapshotError(f"{path} is no snapshot of this version of Headgate")
        at = len(_MAGIC)
        stamp, length, count = _HEAD.unpack_from(view, at)
        at += _HEAD.size
        text = bytes(view[at : at + length])
        at += length
        buffers = []
        for _ in range(count):
            (size,) = struct.unpack_from("<Q", view, at)
            buffers.append(view[at + 8 : at + 8 + size])
            at += 8 + size
        end, checksum = _END.unpack_from(view, at)
        if end != stamp:
            raise ValueError("another took its place while it was read")
        if zlib.crc32(view[:at]) != checksum:
            raise ValueError("it is damaged: its bytes are not what was written")
        return unpack(text, buffers)
    except (OSError, ValueError, struct.error, PayloadError) as error:
        raise SnapshotError(f"{path} cannot be read: {error}") from error


class Writer:
    """Writes one snapshot at a time, in its own thread.

    Args:
        path: Path of the snapshot.
        life: Which life of the server this is, from 1.
        failed: Called once with what went wrong, from the writing thread.
        away: Called with each copy and its bytes, from the writing thread; None: the folder stays,
            and needs no copies.
    """

    def __init__(
        self,
        path: Path,
        life: int,
        failed: Callable[[str], None],
        away: Callable[[Path, int], None] | None = None,
    ) -> None:
        self._path = path
        self._order = [life, 0]
        self._failed = failed
        self._away = away
        self._next_copy = 0.0
        self._told = False
        self._thread: threading.Thread | None = None

    def take(self, state: Any) -> bool:
        """Begin to write. Returns False while the previous snapshot is still being written."""
        if self._thread is not None and self._thread.is_alive():
            return False
        self._order[1] += 1
        text, tensors = pack({"at": time.time(), "order": list(self._order), "state": state})
        self._thread = threading.Thread(
            target=self._write, args=(text, tensors), name="headgate-snapshot", daemon=True
        )
        self._thread.start()
        return True

    def finish(self) -> None:
        """Wait for the end of writing, then remove the snapshot, because the job ended well."""
        if self._thread is not None:
            self._thread.join()
        self.remove()

    def remove(self) -> None:
        """Remove the snapshot, the previous one and the copy."""
        for path in (self._path, former_of(self._path), copy_of(self._path)):
            path.unlink(missing_ok=True)

    def _write(self, text: bytes, tensors: list[Any]) -> None:
        try:
            size = write(self._path, text, tensors)
            if self._away is not None and time.monotonic() >= self._next_copy:
                self._next_copy = time.monotonic() + size / BROUGHT_BYTES_PER_SECOND
                self._away(_copied(self._path), size)
        except SnapshotError as error:
            if not self._told:
                self._told = True
                self._failed(str(error))


def _copied(path: Path) -> Path:
    """Make a copy, which takes no space until the next snapshot replaces this one.

    Raises:
        SnapshotError: It cannot be made.
    """
    copy = copy_of(path)
    partial = _partial(copy)
    try:
        partial.unlink(missing_ok=True)
        os.link(path, partial)
        os.replace(partial, copy)
    except OSError as error:
        raise SnapshotError(f"{copy} could not be made: {error.strerror}") from error
    return copy


def _partial(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.partial")
