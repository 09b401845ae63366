"""Available memory, by the limits of cgroups, and of the machine itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from headgate.machine import limits
from headgate.machine.files import content
from headgate.model.cluster import Place
from headgate.sampling.counters import table

_IN_USE_V1 = (b"total_rss", b"total_shmem")
_IN_USE_V2 = (
    *(b"anon", b"shmem", b"kernel_stack", b"pagetables", b"sec_pagetables"),
    *(b"percpu", b"sock", b"vmalloc", b"slab_unreclaimable"),
)
"""Fields of memory.stat for memory that the kernel cannot reclaim by dropping caches."""


class AvailableMemory:
    """Reads how much memory is available before a process is killed.

    Page cache counts as available, shared memory and tmpfs do not.

    Args:
        place: A place on this machine; None: that of this process.
        root: Where /proc and /sys are mounted.
    """

    def __init__(self, place: Place | None = None, root: Path = Path("/")) -> None:
        self._root = root
        folders = place.cgroups if place is not None else limits.cgroups(root).folders
        own = folders.get("memory") or folders.get("unified")
        self._own = Path(own) if own is not None else None
        self._is_nowhere = place is not None and self._own is None

    @property
    def domain(self) -> Path | None:
        """The nearest cgroup at or above it with a memory limit; None: no limit."""
        return next((folder for folder, _ in self._limits()), None)

    def read(self) -> float | None:
        """Available bytes; None if unknown, as in a place without cgroups."""
        if self._is_nowhere:
            return None
        left = [
            limit - in_use
            for folder, limit in self._limits()
            if (in_use := _used(folder)) is not None
        ]
        if (machine := self._of_machine()) is not None:
            left.append(machine)
        return max(float(min(left)), 0.0) if left else None

    def _limits(self) -> Iterator[tuple[Path, int]]:
        """The cgroups with a memory limit and their limits, the nearest first."""
        folder = self._own
        while folder is not None and (folder / "cgroup.procs").exists():
            if (limit := limits.own_memory_limit(folder)) is not None:
                yield folder, limit
            folder = folder.parent if folder != folder.parent else None

    def _of_machine(self) -> int | None:
        sizes = {}
        for line in content(self._root / "proc/meminfo").splitlines():
            name, _, value = line.partition(":")
            if (words := value.split()) and words[0].isdigit():
                sizes[name] = int(words[0]) * 1024
        if "MemFree" not in sizes:
            return None
        cache = sum(sizes.get(name, 0) for name in ("Buffers", "Cached", "SReclaimable"))
        # it is part of `Cached`, and cannot be dropped
        return sizes["MemFree"] + max(cache - sizes.get("Shmem", 0), 0)


def _used(folder: Path) -> int | None:
    """Bytes that a cgroup and those below it hold; None if it cannot be read."""
    stat = table(content(folder / "memory.stat").encode())
    names = _IN_USE_V1 if _IN_USE_V1[0] in stat else _IN_USE_V2
    return sum(stat.get(name, 0) for name in names) if names[0] in stat else None
