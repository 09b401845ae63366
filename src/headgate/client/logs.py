"""Logs of a job's tasks."""

from __future__ import annotations

import os
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from headgate.engines.log import gone_before
from headgate.model.errors import NotFoundError
from headgate.model.events import ENDED
from headgate.model.identifiers import TaskName
from headgate.recorded import runs


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
        logs = cls(folder, job, task or runs.first_task(folder, job))
        if task is not None and not logs.paths():
            known = ", ".join(path.stem for path in cls(folder, job, None).paths()) or "none yet"
            raise NotFoundError(f"job {job!r} has no task {task!r} with a log; it has {known}")
        return logs

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

    def text(self, tail: int | None = None) -> str:
        """The remaining text of all logs, one after the other; with `tail`, the last lines of
        each.
        """
        if tail is None:
            data = (file.path.read_bytes() for file in self.files())
        else:
            data = (b"".join(last_lines(log, tail)[0]) for log in self.paths())
        return b"".join(data).decode(errors="replace")


def _gone(file: Path, files: list[Path]) -> int:
    """Bytes of a log that were before this file and are gone; 0 if the previous file is among
    `files`.
    """
    log = file.with_name(file.name.removesuffix(".1"))
    return 0 if file == log and Path(f"{log}.1") in files else gone_before(log)


def last_lines(log: Path, lines: int) -> tuple[list[bytes], LogPosition]:
    """The last lines of a log, from its current and its previous file."""
    last: deque[bytes] = deque(maxlen=min(lines, sys.maxsize))
    former = Path(f"{log}.1")
    if former.exists():
        with former.open("rb") as file:
            last.extend(file)
    with log.open("rb") as file:
        last.extend(file)
        return list(last), LogPosition(os.fstat(file.fileno()).st_ino, file.tell())
