"""When checkpoints are saved, and what is told of them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

SHARE = 0.005
"""Most of the time that unasked checkpoints may take."""
KEPT = 2
"""Checkpoints that stay; older ones are removed."""
_FIRST_SECONDS, _FIRST_RATE = 0.02, 200e6
"""What a first checkpoint is taken to cost: as on a slow disk."""

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
        """Whether so much time has passed that saving `size` bytes now takes less than `SHARE` of it."""
        if self._folder is None:
            return False
        seconds = _FIRST_SECONDS + size / _FIRST_RATE if self._seconds is None else self._seconds
        return (self._clock() - self._saved_at) * SHARE >= seconds * (1 - SHARE)

    def save(self, why: str, step: int, place: Mapping[str, Any], write: Write) -> bool:
        """Save a checkpoint and tell the engine; whether it was saved.

        Args:
            why: `epoch`, `request`, `stop`, `orphaned` or `join`.
            step: Steps so far.
            place: Where the script is, of which `epoch` and `position` are told.
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
            }
        )
        return True


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Where to write a checkpoint, a file or a folder. It then takes the place of `path`, whole or not at all, and all
    but the newest two of the folder are removed.

    Raises:
        CheckpointError: It could not be written; what was there before is untouched.
    """
    partial = path.with_name(f".{path.stem}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove(partial)
        yield partial
        for written in _files(partial):
            _sync(written)
        if path.is_dir():
            _remove(path)
        os.replace(partial, path)
        _sync(path.parent)
        _prune(path.parent)
    except Exception as error:
        # torch reports a full disk as a RuntimeError from its archive writer, with the system's error as context.
        system = not isinstance(error, OSError) and isinstance(error.__context__, OSError)
        raise CheckpointError(f"{path} could not be written: {error.__context__ if system else error}") from error
    finally:
        with suppress(OSError):
            _remove(partial)


def size(path: Path) -> int:
    """Bytes of a checkpoint."""
    return sum(each.stat().st_size for each in _files(path))


def _files(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _prune(folder: Path) -> None:
    """Remove all but the last checkpoints of a folder, files or folders called `step-...`."""
    saved = sorted(folder.glob("step-*"), key=lambda path: path.stat().st_mtime_ns)
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
