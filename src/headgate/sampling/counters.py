"""Reads running totals cheaply and turns them into rates."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from headgate.sampling.columns import Column

_PAGE = 4096


class OpenFile:
    """A file of /proc, /sys or a cgroup that is kept open, so that reading it again costs one
    system call.

    An open file belongs to the process or cgroup that it was opened for. Once that is gone, reading
    raises, even if its number or name was reused.

    Raises:
        OSError: From the constructor and from `read`: it does not exist, or may not be read.
    """

    __slots__ = ("_fd",)

    def __init__(self, path: str | Path) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """The whole present content."""
        data = os.pread(self._fd, 16 * _PAGE, 0)
        if len(data) < _PAGE // 2:
            return data
        # The kernel returns some of these files about a page at a time, whatever size is requested.
        chunks = [data]
        size = len(data)
        while chunk := os.pread(self._fd, 16 * _PAGE, size):
            chunks.append(chunk)
            size += len(chunk)
        return b"".join(chunks)

    def close(self) -> None:
        """Close the descriptor. May be called twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Rates:
    """Turns running totals of one target into rates."""

    __slots__ = ("_last", "_now")

    def __init__(self) -> None:
        self._now: float | None = None
        self._last: Mapping[Column, float] = {}

    def of(self, now: float, totals: Mapping[Column, float]) -> dict[Column, float]:
        """Rates of each column in its unit per second.

        There are none for the first totals, and in a column whose total decreased. Totals at the
        same `now` as the last are dropped, so that the next rate includes them.
        """
        before, last = self._now, self._last
        if before is not None and now == before:
            return {}
        self._now, self._last = now, totals
        if before is None or now < before:
            return {}
        seconds = now - before
        return {
            column: (total - last[column]) / seconds
            for column, total in totals.items()
            if column in last and total >= last[column]
        }


def table(data: bytes) -> dict[bytes, int]:
    """Parse a file of `name number` lines, such as memory.stat and cpu.stat."""
    words = iter(data.split())
    return {name: int(value) for name, value in zip(words, words, strict=False)}
