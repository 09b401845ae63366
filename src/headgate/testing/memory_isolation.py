"""An isolation in memory: tasks are rows of a table, CPU time is computed, and a test drives the
clock.

It fulfils `IsolationContract`, with the programs of `headgate.testing.programs`. Any other command
runs until `MemoryBox.finish`.
"""

from __future__ import annotations

import os
import shlex
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headgate.isolation.base import NEVER, Box, Holder, Isolation, Launch, ignore
from headgate.isolation.spawning import find_program
from headgate.model.endings import Exit
from headgate.model.errors import IsolationError
from headgate.model.shares import UNLIMITED, WEIGHT_DEFAULT, Share, Uncontrolled
from headgate.model.units import say_bytes
from headgate.testing import programs

FIRST_PID = 1 << 23
"""A number above all process ids of Linux, so that a twin's is never mistaken for a real one."""
SHARE_AT_START = Share(
    cpu_weight=WEIGHT_DEFAULT,
    cpu_cap_cores=UNLIMITED,
    memory_bytes=UNLIMITED,
    disk_bytes_per_second=UNLIMITED,
    gpu_fraction=UNLIMITED,
)


@dataclass(slots=True)
class Row:
    """A process of the twin."""

    pid: int
    memory_bytes: int = 0
    spins: bool = False
    ignores_terminate: bool = False
    alive: bool = True


class MemoryIsolation(Isolation):
    """Boxes in memory on a machine with `cores` cores."""

    name = "memory"

    def __init__(self, cores: int = 2) -> None:
        self.cores = cores
        self.now = 0.0
        self.boxes: dict[str, MemoryBox] = {}
        """The boxes that are not closed, by task."""
        self._pids = FIRST_PID

    def start(
        self,
        launch: Launch,
        share: Share,
        output_fd: int,
        stopped: threading.Event = NEVER,
        made: Callable[[Box], None] = ignore,
    ) -> MemoryBox:
        find_program(launch)
        if launch.task in self.boxes:
            raise IsolationError(f"{launch.task}: its box exists already")
        box = self.make_box(launch, share, output_fd)
        self.boxes[launch.task] = box
        try:
            made(box)
        except BaseException:
            box.close()
            raise
        box.begin()
        return box

    def make_box(self, launch: Launch, share: Share, output_fd: int) -> MemoryBox:
        return MemoryBox(self, launch, share, output_fd)

    def describe(self, launch: Launch, share: Share) -> Sequence[str]:
        return (f"box {launch.task} with {share}", f"exec {shlex.join(launch.argv)}")

    def uncontrolled(self) -> tuple[Uncontrolled, ...]:
        return ()

    def sweep(self, record: Mapping[str, object]) -> None:
        box = self.boxes.get(str(record.get("task")))
        if box is not None and box.pid == record.get("pid"):
            box.close()

    def release(self, record: Mapping[str, object]) -> None:
        box = self.boxes.get(str(record.get("task")))
        if box is not None and box.pid == record.get("pid"):
            box.release()

    def new_pid(self) -> int:
        self._pids += 1
        return self._pids

    def alive(self, pid: int) -> bool:
        return any(row.alive and row.pid == pid for box in self.boxes.values() for row in box.rows)

    def advance(self, seconds: float) -> None:
        """Let time pass. Each core is divided among the processes that spin on it, by weight and
        within their caps.
        """
        self.now += seconds
        running = [box for box in self.boxes.values() if not box.held_still]
        spinning = [box for box in running if any(row.alive and row.spins for row in box.rows)]
        left = dict.fromkeys(range(self.cores), 1.0)
        open_boxes = {box: box.most_cores() for box in spinning}
        while open_boxes:
            # The box that its cap limits first is served first; the others then divide the rest.
            rates = {box: self._fair_cores(box, open_boxes, left) for box in open_boxes}
            bound = [box for box in open_boxes if open_boxes[box] <= rates[box]]
            box = bound[0] if bound else max(rates, key=lambda candidate: rates[candidate])
            granted = min(rates[box], open_boxes.pop(box))
            box.cpu_seconds += granted * seconds
            for cpu in box.allowed():
                taken = min(left[cpu], granted)
                left[cpu] -= taken
                granted -= taken

    def _fair_cores(
        self, box: MemoryBox, among: Mapping[MemoryBox, float], left: Mapping[int, float]
    ) -> float:
        demand = sum(left[cpu] for cpu in box.allowed())
        rivals = sum(other.weight() for other in among if other.allowed() & box.allowed())
        return demand * box.weight() / rivals


class MemoryBox(Box):
    """A task of a `MemoryIsolation`."""

    def __init__(
        self, isolation: MemoryIsolation, launch: Launch, share: Share, output_fd: int
    ) -> None:
        self.isolation = isolation
        self.launch = launch
        self.task = launch.task
        self.pid = isolation.new_pid()
        self.rows = [Row(self.pid)]
        self.share = SHARE_AT_START.merged(share)
        self.cpus: frozenset[int] | None = None
        self.cpu_seconds = 0.0
        self.closed = False
        self.held_still = False
        self._ending = False
        self._exit: Exit | None = None
        self._output = os.dup(output_fd)
        self._exit_fd = os.eventfd(0)

    @property
    def exit_fd(self) -> int:
        return self._exit_fd

    @property
    def cgroups(self) -> Mapping[str, Path]:
        return {}

    def begin(self) -> None:
        """Run the program."""
        name, arguments = programs.parse(self.launch.argv) or ("", ())
        first = self.rows[0]
        match name:
            case "where":
                self._say(f"session {self.pid}", "descriptors 0 1 2", "ready")
            case "leave":
                self.finish(Exit(code=int(arguments[0])))
            case "spin":
                for row in (first, *(self._fork() for _ in range(int((*arguments, "1")[0]) - 1))):
                    row.spins = True
                self._say("ready")
            case "hold":
                self._hold(first, int(arguments[0]))
            case "nurse":
                self._hold(self._fork(), int(arguments[0]))
            case "daemon":
                self._say(f"daemon {self._fork().pid}", "ready")
            case "breed":
                self.rows += [self._fork() for _ in range(3)]
                self._say("ready")
            case "stubborn":
                first.ignores_terminate = True
                self._say("ready")
            case "rest":
                self._say("ready")

    def finish(self, exit: Exit) -> None:
        """Let the first process end like this. Its daemons live on."""
        if self._exit is None:
            self._exit = replace(exit, cpu_seconds=self.cpu_seconds)
            self.rows[0].alive = False
            os.eventfd_write(self._exit_fd, 1)
            os.close(self._output)

    def pids(self) -> list[int]:
        return [row.pid for row in self.rows if row.alive]

    def apply(self, share: Share) -> tuple[Uncontrolled, ...]:
        if self._exit is not None:
            return ()
        limit = share.memory_bytes
        if isinstance(limit, int) and limit < self.held():
            raise IsolationError(
                f"{self.task}: a memory limit of {say_bytes(limit)} is below what it holds now"
            )
        self.share = self.share.merged(share)
        return ()

    def pin(self, cpus: frozenset[int] | None) -> tuple[Uncontrolled, ...]:
        if self._exit is not None:
            return ()
        if cpus is not None and not cpus & frozenset(range(self.isolation.cores)):
            raise IsolationError(f"{self.task}: there are no cores {sorted(cpus)}")
        self.cpus = cpus
        return ()

    def hold(self, by: Holder = Holder.PROOF) -> bool:
        self.held_still = self._exit is None and not self._ending
        return self.held_still

    def release(self, by: Holder = Holder.PROOF) -> None:
        self.held_still = False

    def terminate(self) -> None:
        self._ending = True
        self.release()
        for row in self.rows:
            if not row.ignores_terminate:
                self._end(row, signal.SIGTERM)

    def kill(self) -> None:
        for row in self.rows:
            self._end(row, signal.SIGKILL)

    def reap(self) -> Exit:
        if self._exit is None:
            raise IsolationError(f"{self.task}: it has not ended; wait for its exit_fd")
        return self._exit

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.kill()
        os.close(self._exit_fd)
        self.isolation.boxes.pop(self.task, None)

    def record(self) -> dict[str, object]:
        return {"task": self.task, "pid": self.pid}

    def weight(self) -> float:
        return self.share.cpu_weight or WEIGHT_DEFAULT

    def allowed(self) -> frozenset[int]:
        all_cores = frozenset(range(self.isolation.cores))
        return all_cores if self.cpus is None else all_cores & self.cpus

    def most_cores(self) -> float:
        """The most cores that it could use now: one for each process that spins, within its cap."""
        cap = self.share.cpu_cap_cores
        spinning = float(sum(row.alive and row.spins for row in self.rows))
        return min(spinning, cap) if isinstance(cap, int | float) else spinning

    def held(self) -> int:
        return sum(row.memory_bytes for row in self.rows if row.alive)

    def _hold(self, row: Row, count: int) -> None:
        limit = self.share.memory_bytes
        if isinstance(limit, int) and self.held() + count > limit:
            self.rows[1:] = []
            reason = (
                f"killed: over its memory limit of {say_bytes(limit)} (peak {say_bytes(limit)})"
            )
            only_child = row is not self.rows[0]
            self.finish(
                Exit(
                    code=1 if only_child else None,
                    signal=None if only_child else signal.SIGKILL,
                    memory_peak_bytes=limit,
                    over_memory=True,
                    reason=reason,
                    limit_bytes=limit,
                )
            )
            return
        row.memory_bytes = count
        self._say(f"holds {count}", "ready")

    def _fork(self) -> Row:
        row = Row(self.isolation.new_pid())
        self.rows.append(row)
        return row

    def _end(self, row: Row, number: signal.Signals) -> None:
        if row is self.rows[0]:
            self.finish(Exit(code=None, signal=number))
        row.alive = False

    def _say(self, *lines: str) -> None:
        os.write(self._output, "".join(f"{line}\n" for line in lines).encode())
