"""Decides when to save checkpoints, reports them, and checks that they are intact."""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from headgate.task.file_writes import file_writes

SHARE = 0.005
"""Largest fraction of time that automatic checkpoints may take."""
KEPT = 2
"""Number of checkpoints to keep. Older ones are removed."""
FILES = "files.json"
"""In a checkpoint folder, the file with size and CRC-32 of all other files."""
_PIECE = 1 << 20
_SEAL = b"headgate crc32 "
_NO_COMMENT = b"\0\0"  # how an archive without a comment ends: the comment's length
_FIRST_SECONDS, _FIRST_RATE = 0.02, 200e6
"""Assumed cost of the first checkpoint, as on a slow disk: seconds, and bytes per second."""

T = TypeVar("T")
Write = Callable[[Path], "tuple[Path, int]"]
"""Writes a checkpoint into a folder. Returns its path and its size in bytes."""


class CheckpointError(Exception):
    """A checkpoint could not be saved. Training goes on."""


class ResumeError(RuntimeError):
    """A checkpoint does not fit the script that resumes from it, or cannot be read."""


@contextmanager
def reading(path: str, *damage: type[Exception]) -> Iterator[None]:
    """Report what is wrong with a checkpoint while it is read.

    Args:
        path: The checkpoint.
        damage: Errors that mean that it cannot be read.

    Raises:
        ResumeError: One of them was raised.
    """
    try:
        yield
    except damage as error:
        first = str(error).partition("\n")[0]
        raise ResumeError(
            f"checkpoint {path} cannot be read: {first}; resume from another one"
        ) from error


def check_layout(path: str, layout: object, expected: int) -> None:
    """
    Raises:
        ResumeError: A file is no checkpoint of this layout.
    """
    if layout != expected:
        raise ResumeError(
            f"{path} is not a checkpoint of this version of Headgate; resume from another one"
        )


class Saver:
    """Saves checkpoints into the job's folder. Failures are reported, not raised.

    Args:
        folder: The folder; None: saving fails.
        send: Takes a message for the engine.
        clock: Seconds of a monotonic clock.
    """

    def __init__(
        self,
        folder: str | None,
        send: Callable[[Mapping[str, object]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._send = send
        self._clock = clock
        self._saved_at = clock()
        self._seconds: float | None = None

    def due(self, size: int) -> bool:
        """Whether saving `size` bytes now would take less than `SHARE` of the time since the last
        checkpoint.
        """
        if self._folder is None:
            return False
        seconds = _FIRST_SECONDS + size / _FIRST_RATE if self._seconds is None else self._seconds
        return (self._clock() - self._saved_at) * SHARE >= seconds * (1 - SHARE)

    def save(self, why: str, step: int, place: Mapping[str, Any], write: Write) -> bool:
        """Save a checkpoint and tell the engine. Returns whether it was saved.

        Args:
            why: `epoch`, `request`, `stop`, `orphaned` or `join`.
            step: Steps so far.
            place: The script's position. The engine is told `epoch` and `position`.
            write: Writes the checkpoint. Its exceptions are reported.
        """
        begun = self._clock()
        try:
            if self._folder is None:
                raise OSError("no folder for checkpoints was given in HEADGATE_CHECKPOINTS")
            path, size = write(Path(self._folder))
        except Exception as error:  # noqa: BLE001 - whatever a state may raise, training goes on
            self._send({"type": "checkpoint_failed", "error": str(error), "why": why})
            return False
        finally:
            self._saved_at = self._clock()
            self._seconds = self._saved_at - begun
        self._send(
            {
                "type": "checkpoint",
                "path": str(path),
                "step": step,
                "epoch": place["epoch"] or 0,
                "position": place["position"],
                "bytes": size,
                "seconds": self._seconds,
                "why": why,
                **({"own_states": True} if place.get("own_states") else {}),
            }
        )
        return True


def restored(
    path: str, read: Callable[[str], T], send: Callable[[Mapping[str, object]], None]
) -> T:
    """Read the checkpoint that a task resumes from, by `read`.

    Raises:
        ResumeError: The checkpoint is damaged or does not fit. The engine is told of a damaged one,
            and resumes from another.
    """
    if (reason := damage(Path(path))) is not None:
        send({"type": "checkpoint_damaged", "path": path, "error": reason})
        raise ResumeError(f"checkpoint {path} {reason}; resume from another one")
    return read(path)


def damage(path: Path) -> str | None:
    """What is wrong with a damaged checkpoint, as the end of a sentence; None if it is intact.

    The check reads the checkpoint once, at the speed of the disk or about a second per GB, and runs
    nothing in it. An archive has a CRC-32 of each of its parts, and one of their list in its
    comment. A folder has `FILES`. Checkpoints of earlier versions lack the last two.
    """
    try:
        if path.is_dir():
            return _damage_of_folder(path)
        if path.stat().st_size == 0:
            return "is empty"
        with zipfile.ZipFile(path) as archive:
            sealed = archive.comment
            part = archive.testzip() if archive.namelist() else "list of parts"
        if part is None and sealed.startswith(_SEAL) and sealed != _seal(path, len(sealed)):
            part = "list of parts"
        return f"is damaged: its {part} is not what was written" if part is not None else None
    except FileNotFoundError:
        return "is gone"
    except zipfile.BadZipFile as error:
        if "not a zip file" in str(error):  # the end of an archive is what shows that it is one
            return "is cut short, or is no checkpoint"
        return f"is damaged: {error}"
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"
    except Exception as error:  # noqa: BLE001 - whatever wrong bytes may lead to
        return f"is damaged: {error!r}"


def _seal(path: Path, length: int) -> bytes:
    """The comment that seals an archive's list of parts. `length` is the length of its present
    comment.
    """
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        file.seek(archive.start_dir)
        listed = file.read()[: -len(_NO_COMMENT) - length or None]
    return _SEAL + b"%08x" % zlib.crc32(listed)


def _close(path: Path) -> None:
    """Seal a checkpoint: add the checksums that `damage` needs and its format lacks."""
    if path.is_dir():
        files = {
            member.relative_to(path).as_posix(): [member.stat().st_size, _checksum(member)]
            for member in _files(path)
        }
        (path / FILES).write_text(json.dumps(files))
    elif zipfile.is_zipfile(path):
        seal = _seal(path, 0)
        with open(path, "r+b") as file:
            file.seek(-len(_NO_COMMENT), os.SEEK_END)
            if file.read() == _NO_COMMENT:
                file.seek(-len(_NO_COMMENT), os.SEEK_END)
                file.write(len(seal).to_bytes(2, "little") + seal)


def _damage_of_folder(folder: Path) -> str | None:
    if not any(folder.iterdir()):
        return "is empty"
    try:
        wanted = json.loads((folder / FILES).read_bytes())
    except FileNotFoundError:
        return None
    for name, (size, checksum) in wanted.items():
        part = folder / name
        if not part.is_file():
            return f"is damaged: its part {name} is gone"
        if part.stat().st_size != size or _checksum(part) != checksum:
            return f"is damaged: its part {name} is not what was written"
    return None


def _checksum(path: Path) -> int:
    checksum = 0
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            checksum = zlib.crc32(piece, checksum)
    return checksum


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write a checkpoint, a file or a folder. It then replaces `path` atomically, and all
    but the newest two of the folder are removed.

    Raises:
        CheckpointError: The checkpoint could not be written. Earlier ones are untouched.
    """
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(partial)
        yield partial
        _close(partial)
        for written in _files(partial):
            _sync(written)
        if path.is_dir():
            _remove(path)
        file_writes.leave_out(str(path))
        os.replace(partial, path)
        _sync(path.parent)
        _prune(path)
    except Exception as error:
        # torch reports a full disk as a RuntimeError of its archive writer, with the system's error
        # as context.
        system = not isinstance(error, OSError) and isinstance(error.__context__, OSError)
        raise CheckpointError(
            f"{path} could not be written: {error.__context__ if system else error}"
        ) from error
    finally:
        with suppress(OSError):
            _remove(partial)


def size(path: Path) -> int:
    """Size of a checkpoint, in bytes."""
    return sum(file.stat().st_size for file in _files(path))


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _prune(latest: Path) -> None:
    """Remove all but the last `step-...` checkpoints of a folder.

    `latest` was just saved. Its date is set past all others, in case the machine's clock was set
    back.
    """
    folder = latest.parent
    dates = {path: path.stat().st_mtime_ns for path in folder.glob("step-*")}
    newest = max((date for path, date in dates.items() if path != latest), default=0)
    if dates[latest] <= newest:
        dates[latest] = newest + 1
        os.utime(latest, ns=(newest + 1, newest + 1))
    saved = sorted(dates, key=dates.__getitem__)
    # Partial files were left by an attempt that was killed.
    for old in [*saved[:-KEPT], *folder.glob(".step-*.partial")]:
        _remove(old)


def _sync(path: Path) -> None:
    """Make a file, or a rename in a folder, survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
