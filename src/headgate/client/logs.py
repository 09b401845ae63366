"""Logs of a job's tasks."""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headgate.engines.log import gone_before
from headgate.model.errors import NotFoundError
from headgate.model.identifiers import TaskName
from headgate.model.job_states import ENDED
from headgate.recorded import runs

_PIECE_BYTES = 1 << 16
FOLLOW_SECONDS = 0.2


class LogPosition(NamedTuple):
    """How far a log was read: the file, which is renamed when it is full, and the byte offset in
    it.
    """

    inode: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of a task's log, and how many earlier bytes are gone."""

    path: Path
    bytes: int
    gone_bytes: int


@dataclass(frozen=True, slots=True)
class JobLogs:
    """Logs of one task or of all tasks of a job."""

    folder: Path
    job: str
    task: TaskName | None

    @classmethod
    def of(cls, folder: Path, job: str, task: TaskName | None = None) -> JobLogs:
        """The log of one task: the task named, or the job's main task.

        Raises:
            NotFoundError: The named task has no log.
        """
        known = [path.stem for path in cls(folder, job, None).paths()]
        if task is not None and task not in known:  # it may also be a path, or a pattern
            names = ", ".join(known) or "none yet"
            raise NotFoundError(f"job {job!r} has no task {task!r} with a log; it has {names}")
        return cls(folder, job, task or runs.first_task(folder, job))

    def paths(self) -> list[Path]:
        """The existing logs, workers first."""
        pattern = f"{self.task or '*'}.log"
        return sorted(
            (self.folder / "jobs" / self.job).glob(pattern),
            key=lambda path: TaskName(path.stem).order,
        )

    def files(self) -> list[LogFile]:
        """The files of the logs. A long log also has the file before the current one."""
        paths = [Path(f"{log}{end}") for log in self.paths() for end in (".1", "")]
        paths = [path for path in paths if path.exists()]
        return [LogFile(path, path.stat().st_size, _gone(path, paths)) for path in paths]

    def ended(self) -> bool:
        """Whether the job has ended and its logs are complete."""
        return any(
            job.name == self.job and job.state in ENDED for job in runs.summary(self.folder).jobs
        )

    def output(self, tail: int | None = None, follow: bool = False) -> Iterator[tuple[Path, bytes]]:
        """The remaining output in pieces, each with its log; at least one piece of each log.

        Args:
            tail: Only the last lines of each log, this many.
            follow: Go on with new output until the job has ended.
        """
        reading = LogReading(self, tail)
        yield from reading.pieces()
        while follow and not reading.ended:
            yield from reading.pieces()
            if not reading.ended:
                time.sleep(FOLLOW_SECONDS)

    def text(self, tail: int | None = None) -> str:
        """What is left of them, one after the other; or the last `tail` lines of each."""
        return b"".join(piece for _, piece in self.output(tail)).decode(errors="replace")

    def lines(self, tail: int | None = None) -> Iterator[str]:
        """The lines of one task's log, until the job has ended."""
        reading = LogReading(self, tail)
        while not reading.ended:
            yield from reading.lines()
            if not reading.ended:
                time.sleep(FOLLOW_SECONDS)


class LogReading:
    """Reads growing logs.

    Args:
        logs: The logs.
        tail: Only the last initial lines of each log, this many; None: all.
    """

    def __init__(self, logs: JobLogs, tail: int | None) -> None:
        self._logs = logs
        self._tail = tail
        self._read: dict[Path, LogPosition] | None = None
        self._rest = b""
        self.ended = False
        """Whether the job has ended and everything was read."""

    def lines(self) -> list[str]:
        """The lines of one log since the last call."""
        data = self._rest + b"".join(piece for _, piece in self.pieces())
        *lines, self._rest = data.split(b"\n")
        if self.ended and self._rest:
            lines.append(self._rest)
        return [line.decode(errors="replace") for line in lines]

    def pieces(self) -> Iterator[tuple[Path, bytes]]:
        """New output since the last call; at the first call at least one piece of each log."""
        if self._read is None:
            self._read = {}
            for log in self._logs.paths():
                yield from self._whole(log, self._read)
            return
        ended = self._logs.ended()
        for log in self._logs.paths():
            with suppress(FileNotFoundError):  # the log is being rotated
                yield from _added(log, self._read)
        self.ended = ended

    def _whole(self, log: Path, read: dict[Path, LogPosition]) -> Iterator[tuple[Path, bytes]]:
        if self._tail is not None:
            lines, read[log] = _last_lines(log, self._tail)
            yield log, b"".join(lines)
            return
        yield log, b""
        for file in (Path(f"{log}.1"), log):
            yield from _pieces(log, file, read) if file.exists() else ()


def _gone(file: Path, files: list[Path]) -> int:
    """Bytes of a log that were before this file and are gone; 0 if the previous file is among
    `files`.
    """
    log = file.with_name(file.name.removesuffix(".1"))
    return 0 if file == log and Path(f"{log}.1") in files else gone_before(log)


def _pieces(
    log: Path, file_path: Path, read: dict[Path, LogPosition], start: int = 0
) -> Iterator[tuple[Path, bytes]]:
    """A file of a log, from `start` on; records how far it was read."""
    with file_path.open("rb") as file:
        file.seek(start)
        while piece := file.read(_PIECE_BYTES):
            yield log, piece
        read[log] = LogPosition(os.fstat(file.fileno()).st_ino, file.tell())


def _added(log: Path, read: dict[Path, LogPosition]) -> Iterator[tuple[Path, bytes]]:
    """New output of a log since it was read."""
    status, position = log.stat(), read.get(log)
    if position == LogPosition(status.st_ino, status.st_size):
        return
    start = 0
    if position is not None and position.inode == status.st_ino:
        start = position.bytes
    elif position is not None:
        former = Path(f"{log}.1")
        if former.stat().st_ino == position.inode:
            yield from _pieces(log, former, read, position.bytes)
    yield from _pieces(log, log, read, start)


def _last_lines(log: Path, lines: int) -> tuple[list[bytes], LogPosition]:
    """The last lines of a log, from its current and its previous file."""
    last: deque[bytes] = deque(maxlen=min(lines, sys.maxsize))
    former = Path(f"{log}.1")
    if former.exists():
        with former.open("rb") as file:
            last.extend(file)
    with log.open("rb") as file:
        last.extend(file)
        return list(last), LogPosition(os.fstat(file.fileno()).st_ino, file.tell())
