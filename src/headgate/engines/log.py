"""A task's output: all of it goes to a file, its lines to readers of progress."""

from __future__ import annotations

import os
import re
from collections import deque
from pathlib import Path

from headgate.model.reasons import Reason, ReasonKind

LOG_BYTES = 32 * 2**20
"""Size at which a log is renamed to `.1`, in place of an earlier `.1`, and a new one is begun."""
GONE = ".gone"
"""Suffix of the file that counts the bytes of replaced logs."""

_LINE_MOST = 2**20
"""A full log is renamed at the end of a line, unless the line is longer than this."""

BYTES_A_SECOND = 32 * 2**20
"""Most bytes a second that are read of a task's output. A task that writes faster waits; the others
do not.
"""

GATHER_SECONDS = 0.02
"""How long output of a task that prints all the time stays in its pipe. Each line read at once
wakes this process, which costs the task more than writing it.
"""
_LITTLE_BYTES = 1 << 14
"""A quarter of a pipe. A task that prints more meanwhile is read at once, so that it does not wait
for space.
"""

_UNREAD_BYTES = 1 << 18

LINES_A_SECOND = 1000
_LAST_LINES = 100
"""Lines of a flood that are passed on at its end, where the cause of a failure is."""
_LINE_CHARACTERS = 4096
"""Characters of a line that are passed on, from its beginning."""
_LINE_BYTES = 4 * _LINE_CHARACTERS  # of UTF-8, at the most
_LINE_ENDS = re.compile(rb"[\r\n\b]+")  # a bar is drawn again after each


class TaskLog:
    """Appends output to the log file and cuts it into lines."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._fd: int | None = None
        self._size = 0
        self._at_line_start = True
        self._partial = b""
        self._second = -1
        self._read_at = float("-inf")
        self._gathers = False
        self._lines = 0
        self._bytes = 0
        self._skipped: deque[bytes] = deque(maxlen=_LAST_LINES)
        self.trouble: str | None = None

    def state(self) -> Reason:
        """Whether its output is written to its file, as a warning tells it."""
        if self.trouble is None:
            return Reason(ReasonKind.OUTPUT_WRITTEN)
        return Reason.of(ReasonKind.OUTPUT_LOST, text=self.trouble)

    def write(self, data: bytes, now: float) -> list[str]:
        """Append `data`. Returns its complete lines, at most `LINES_A_SECOND`. If the file cannot
        be written, `trouble` is set.
        """
        self._append(data)
        self._gathers = now - self._read_at < 2 * GATHER_SECONDS and len(data) <= _LITTLE_BYTES
        self._read_at = now
        if int(now) != self._second:
            self._second, self._lines, self._bytes = int(now), 0, 0
        self._bytes += len(data)
        *lines, self._partial = _LINE_ENDS.split(self._partial + data)
        # a flood without line ends must not grow without bound
        self._partial = self._partial[:_LINE_BYTES]
        lines = [line[:_LINE_BYTES] for line in lines if line]
        room = max(LINES_A_SECOND - self._lines, 0)
        if lines and room:
            self._skipped.clear()
        self._skipped.extend(lines[room:])
        self._lines += len(lines[:room])
        return [_decoded(line) for line in lines[:room]]

    def resumes_in(self, now: float) -> float:
        """Seconds until more may be read; 0: at once."""
        if self._bytes < BYTES_A_SECOND or int(now) != self._second:
            return GATHER_SECONDS if self._gathers else 0.0
        return int(now) + 1 - now

    def rest(self) -> list[str]:
        """The last lines of a flood, and the last line if it has no end."""
        lines = [*self._skipped, *([self._partial] if self._partial else [])]
        self._partial = b""
        self._skipped.clear()
        return [_decoded(line) for line in lines]

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _append(self, data: bytes) -> None:
        if not data and self.trouble is not None:  # nothing tells whether it could be written
            return
        try:
            self._open()
            if self.trouble is not None and self._is_cut():
                data = b"\n" + data
            full = self._size > 0 and self._size + len(data) > LOG_BYTES
            if full and not self._at_line_start:
                end = self._rest_of_line(data)
                self._write(data[:end])
                data = data[end:]
            if full and data:
                self._begin_anew()
            self._write(data)
        except OSError as error:
            self.trouble = (
                f"cannot write {self._path}: {error.strerror}; output is lost until "
                "it can be written"
            )
        else:
            self.trouble = None

    def _rest_of_line(self, data: bytes) -> int:
        """Bytes that still belong to the last line of a full log; 0 if that line is too long."""
        first = _LINE_ENDS.search(data)
        if first is not None:
            return first.end()
        return len(data) if self._size + len(data) <= LOG_BYTES + _LINE_MOST else 0

    def _open(self) -> None:
        if self._fd is None:
            self._fd = os.open(
                self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            self._size = os.fstat(self._fd).st_size
            self._at_line_start = not self._is_cut()

    def _is_cut(self) -> bool:
        """Whether the file ends within a line."""
        assert self._fd is not None
        return self._size > 0 and not _ends_line(os.pread(self._fd, 1, self._size - 1))

    def _write(self, data: bytes) -> None:
        if data:
            self._at_line_start = _ends_line(data)
        # a full disk takes a part, and only refuses the rest
        while data:
            assert self._fd is not None
            written = os.write(self._fd, data)
            self._size += written
            data = data[written:]

    def _begin_anew(self) -> None:
        """Rename the log, in place of the one renamed before. A file next to it counts the replaced
        bytes.
        """
        self.close()
        former = Path(f"{self._path}.1")
        if former.exists():
            gone = gone_before(self._path) + former.stat().st_size
            Path(f"{self._path}{GONE}").write_text(str(gone))
        self._path.replace(former)
        self._open()


def _ends_line(data: bytes) -> bool:
    return data.endswith((b"\n", b"\r"))


def gone_before(log: Path) -> int:
    """Number of bytes replaced before the remaining log."""
    try:
        return int(Path(f"{log}{GONE}").read_text())
    except (OSError, ValueError):
        return 0


def unread_lines(path: str, unread: int) -> list[str]:
    """The last lines of a log, from its last `unread` bytes; of many, the last ones."""
    most = min(unread, _UNREAD_BYTES)
    if not most:
        return []
    try:
        with open(path, "rb") as file:
            file.seek(-most, os.SEEK_END)
            data = file.read()
    except OSError:
        return []
    lines = [_decoded(line) for line in _LINE_ENDS.split(data) if line]
    return lines[1:] if most < unread else lines


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "replace")[:_LINE_CHARACTERS]
