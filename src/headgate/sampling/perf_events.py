"""Hardware counters of tasks through perf_event: cycles and instructions of a cgroup."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from collections.abc import Mapping
from pathlib import Path

from headgate.machine.files import content
from headgate.machine.limits import parse_list
from headgate.model.cluster import Place
from headgate.sampling.base import Boxed
from headgate.sampling.columns import Column
from headgate.sampling.counters import Rates
from headgate.sampling.sources import Source, SourcedSampler, first

Event = tuple[int, int]
"""Type and config of `perf_event_attr`."""
HARDWARE: Mapping[Column, Event] = {"cpu_cycles": (0, 0), "cpu_instructions": (0, 1)}

_CALLS = {"x86_64": 298, "aarch64": 241, "riscv64": 241, "ppc64le": 319, "s390x": 331}
"""Number of the system call perf_event_open, by architecture."""
_OF_CGROUP, _CLOSE_ON_EXEC = 1 << 2, 1 << 3
_ATTR = struct.Struct("IIQQQQQIIQ")
"""The first version of `perf_event_attr`, 64 bytes, which every kernel accepts."""
_READ_GROUP = 1 | 2 | 8  # time enabled, time running, all events of the group at once


class CounterSampler(SourcedSampler):
    """Reads `cpu_cycles` and `cpu_instructions` of a task by its cgroup: that of the perf_event
    controller (v1), or any (v2).

    Each event takes a descriptor on each CPU, and all together up to half of this process's
    descriptors. A task for which none are left is not read.

    Args:
        events: The event of each column.
    """

    name = "counters"

    def __init__(self, root: Path = Path("/"), events: Mapping[Column, Event] = HARDWARE) -> None:
        super().__init__(root)
        self._events = events
        self._cpus = sorted(parse_list(content(root / "sys/devices/system/cpu/online")))
        self._counts = refusal(next(iter(events.values()))) is None
        self._most = (
            resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            // 2
            // max(len(self._cpus) * len(events), 1)
        )

    def open_node(self) -> None:
        return None

    def open_place(self, place: Place) -> None:
        return None

    def open_task(self, box: Boxed) -> Source | None:
        folder = box.cgroups.get("perf_event") or box.cgroups.get("unified")
        if folder is None or not self._counts or len(self._sources) >= self._most:
            return None
        return first(lambda: _Counters(str(folder), self._cpus, self._events))


def refusal(event: Event = HARDWARE["cpu_cycles"]) -> int | None:
    """The error with which the kernel refuses to count an event on a whole CPU; None if it does
    not.
    """
    try:
        os.close(_open(event, -1, 0, -1, 0))
    except OSError as error:
        return error.errno
    return None


def _open(event: Event, target: int, cpu: int, group: int, flags: int) -> int:
    """
    Raises:
        OSError: The kernel refuses.
    """
    number = _CALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, "perf_event_open has no known number on this architecture")
    kind, config = event
    attr = ctypes.create_string_buffer(
        _ATTR.pack(kind, _ATTR.size, config, 0, 0, _READ_GROUP, 0, 0, 0, 0)
    )
    libc = ctypes.CDLL(None, use_errno=True)
    syscall = libc.syscall(
        ctypes.c_long(number), attr, target, cpu, group, ctypes.c_ulong(flags | _CLOSE_ON_EXEC)
    )
    if syscall < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(syscall)


class _Counters(Source):
    """A group of events on each CPU.

    If there are more events than the CPU has counters, the kernel lets them take turns. Their
    counts are then scaled to the whole time.
    """

    def __init__(self, folder: str, cpus: list[int], events: Mapping[Column, Event]) -> None:
        self._columns = list(events)
        self._leaders: list[int] = []
        self._others: list[int] = []
        self._rates = Rates()
        group = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for cpu in cpus:
                leader, *others = events.values()
                self._leaders.append(_open(leader, group, cpu, -1, _OF_CGROUP))
                for event in others:
                    self._others.append(_open(event, group, cpu, self._leaders[-1], _OF_CGROUP))
        except OSError:
            self.close()
            raise
        finally:
            os.close(group)

    def read(self, now: float, /) -> Mapping[Column, float]:
        totals: dict[Column, float] = dict.fromkeys(self._columns, 0.0)
        for leader in self._leaders:
            _, enabled, running, *values = struct.unpack(
                f"{3 + len(self._columns)}Q", os.read(leader, 1024)
            )
            for column, value in zip(self._columns, values, strict=True):
                totals[column] += value * enabled / running if running else 0.0
        return self._rates.of(now, totals)

    def close(self) -> None:
        while self._leaders or self._others:
            os.close((self._others or self._leaders).pop())
