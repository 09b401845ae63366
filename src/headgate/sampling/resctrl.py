"""Caches and memory bandwidth through resctrl: Intel RDT, AMD QoS, Arm MPAM.

Files and units: Documentation/filesystems/resctrl.rst of the kernel.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from headgate.model.cluster import Place
from headgate.sampling.base import Boxed
from headgate.sampling.columns import Column
from headgate.sampling.counters import Rates
from headgate.sampling.sources import Source, SourcedSampler, first

_PREFIX = "headgate"


class ResctrlSampler(SourcedSampler):
    """Reads `memory_bandwidth` and `cache_occupancy` of tasks and of this machine.

    Each task has its own monitoring group, `mon_groups/headgate-PID-NUMBER`, with the PID of this
    process. The sampler first removes groups that a killed process left behind. The CPU limits the
    number of groups; a task for which none is left is not read.
    """

    name = "resctrl"

    def __init__(self, root: Path = Path("/")) -> None:
        super().__init__(root)
        self._folder = root / "sys/fs/resctrl"
        self._made = 0
        self._monitors = monitors(root)
        if self._monitors:
            self._remove_left_behind()

    def open_node(self) -> Source | None:
        return _MonitoringData(self._folder) if self._monitors else None

    def open_place(self, place: Place) -> None:
        return None

    def open_task(self, box: Boxed) -> Source | None:
        if not self._monitors:
            return None
        self._made += 1
        folder = self._folder / "mon_groups" / f"{_PREFIX}-{os.getpid()}-{self._made}"
        return first(lambda: _MonitoringGroup(folder, box, self._root))

    def _remove_left_behind(self) -> None:
        for folder in (self._folder / "mon_groups").glob(f"{_PREFIX}-*-*"):
            if not (self._root / "proc" / folder.name.split("-")[1]).exists():
                with suppress(OSError):
                    folder.rmdir()


def monitors(root: Path = Path("/")) -> bool:
    """Whether resctrl is mounted and the CPU counts memory bandwidth by group."""
    try:
        return (
            "mbm_total_bytes"
            in (root / "sys/fs/resctrl/info/L3_MON/mon_features").read_text().split()
        )
    except OSError:
        return False


class _MonitoringData(Source):
    """Sums over the domains (L3 caches) of a group and of the groups below it."""

    def __init__(self, folder: Path) -> None:
        self._data = folder / "mon_data"
        self._rates = Rates()

    def read(self, now: float, /) -> Mapping[Column, float]:
        moved, held = self._sum("mbm_total_bytes"), self._sum("llc_occupancy")
        rates = self._rates.of(now, {"memory_bandwidth": moved} if moved is not None else {})
        return rates | ({"cache_occupancy": held} if held is not None else {})

    def _sum(self, name: str) -> float | None:
        """The sum of a counter over all domains. None while one of them says `Unavailable` or
        `Error`.
        """
        texts = [path.read_text().strip() for path in self._data.glob(f"*/{name}")]
        return float(sum(map(int, texts))) if texts and all(map(str.isdecimal, texts)) else None


class _MonitoringGroup(_MonitoringData):
    """A task's group. Threads of the task are in it from their start."""

    def __init__(self, folder: Path, box: Boxed, root: Path) -> None:
        super().__init__(folder)
        self._folder = folder
        self._box = box
        self._proc = root / "proc"
        self._inside: set[int] = set()
        folder.mkdir(exist_ok=True)

    def read(self, now: float, /) -> Mapping[Column, float]:
        pids = set(self._box.pids())
        for pid in pids - self._inside:
            for thread in (self._proc / str(pid) / "task").glob("[0-9]*"):
                with suppress(ProcessLookupError):
                    self._enter(thread.name)
        self._inside = pids
        return super().read(now)

    def _enter(self, thread: str) -> None:
        file = os.open(self._folder / "tasks", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, f"{thread}\n".encode())
        finally:
            os.close(file)

    def close(self) -> None:
        with suppress(OSError):
            self._folder.rmdir()
