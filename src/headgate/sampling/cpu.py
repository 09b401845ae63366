"""CPU: cores in use, load of the busiest core, throttled time and stolen time."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil

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

_TICKS = os.sysconf("SC_CLK_TCK")


class CpuSampler(SourcedSampler):
    """Reads `cpu_cores` of all targets, and `cpu_fullest_core` of this machine and, under cgroup
    v1, of tasks and places.

    Tasks and places are read from cpuacct (v1), otherwise from cpu.stat (v2, which has no values
    per core), otherwise from their processes. Both cgroup versions also give `cpu_system`.
    `cpu_throttled` comes from cpu.stat of either version, `cpu_stolen` from /proc/stat.
    """

    name = "cpu"

    def open_node(self) -> Source:
        return _Node(self._root / "proc/stat")

    def open_task(self, box: Boxed) -> Source | None:
        return first(
            lambda: _V1(
                cgroup_file(box, "cpuacct", "cpuacct.usage_percpu"),
                cgroup_file(box, "cpu", "cpu.stat"),
                cgroup_file(box, "cpuacct", "cpuacct.usage_sys"),
            ),
            lambda: _PerCore(cgroup_file(box, "cpuacct", "cpuacct.usage_percpu")),
            lambda: _V2(cgroup_file(box, "unified", "cpu.stat")),
            lambda: _Processes(box),
        )


class _Cores(FileSource):
    """Turns busy seconds of each core into the two columns."""

    def __init__(self, *paths: str | Path) -> None:
        super().__init__(*paths)
        self._now: float | None = None
        self._busy: list[float] = []

    def columns(self, now: float, busy: list[float]) -> dict[Column, float]:
        before, last = self._now, self._busy
        if now == before:
            return {}
        self._now, self._busy = now, busy
        # A core that is taken offline disappears from /proc/stat, and the others no longer match
        # the last reading.
        if before is None or now < before or len(busy) != len(last):
            return {}
        busy_parts = [
            max(0.0, new - old) / (now - before) for new, old in zip(busy, last, strict=True)
        ]
        return {
            "cpu_cores": sum(busy_parts),
            "cpu_fullest_core": min(1.0, max(busy_parts, default=0.0)),
        }


class _Node(_Cores):
    """/proc/stat: all states except idle and iowait. Guest time is part of user; stolen time is not
    ours.
    """

    def read(self, now: float, /) -> dict[Column, float]:
        busy = []
        stolen = 0
        for line in self.files[0].read().split(b"\n")[1:]:
            if not line.startswith(b"cpu"):
                break
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, line.split()[1:9])
            busy.append((user + nice + system + irq + softirq) / _TICKS)
            stolen += steal
        return self.columns(now, busy) | self.rates.of(now, {"cpu_stolen": stolen / _TICKS})


class _PerCore(_Cores):
    def read(self, now: float, /) -> dict[Column, float]:
        return self.columns(now, [int(word) / 1e9 for word in self.files[0].read().split()])


class _V1(_PerCore):
    def read(self, now: float, /) -> dict[Column, float]:
        throttled = table(self.files[1].read()).get(b"throttled_time", 0) / 1e9
        system = int(self.files[2].read()) / 1e9
        totals: dict[Column, float] = {"cpu_throttled": throttled, "cpu_system": system}
        return super().read(now) | self.rates.of(now, totals)


class _V2(FileSource):
    """`throttled_usec` exists only if the controller is enabled."""

    def read(self, now: float, /) -> dict[Column, float]:
        stat = table(self.files[0].read())
        totals: dict[Column, float] = {"cpu_cores": stat[b"usage_usec"] / 1e6}
        names: tuple[tuple[Column, bytes], ...] = (
            ("cpu_throttled", b"throttled_usec"),
            ("cpu_system", b"system_usec"),
        )
        totals |= {column: stat[name] / 1e6 for column, name in names if name in stat}
        return self.rates.of(now, totals)


class _Processes(ProcessSource):
    """The larger of two lower bounds of the task's CPU time.

    Totals of living processes with their waited-for children lose nothing when a child ends, but
    decrease when a daemon ends. Own times of living processes lose the last moments of each that
    ended.
    """

    def __init__(self, box: Boxed) -> None:
        super().__init__(box)
        self._own: dict[int, float] = {}
        self._used = 0.0
        self._with_children = 0.0

    def read(self, now: float, /) -> dict[Column, float]:
        own: dict[int, float] = {}
        with_children = 0.0
        for process in self.living():
            with suppress(psutil.Error):
                times = process.cpu_times()
                own[process.pid] = times.user + times.system
                with_children += own[process.pid] + times.children_user + times.children_system
        apart = sum(max(0.0, seconds - self._own.get(pid, 0.0)) for pid, seconds in own.items())
        self._used += max(apart, with_children - self._with_children)
        self._own, self._with_children = own, with_children
        if not own:
            return {}
        return self.rates.of(now, {"cpu_cores": self._used})
