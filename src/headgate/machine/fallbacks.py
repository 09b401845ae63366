"""Fallbacks for a missing cgroup controller: nice for the weight, whole cores for the cap, rlimit
for memory.
"""

from __future__ import annotations

import math
import os
import resource
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from headgate.machine.enclosure import Field, cpu_list
from headgate.machine.processes import Process, look, still
from headgate.model.errors import IsolationError
from headgate.model.shares import WEIGHT_DEFAULT, Lever, Uncontrolled, Unlimited
from headgate.model.units import say_bytes

NICE_STEP = 1.25
"""Factor of the weight per nice level (kernel/sched/core.c, sched_prio_to_weight)."""
NICE_LOWEST, NICE_HIGHEST = -20, 19
AUTOGROUP_PAUSE_SECONDS = 0.12
"""The kernel accepts one change of an autogroup per 0.1 s from users other than root."""

Value = float | int | Unlimited


class Cores:
    """The cores to which this process's boxes are pinned, so that the next one gets the least
    used.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pinned: dict[object, frozenset[int]] = {}
        self._busy = _busy_ticks()

    def take(self, owner: object, count: int, among: frozenset[int]) -> frozenset[int]:
        """Pin `owner` to `count` cores of `among`: those with the fewest boxes, then the least busy
        since the last call.
        """
        with self._lock:
            self._pinned.pop(owner, None)
            before, self._busy = self._busy, _busy_ticks()

            def load(cpu: int) -> tuple[int, int, int]:
                boxes = sum(cpu in cpus for cpus in self._pinned.values())
                return boxes, self._busy.get(cpu, 0) - before.get(cpu, 0), cpu

            chosen = frozenset(sorted(among, key=load)[:count])
            self._pinned[owner] = chosen
            return chosen

    def release(self, owner: object) -> None:
        with self._lock:
            self._pinned.pop(owner, None)


class Autogroups:
    """Sets the nice value of autogroups. A thread repeats changes that the kernel does not accept
    yet, so that the caller can serve other tasks.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._late: dict[int, tuple[Process, int]] = {}
        self._trying = False

    def set(self, process: Process, nice: int) -> bool:
        """Set the nice value of a process's autogroup, now or a little later. Returns False if it
        is not allowed.
        """
        with self._lock:
            self._late.pop(process.session, None)
            answer = _set_autogroup(process, nice)
            if answer == "later":
                self._late[process.session] = process, nice
                if not self._trying:
                    self._trying = True
                    threading.Thread(target=self._try_again, name="autogroups", daemon=True).start()
            return answer != "refused"

    def _try_again(self) -> None:
        while True:
            time.sleep(AUTOGROUP_PAUSE_SECONDS)
            with self._lock:
                late = {
                    session: task_session
                    for session, task_session in self._late.items()
                    if _set_autogroup(*task_session) == "later"
                }
                self._late, self._trying = late, bool(late)
                if not late:
                    return


AUTOGROUPS = Autogroups()
"""One object for all, because the kernel's rate limit is global."""


class Fallbacks:
    """Fallbacks for missing controllers, for one task. Children inherit them. A change affects all
    living processes.
    """

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._among: frozenset[int] | None = None
        self._cap: float | None = None

    def describe(self, field: Field, value: Value) -> Uncontrolled | None:
        """The fallback of a field; None if none is needed."""
        if isinstance(value, Unlimited):
            return None
        match field:
            case "cpu_weight":
                if value == WEIGHT_DEFAULT:
                    return None
                return Uncontrolled(Lever.CPU_WEIGHT, f"by nice {_nice(value)}", f"{value:g}")
            case "cpu_cap_cores":
                count = math.ceil(value)
                noun = "core" if count == 1 else "cores"
                how = f"by pinning to {count} whole {noun}, which is coarser"
                return Uncontrolled(Lever.CPU_CAP, how, f"{value:g}")
            case "memory_bytes":
                how = (
                    "of each process, not of the task (RLIMIT_DATA); past it an allocation "
                    "fails (MemoryError) and "
                )
                return Uncontrolled(Lever.MEMORY, f"{how}nothing is killed", say_bytes(value))
            case "disk_bytes_per_second":
                return Uncontrolled(Lever.DISK_RATE, "not limited", f"{say_bytes(value)}/s")
            case "gpu_fraction":
                how = "at step boundaries, in scripts that use Headgate's library"
                return Uncontrolled(Lever.GPU_FRACTION, how, f"{value:g}")

    def apply(self, field: Field, value: Value, pids: Sequence[int]) -> Uncontrolled | None:
        """Apply the fallback of a field. Returns it, if one is needed."""
        match field:
            case "cpu_weight":
                return self._set_nice(
                    WEIGHT_DEFAULT if isinstance(value, Unlimited) else value, pids
                )
            case "cpu_cap_cores":
                self._cap = None if isinstance(value, Unlimited) else value
                self._set_affinity(pids)
            case "memory_bytes":
                _set_data_limit(
                    resource.RLIM_INFINITY if isinstance(value, Unlimited) else int(value), pids
                )
        return self.describe(field, value)

    def pin(self, cpus: frozenset[int] | None, pids: Sequence[int]) -> tuple[Uncontrolled, ...]:
        """Pin processes by affinity, which they can widen again."""
        usable = os.sched_getaffinity(0)
        if cpus is not None and not cpus & usable:
            raise IsolationError(
                f"the task cannot be pinned to cores {cpu_list(cpus)}; there are "
                f"{cpu_list(frozenset(usable))}"
            )
        self._among = cpus
        self._set_affinity(pids)
        if cpus is None:
            return ()
        return (
            Uncontrolled(
                Lever.CPU_SET, "by affinity, which the task can change by itself", cpu_list(cpus)
            ),
        )

    def forget(self) -> None:
        """Free the cores of a task that is gone."""
        self._cores.release(self)

    def _set_affinity(self, pids: Sequence[int]) -> None:
        usable = frozenset(os.sched_getaffinity(0))
        among = usable if self._among is None else usable & self._among
        if self._cap is None:
            self._cores.release(self)
            chosen = among
        else:
            chosen = self._cores.take(self, math.ceil(self._cap), among)
        for thread in _threads(pids):
            try:
                os.sched_setaffinity(thread, chosen)
            except OSError:  # ended meanwhile
                continue

    def _set_nice(self, weight: float, pids: Sequence[int]) -> Uncontrolled | None:
        nice = max(
            NICE_LOWEST, min(os.getpriority(os.PRIO_PROCESS, 0) + _nice(weight), NICE_HIGHEST)
        )
        refused = False
        for thread in _threads(pids):
            try:
                os.setpriority(os.PRIO_PROCESS, thread, nice)
            except PermissionError:
                refused = True
            except OSError:  # ended meanwhile
                continue
        # If the kernel schedules by session (autogroup), nice counts within a session, and the
        # group's nice between sessions.
        sessions = {process.session: process for pid in pids if (process := look(pid)) is not None}
        for process in sessions.values():
            refused |= not AUTOGROUPS.set(process, nice)
        if refused:
            refusal = f"nice cannot go down to {nice} without root; it stays where it was"
            return Uncontrolled(Lever.CPU_WEIGHT, refusal, f"{weight:g}")
        return self.describe("cpu_weight", weight)


def _nice(weight: float) -> int:
    level = -round(math.log(weight / WEIGHT_DEFAULT) / math.log(NICE_STEP))
    return max(NICE_LOWEST, min(level, NICE_HIGHEST))


def _set_autogroup(process: Process, nice: int) -> Literal["done", "later", "refused"]:
    """Try to set the nice value once. The kernel refuses what is not allowed before it defers
    anything.
    """
    try:
        if still(process):
            Path(f"/proc/{process.pid}/autogroup").write_text(str(nice))
    except BlockingIOError:
        return "later"
    except PermissionError:
        return "refused"
    except OSError:  # a kernel without autogroups, or the process has ended
        pass
    return "done"


def _set_data_limit(limit: int, pids: Sequence[int]) -> None:
    for pid in pids:
        try:
            _, most = resource.prlimit(pid, resource.RLIMIT_DATA)
            fits = most == resource.RLIM_INFINITY or 0 <= limit <= most
            resource.prlimit(pid, resource.RLIMIT_DATA, (limit if fits else most, most))
        except OSError:  # ended meanwhile
            continue


def _threads(pids: Sequence[int]) -> list[int]:
    threads: list[int] = []
    for pid in pids:
        try:
            threads += map(int, os.listdir(f"/proc/{pid}/task"))
        except OSError:
            continue
    return threads


def _busy_ticks() -> dict[int, int]:
    """Clock ticks that each core was busy since boot."""
    ticks = {}
    for line in Path("/proc/stat").read_text().splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name != "cpu":
            user, nice, system, _, _, irq, softirq = map(int, numbers[:7])
            ticks[int(name[3:])] = user + nice + system + irq + softirq
    return ticks
