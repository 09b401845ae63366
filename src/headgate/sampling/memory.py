"""Memory: resident memory and, separately, the page cache and its faults."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import psutil

from headgate.model.cluster import Place
from headgate.sampling.available import AvailableMemory
from headgate.sampling.base import Boxed
from headgate.sampling.columns import Column
from headgate.sampling.counters import table
from headgate.sampling.sources import (
    FileSource,
    ProcessSource,
    Source,
    SourcedSampler,
    cgroup_file,
    first,
)


class MemorySampler(SourcedSampler):
    """Reads `memory_bytes` (anonymous and shared memory), `cache_bytes` (page cache of files),
    `major_faults` and, from a cgroup, `refaults`; for a node also `memory_available`.

    A task is read from memory.stat of its cgroup (v1 or v2), otherwise from its processes.
    Processes do not show the page cache. They count a page shared by copy-on-write in each process,
    and jointly mapped memory in none.
    """

    name = "memory"

    def open_node(self) -> Source:
        return _NodeMemory(_Node(self._root / "proc/meminfo"), AvailableMemory(root=self._root))

    def open_place(self, place: Place) -> Source | None:
        source = super().open_place(place)
        return (
            _NodeMemory(source, AvailableMemory(place, self._root)) if source is not None else None
        )

    def open_task(self, box: Boxed) -> Source | None:
        return first(
            lambda: _Stat(cgroup_file(box, "memory", "memory.stat")),
            lambda: _Processes(box),
        )


class _NodeMemory(Source):
    """A node's used and available memory."""

    def __init__(self, source: Source, available: AvailableMemory) -> None:
        self._source, self._available = source, available

    def read(self, now: float, /) -> dict[Column, float]:
        left = self._available.read()
        return {
            **self._source.read(now),
            **({"memory_available": left} if left is not None else {}),
        }

    def close(self) -> None:
        self._source.close()


class _Node(FileSource):
    """/proc/meminfo: all memory in use except caches that the kernel can drop. Shmem is part of
    `Cached`, and cannot be dropped.
    """

    def read(self, _now: float, /) -> dict[Column, float]:
        kib = {}
        for line in self.files[0].read().split(b"\n"):
            name, _, rest = line.partition(b":")
            if rest:
                kib[name] = int(rest.split()[0])
        cache = (
            kib[b"Buffers"] + kib[b"Cached"] + kib.get(b"SReclaimable", 0) - kib.get(b"Shmem", 0)
        )
        used = kib[b"MemTotal"] - kib[b"MemFree"] - cache
        return {"memory_bytes": max(0, used) * 1024.0, "cache_bytes": max(0, cache) * 1024.0}


class _Stat(FileSource):
    """memory.stat. Under v1 the `total_` fields include the groups below; v2 always does. Cached
    memory (`cache`, `file`) includes shared memory; `rss` and `anon` do not.
    """

    def read(self, now: float, /) -> dict[Column, float]:
        stat = table(self.files[0].read())
        prefix, own, cached = (
            (b"total_", b"rss", b"cache") if b"total_rss" in stat else (b"", b"anon", b"file")
        )
        shared = stat.get(prefix + b"shmem", 0)
        return {
            "memory_bytes": float(stat[prefix + own] + shared),
            "cache_bytes": float(max(0, stat[prefix + cached] - shared)),
            **self.rates.of(now, _faults(stat, prefix)),
        }


def _faults(stat: Mapping[bytes, int], prefix: bytes) -> dict[Column, float]:
    """Running totals that this kernel counts. Before Linux 5.9, `workingset_refault` was for files
    only.
    """
    totals: dict[Column, float] = {}
    if (faults := stat.get(prefix + b"pgmajfault")) is not None:
        totals["major_faults"] = faults
    refaults = stat.get(
        prefix + b"workingset_refault_file", stat.get(prefix + b"workingset_refault")
    )
    if refaults is not None:
        totals["refaults"] = refaults
    return totals


class _Processes(ProcessSource):
    def read(self, _now: float, /) -> dict[Column, float]:
        sizes: list[int] = []
        for process in self.living():
            with suppress(psutil.Error):
                memory = process.memory_info()
                sizes.append(memory.rss - memory.shared)
        return {"memory_bytes": float(max(0, sum(sizes)))} if sizes else {}
