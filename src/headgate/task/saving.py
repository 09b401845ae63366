"""When checkpoints are saved, what is told of them, and whether one is whole."""

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

SHARE = 0.005
"""Most of the time that unasked checkpoints may take."""
KEPT = 2
"""Checkpoints that stay; older ones are removed."""
FILES = "files.json"
"""In a checkpoint that is a folder: bytes and CRC-32 of each of its other files."""
_PIECE = 1 << 20
_SEAL = b"headgate crc32 "
_NO_COMMENT = b"\0\0"  # how an archive without a comment ends: the comment's length
_FIRST_SECONDS, _FIRST_RATE = 0.02, 200e6
"""What a first checkpoint is taken to cost: as on a slow disk."""

T = TypeVar("T")
Write = Callable[[Path], "tuple[Path, int]"]
"""Writes a checkpoint into a folder; its path and its size in bytes."""


class CheckpointError(Exception):
    """A checkpoint could not be saved; training goes on."""


class ResumeError(RuntimeError):
    """A checkpoint does not fit the script that is to go on from it, or cannot be read."""


class Saver:
    """Saves checkpoints into the job's folder; a failure is told, not raised.

    Args:
        folder: Where to; None: nowhere, and saving fails.
        send: Takes a message for the engine.
        clock: Seconds, never going back.
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
        """Whether so much time has passed that saving `size` bytes now takes less than `SHARE` of
        it.
        """
        if self._folder is None:
            return False
        seconds = _FIRST_SECONDS + size / _FIRST_RATE if self._seconds is None else self._seconds
        return (self._clock() - self._saved_at) * SHARE >= seconds * (1 - SHARE)

    def save(self, why: str, step: int, place: Mapping[str, Any], write: Write) -> bool:
        """Save a checkpoint and tell the engine; whether it was saved.

        Args:
            why: `epoch`, `request`, `stop`, `orphaned` or `join`.
            step: Steps so far.
            place: Where the script is; `epoch` and `position` are told to the engine.
            write: Does it; whatever it raises is told.
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
    """What `read` makes of the checkpoint that a task is to go on from.

    Raises:
        ResumeError: It is not whole, or does not fit. If it is not whole the engine is told, and
            goes on from another.
    """
    if (reason := damage(Path(path))) is not None:
        send({"type": "checkpoint_damaged", "path": path, "error": reason})
        raise ResumeError(f"checkpoint {path} {reason}; resume from another one")
    return read(path)


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint that is not whole, as the end of a sentence; None where it is
    what was written.

    It is read once, at the speed of the disk or about a second a GB, and nothing in it is run. An
    archive has a CRC-32 of each of its parts, and one of their list in its comment; a folder has
    `FILES`. What an earlier version wrote lacks the last two.
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
    """The comment of an archive that seals its list of parts, where its comment now has that
    length.
    """
    with zipfile.ZipFile(path) as archive, open(path, "rb") as file:
        file.seek(archive.start_dir)
        listed = file.read()[: -len(_NO_COMMENT) - length or None]
    return _SEAL + b"%08x" % zlib.crc32(listed)


def _close(path: Path) -> None:
    """Give a checkpoint what `damage` compares it with, besides what its format has."""
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
    """Where to write a checkpoint, a file or a folder. It then takes the place of `path`, whole or
    not at all, and all but the newest two of the folder are removed.

    Raises:
        CheckpointError: It could not be written; what was there before is untouched.
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
        os.replace(partial, path)
        _sync(path.parent)
        _prune(path)
    except Exception as error:
        # torch reports a full disk as a RuntimeError from its archive writer, with the system's
        # error as context.
        system = not isinstance(error, OSError) and isinstance(error.__context__, OSError)
        raise CheckpointError(
            f"{path} could not be written: {error.__context__ if system else error}"
        ) from error
    finally:
        with suppress(OSError):
            _remove(partial)


def size(path: Path) -> int:
    """Bytes of a checkpoint."""
    return sum(file.stat().st_size for file in _files(path))


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _prune(latest: Path) -> None:
    """Remove all but the last checkpoints of a folder, files or folders called `step-...`. `latest`
    was saved just now, and its date says so from now on: the machine's clock may have been set back
    since the one before.
    """
    folder = latest.parent
    dates = {path: path.stat().st_mtime_ns for path in folder.glob("step-*")}
    newest = max((date for path, date in dates.items() if path != latest), default=0)
    if dates[latest] <= newest:
        dates[latest] = newest + 1
        os.utime(latest, ns=(newest + 1, newest + 1))
    saved = sorted(dates, key=dates.__getitem__)
    # What is half written now was left by an attempt that was killed.
    for old in [*saved[:-KEPT], *folder.glob(".step-*.partial")]:
        _remove(old)


def _sync(path: Path) -> None:
    """Make a file, or a rename in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
