"""How long threads waited for a core while something was measured: whether the machine was busy."""

from __future__ import annotations

import os
import time

CALM = 0.05
"""Most of the time that threads on a calm machine wait, as a fraction."""
_PROC = "/proc"


class CoreWait:
    """The fraction of their runnable time that this process's threads waited for a core.

    The kernel counts running and waiting of each thread (`/proc/PID/task/TID/schedstat`). Time that
    a hypervisor took (`steal`) counts as waiting, and so does waiting for sibling threads. The use
    of cores by other programs (`others`) also slows threads that never wait, through shared caches,
    memory and hardware threads.

    Args:
        proc: Where /proc is mounted.
    """

    def __init__(self, proc: str = _PROC) -> None:
        self._proc = proc
        self._threads = self._thread_times()
        self._stolen, self._used = self._machine()
        self._begun, self._begun_used, self._begun_own = (
            time.monotonic(),
            self._used,
            self._own_ticks(),
        )

    def lap(self) -> float | None:
        """The fraction since the last call, or since the beginning, 0 to 1. None if the kernel does
        not report it.
        """
        before, self._threads = self._threads, self._thread_times()
        stolen, used = self._stolen, self._used
        self._stolen, self._used = self._machine()
        ran = waited = 0
        for thread, (running, waiting) in self._threads.items():
            known = before.get(thread, (0, 0))
            ran += running - known[0]
            waited += waiting - known[1]
        if ran + waited <= 0:
            return None
        taken = (self._stolen - stolen) / max(self._used - used, 1)
        return 1 - (1 - waited / (ran + waited)) * (1 - min(max(taken, 0.0), 1.0))

    def others(self) -> float:
        """Fraction of the machine's cores that processes outside of this task have used since the
        beginning.
        """
        ticks = self._machine()[1] - self._begun_used - (self._own_ticks() - self._begun_own)
        had = (
            os.sysconf("SC_CLK_TCK")
            * (os.cpu_count() or 1)
            * max(time.monotonic() - self._begun, 1e-3)
        )
        return min(max(ticks / had, 0.0), 1.0)

    def _thread_times(self) -> dict[str, tuple[int, int]]:
        """Nanoseconds that each thread ran, and waited."""
        folder, waits = f"{self._proc}/self/task", {}
        try:
            for thread in os.listdir(folder):
                with open(f"{folder}/{thread}/schedstat", "rb") as file:
                    ran, waited, *_ = file.read().split()
                    waits[thread] = int(ran), int(waited)
        except (OSError, ValueError):  # a thread that has ended, or a kernel that does not count
            pass
        return waits

    def _machine(self) -> tuple[int, int]:
        """Clock ticks that a hypervisor took, and ticks that all CPUs were in use."""
        try:
            with open(f"{self._proc}/stat", "rb") as file:
                user, nice, system, _, _, irq, softirq, steal = map(
                    int, file.readline().split()[1:9]
                )
        except (OSError, ValueError):
            return 0, 0
        return steal, user + nice + system + irq + softirq + steal

    def _own_ticks(self) -> int:
        """Clock ticks that this task's processes and their waited-for children used. An engine
        starts each task in a session of its own.
        """
        session, ticks = os.getsid(0), 0
        for name in os.listdir(self._proc):
            if name.isdecimal():
                try:
                    with open(f"{self._proc}/{name}/stat", "rb") as file:
                        fields = file.read().rpartition(b") ")[2].split()
                except OSError:  # it has ended
                    continue
                if int(fields[3]) == session:
                    ticks += sum(map(int, fields[11:15]))
        return ticks
