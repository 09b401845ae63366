"""Disk: bytes a second read from and written to disks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from headgate.machine.blocks import WholeDisk, whole_disks
from headgate.sampling.base import Boxed
from headgate.sampling.columns import Column
from headgate.sampling.process_use import DiskBytes
from headgate.sampling.sources import (
    FileSource,
    ProcessSource,
    Source,
    SourcedSampler,
    cgroup_file,
    first,
)

_SECTOR = 512  # of /proc/diskstats, whatever the disk's own sector is


class DiskSampler(SourcedSampler):
    """Reads `disk_read` and `disk_write` of whole disks.

    A task is read from io.stat (v2), otherwise from the kernel's accounts of its processes, which
    charge a write when a page is dirtied. The blkio files of cgroup v1 cannot be used. They leave
    out buffered writes, which kernel threads make, and newer kernels only count with a limit.
    """

    name = "disk"

    def open_node(self) -> Source:
        return _Node(self._root / "proc/diskstats", self._root)

    def open_task(self, box: Boxed) -> Source | None:
        return first(
            lambda: _IoStat(cgroup_file(box, "unified", "io.stat"), self._root),
            lambda: _Processes(box),
        )


class _Disks(FileSource):
    """A file with a row for each disk; only rows of whole disks count."""

    def __init__(self, path: str | Path, root: Path) -> None:
        super().__init__(path)
        self._root = root
        self._seen: set[bytes] = set()
        self._whole: frozenset[bytes] = frozenset()

    def whole(
        self, rows: Mapping[bytes, list[bytes]], key: Callable[[WholeDisk], str]
    ) -> list[list[bytes]]:
        """The rows of whole disks.

        Args:
            rows: By the file's key of a disk.
            key: That key.
        """
        if rows.keys() != self._seen:  # a disk was plugged in or out
            self._seen = set(rows)
            self._whole = frozenset(key(disk).encode() for disk in whole_disks(self._root))
        return [words for name, words in rows.items() if name in self._whole]


class _Node(_Disks):
    def read(self, now: float, /) -> dict[Column, float]:
        read = written = 0
        rows = {
            words[2]: words
            for line in self.files[0].read().split(b"\n")
            if len(words := line.split()) > 9
        }
        for words in self.whole(rows, lambda disk: disk.name.replace("!", "/")):
            read += int(words[5])
            written += int(words[9])
        return self.rates.of(now, {"disk_read": read * _SECTOR, "disk_write": written * _SECTOR})


class _IoStat(_Disks):
    """Lines of `MAJOR:MINOR rbytes=N wbytes=N ...`."""

    def totals(self) -> dict[Column, float]:
        """Bytes read and written so far."""
        read = written = 0
        rows = {
            words[0]: words for line in self.files[0].read().split(b"\n") if (words := line.split())
        }
        for words in self.whole(rows, lambda disk: disk.number):
            counters = dict(word.split(b"=", 1) for word in words[1:] if b"=" in word)
            read += int(counters.get(b"rbytes", 0))
            written += int(counters.get(b"wbytes", 0))
        return {"disk_read": read, "disk_write": written}

    def read(self, now: float, /) -> dict[Column, float]:
        return self.rates.of(now, self.totals())


def disk_bytes_of(cgroups: str, root: Path) -> DiskBytes | None:
    """Bytes that a cgroup has moved on disks so far; None: io.stat of cgroup v2 does not tell.

    Args:
        cgroups: Text of `/proc/PID/cgroup` of a process in it.
        root: Where /sys is mounted.
    """
    unified = next((line[3:] for line in cgroups.splitlines() if line.startswith("0::")), None)
    if unified is None:
        return None
    try:
        source = _IoStat(root / "sys/fs/cgroup" / unified.lstrip("/") / "io.stat", root)
    except OSError:
        return None
    try:
        return DiskBytes(*source.totals().values())
    except OSError:
        return None
    finally:
        source.close()


class _Processes(ProcessSource):
    """The sum over processes.

    The kernel adds a child's bytes to a parent that waits for it, so nothing is lost. When a daemon
    ends the sum decreases, and that round has no rates.
    """

    def read(self, now: float, /) -> dict[Column, float]:
        read = written = 0
        readable = False
        for process in self.living():
            with suppress(psutil.Error):
                counters = process.io_counters()
                read += counters.read_bytes
                written += counters.write_bytes
                readable = True
        return self.rates.of(now, {"disk_read": read, "disk_write": written}) if readable else {}
