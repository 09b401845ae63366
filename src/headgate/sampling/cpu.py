"""CPU: cores in use, how busy the busiest one is, what a cap held back and what the hypervisor
kept.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil

from headgate.sampling.base import Boxed
from headgate.sampling.columns import Column
from headgate.sampling.counters import Rates, table
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
    """`cpu_cores` of everything; `cpu_fullest_core` of this machine and, under cgroup v1, of tasks
    and places on it.

    Those are read from cpuacct (v1), else from cpu.stat (v2, which counts all cores together), else
    from their processes. `cpu_throttled` comes from cpu.stat of either version, `cpu_stolen` from
    /proc/stat.
    """

    name = "cpu"

    def open_node(self) -> Source:
        return _Node(self._root / "proc/stat")

    def open_task(self, box: Boxed) -> Source | None:
        return first(
            lambda: _V1(
                cgroup_file(box, "cpuacct", "cpuacct.usage_percpu"),
                cgroup_file(box, "cpu", "cpu.stat"),
            ),
            lambda: _PerCore(cgroup_file(box, "cpuacct", "cpuacct.usage_percpu")),
            lambda: _V2(cgroup_file(box, "unified", "cpu.stat")),
            lambda: _Processes(box),
        )


class _Cores(FileSource):
    """Turns seconds that each core was busy into the two columns."""

    def __init__(self, *paths: str | Path) -> None:
        super().__init__(*paths)
        self._now: float | None = None
        self._busy: list[float] = []

    def columns(self, now: float, busy: list[float]) -> dict[Column, float]:
        before, last = self._now, self._busy
        if now == before:
            return {}
        self._now, self._busy = now, busy
        # A core that is taken offline leaves /proc/stat, and what is left no longer lines up with
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
    """/proc/stat: all states but idle and iowait; guest time is already in user, stolen time is not
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
        return super().read(now) | self.rates.of(now, {"cpu_throttled": throttled})


class _V2(FileSource):
    """`throttled_usec` is there only where the controller is on."""

    def read(self, now: float, /) -> dict[Column, float]:
        stat = table(self.files[0].read())
        totals: dict[Column, float] = {"cpu_cores": stat[b"usage_usec"] / 1e6}
        if b"throttled_usec" in stat:
            totals["cpu_throttled"] = stat[b"throttled_usec"] / 1e6
        return self.rates.of(now, totals)


class _Processes(ProcessSource):
    """The larger of two lower bounds of what the task used.

    The totals of living processes with their reaped children lose nothing when a child ends and its
    parent waits for it, but fall back when a daemon ends; what each living process used itself
    loses the last moments of every one that ended.
    """

    def __init__(self, box: Boxed) -> None:
        super().__init__(box)
        self._own: dict[int, float] = {}
        self._used = 0.0
        self._with_children = 0.0
        self._rates = Rates()

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
        return self._rates.of(now, {"cpu_cores": self._used})
