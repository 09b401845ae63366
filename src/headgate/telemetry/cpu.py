"""CPU: mean cores in use and, where the kernel counts each core separately, how busy the busiest one is."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil

from headgate.telemetry.base import Boxed
from headgate.telemetry.columns import Column
from headgate.telemetry.counters import Rates, table
from headgate.telemetry.sources import FileSource, ProcessSource, Source, SourcedSampler, cgroup_file, first

_TICKS = os.sysconf("SC_CLK_TCK")


class CpuSampler(SourcedSampler):
    """`cpu_cores` of everything; `cpu_fullest_core` of this machine and, under cgroup v1, of tasks and places on it.

    Those are read from cpuacct (v1), else from cpu.stat (v2, which counts all cores together), else from their
    processes.
    """

    name = "cpu"

    def open_node(self) -> Source:
        return _Node(self._root / "proc/stat")

    def open_task(self, box: Boxed) -> Source | None:
        return first(
            lambda: _PerCore(cgroup_file(box, "cpuacct", "cpuacct.usage_percpu")),
            lambda: _CpuStat(cgroup_file(box, "unified", "cpu.stat")),
            lambda: _Processes(box),
        )


class _Cores(FileSource):
    """Turns seconds that each core was busy into the two columns."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self._now: float | None = None
        self._busy: list[float] = []

    def columns(self, now: float, busy: list[float]) -> dict[Column, float]:
        before, last = self._now, self._busy
        if now == before:
            return {}
        self._now, self._busy = now, busy
        # A core that is taken offline leaves /proc/stat, and what is left no longer lines up with the last reading.
        if before is None or now < before or len(busy) != len(last):
            return {}
        busy_parts = [max(0.0, new - old) / (now - before) for new, old in zip(busy, last, strict=True)]
        return {"cpu_cores": sum(busy_parts), "cpu_fullest_core": min(1.0, max(busy_parts, default=0.0))}


class _Node(_Cores):
    """/proc/stat: all states but idle and iowait; guest time is already in user, stolen time is not ours."""

    def read(self, now: float, /) -> dict[Column, float]:
        busy = []
        for line in self.files[0].read().split(b"\n")[1:]:
            if not line.startswith(b"cpu"):
                break
            user, nice, system, _idle, _iowait, irq, softirq = map(int, line.split()[1:8])
            busy.append((user + nice + system + irq + softirq) / _TICKS)
        return self.columns(now, busy)


class _PerCore(_Cores):
    def read(self, now: float, /) -> dict[Column, float]:
        return self.columns(now, [int(word) / 1e9 for word in self.files[0].read().split()])


class _CpuStat(FileSource):
    def read(self, now: float, /) -> dict[Column, float]:
        return self.rates.of(now, {"cpu_cores": table(self.files[0].read())[b"usage_usec"] / 1e6})


class _Processes(ProcessSource):
    """The larger of two lower bounds of what the task used.

    The totals of living processes with their reaped children lose nothing when a child ends and its parent waits for
    it, but fall back when a daemon ends; what each living process used itself loses the last moments of every one that
    ended.
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
