"""The measurements of a study so far: one JSON line for each, safe against a kill -9."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shutil
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import headgate
from headgate.model.errors import HeadgateError, NotFoundError, StorageError, UsageError
from headgate.recorded import runs
from headgate.sampling.machine import topology

State = Literal["measured", "failed", "not measured"]
RESULTS, ABOUT, FILE = "results.jsonl", "about.json", "study.yaml"


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement of a cell in a block.

    Args:
        key: As `CellRun.key`.
        cell: Its fields, as plain JSON values, and its name.
        attempt: 0; 1 for a repetition of a disturbed block.
        reason: Why it failed or could not be measured; empty: it was measured.
        machine: The machine of the measurement.
        at: Seconds since the epoch.
        figures: As `measuring.measured`; empty: not measured.
    """

    key: str
    cell: Mapping[str, Any]
    block: int
    attempt: int
    state: State
    reason: str
    machine: Mapping[str, str]
    at: float
    figures: Mapping[str, Any]


def machine() -> dict[str, str]:
    """Facts that identify a machine."""
    cpus = topology()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "host": socket.gethostname(),
        "CPU": cpus.model,
        "CPUs": str(cpus.allowed),
        "memory": f"{pages / 2**30:.1f} GiB",
        "kernel": platform.release(),
        "Headgate": headgate.__version__,
    }


class Journal:
    """The folder of a study: its original file, its machine, and its measurements.

    Enter it with `with` to measure; nobody else can then.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = -1

    def __enter__(self) -> Journal:
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._lock)
            raise UsageError(
                f"study {self.folder.name} is being measured by another process; wait for it"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    @property
    def about(self) -> dict[str, Any]:
        """Name and seed of the study, its axes and cells, its start, and the first and last
        machine.
        """
        try:
            content = json.loads((self.folder / ABOUT).read_text())
        except (OSError, ValueError) as error:
            raise StorageError(f"cannot read {self.folder / ABOUT}: {error}") from error
        return content if isinstance(content, dict) else {}

    def describe(self, about: Mapping[str, Any]) -> None:
        """Write `about`.

        Raises:
            StorageError: It cannot be written.
        """
        beside = self.folder / f".{ABOUT}"
        try:
            beside.write_text(json.dumps(about, indent=2) + "\n")
            beside.replace(self.folder / ABOUT)
        except OSError as error:
            raise StorageError(
                f"cannot write {self.folder / ABOUT}: {error.strerror}; make room there"
            ) from error

    def add(self, measurement: Measurement) -> None:
        """Store a measurement. It is on disk when this returns.

        Raises:
            StorageError: It cannot be written.
        """
        line = (
            json.dumps({name: getattr(measurement, name) for name in Measurement.__slots__}) + "\n"
        )
        path = self.folder / RESULTS
        try:
            with open(path, "a+b", buffering=0) as file:
                if not _ends_well(file.fileno()):
                    line = "\n" + line
                end = os.fstat(file.fileno()).st_size
                try:
                    if file.write(line.encode()) < len(line.encode()):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                    os.fsync(file.fileno())
                except OSError:
                    with suppress(OSError):
                        os.ftruncate(file.fileno(), end)
                    raise
        except OSError as error:
            raise StorageError(
                f"cannot write {path}: {error.strerror}; what was measured before is kept. Make "
                "room there, then go on with --resume"
            ) from error

    def measurements(self) -> list[Measurement]:
        """All stored measurements, oldest first, without a partial last line of a killed
        process.
        """
        measured = []
        path = self.folder / RESULTS
        try:
            lines = path.read_bytes().splitlines() if path.exists() else []
        except OSError as error:
            raise StorageError(f"cannot read {path}: {error.strerror}") from error
        for line in lines:
            try:
                measured.append(Measurement(**json.loads(line)))
            except (ValueError, TypeError):
                continue
        return measured


def _ends_well(fd: int) -> bool:
    size = os.fstat(fd).st_size
    return size == 0 or os.pread(fd, 1, size - 1) == b"\n"


def folder() -> Path:
    """The folder of all studies."""
    path = runs.home() / "studies"
    path.mkdir(mode=0o700, exist_ok=True)
    return path


def create(name: str, path: str, about: Mapping[str, Any]) -> Journal:
    """Make a new study's folder.

    Args:
        name: Name of the study.
        path: Its file.
        about: As `Journal.about`.

    Raises:
        StorageError: It cannot be made.
    """
    made = Journal(folder() / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid():x}")
    try:
        made.folder.mkdir(mode=0o700)
        shutil.copyfile(path, made.folder / FILE)
    except OSError as error:
        raise StorageError(
            f"cannot write {made.folder}: {error.strerror}; make room, or set HEADGATE_HOME"
        ) from error
    this_machine = machine()
    made.describe(
        {
            "name": name,
            "began": time.time(),
            "machine": this_machine,
            "machine_last": this_machine,
            **about,
        }
    )
    return made


def listing() -> list[Path]:
    """The folders of all studies, oldest first."""
    return sorted(
        (path.parent for path in folder().glob(f"*/{ABOUT}")),
        key=lambda path: (_began(path), path.name),
    )


def find(prefix: str | None) -> Journal:
    """The latest study whose name begins with (or contains) `prefix`; None: the latest of all.

    Raises:
        NotFoundError: There is none.
    """
    every = listing()
    if prefix is None and every:
        return Journal(every[-1])
    for matches in (str.__eq__, str.startswith, str.__contains__):
        if paths := [path for path in every if prefix is not None and matches(path.name, prefix)]:
            return Journal(paths[-1])
    names = (
        ", ".join(path.name for path in every[-5:])
        or "none; make one with: headgate study FILE.yaml"
    )
    raise NotFoundError(
        f"no study {prefix!r}; there are {names}" if prefix else f"there are no studies: {names}"
    )


def of_name(name: str) -> list[Journal]:
    """Studies of exactly that name, oldest first."""
    return [Journal(path) for path in listing() if _about(path).get("name") == name]


def _about(path: Path) -> dict[str, Any]:
    try:
        return Journal(path).about
    except HeadgateError:
        return {}


def _began(path: Path) -> float:
    return float(_about(path).get("began", 0.0))
