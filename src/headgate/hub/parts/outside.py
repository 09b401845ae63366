"""What others use of this machine while jobs run, and OOM kills among programs outside."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from headgate.arbiter.records import DiskMoved
from headgate.engines.base import LOCAL
from headgate.hub.parts import Component
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.isolation.base import Box
from headgate.model.actions import Action
from headgate.model.cluster import Node
from headgate.model.events import Event, GpuMemoryUsed, MemoryUsed, TaskExited, TaskStarted
from headgate.model.identifiers import TaskId
from headgate.model.reasons import Reason, ReasonKind
from headgate.recorded.tables import NEIGHBOUR, neighbour_on_gpu
from headgate.sampling.available import AvailableMemory
from headgate.sampling.outside_kills import OutsideKillsReader
from headgate.sampling.outside_programs import (
    OUTSIDE,
    PROGRAMS,
    OutsideProgram,
    OutsideProgramsReader,
    ProgramKey,
    neighbour_name,
)
from headgate.sampling.process_use import DiskBytes, ProcessKey

_LOOK_SECONDS, _APART_SECONDS = 5.0, 1.0
"""Seconds between two looks during a run, and the least between looks when many runs begin."""
_MOST_PROGRAMS, _MOST_NEIGHBOURS = 5, 50
_MEASURES: tuple[Callable[[OutsideProgram], float], ...] = (
    lambda program: program.seconds,
    lambda program: program.disk_bytes,
    lambda program: program.gpu_seconds,
)
_TOLD_SECONDS = 15.0
"""An arbiter that was silent for so long, three of its readings, is gone."""
_Columns = dict[str, float]
"""What was used, by `headgate.sampling.columns.Column`."""
_TIGHT = 1 / 4
"""Fraction of the machine's memory below which the processes' memory is recorded."""


class OutsideKilled(Component):
    """Warns runs on this machine of programs that were killed beside their jobs.

    Args:
        machine: This machine.
        live_runs: The runs.
        boxes: The boxes of the tasks here.
    """

    def __init__(
        self, machine: Node, live_runs: LiveRuns, boxes: Callable[[], Mapping[TaskId, Box]]
    ) -> None:
        self._machine = machine
        self._live_runs = live_runs
        self._boxes = boxes
        self._reader = OutsideKillsReader(AvailableMemory().domain)
        self._running: set[TaskId] = set()
        self._own: dict[TaskId, int] = {}
        self._forgotten = 0
        self._is_tight = False
        self._look()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        match event:
            case TaskStarted(task):
                self._running.add(task)
            case TaskExited(task, exit):
                self._running.discard(task)
                self._own[task] = max(exit.kills, self._own.get(task, 0))
                self._look()
            case MemoryUsed(node, available) if node == self._machine.name:
                self._is_tight = available < _TIGHT * self._machine.memory_bytes
                self._look()

    def forget(self, run: str) -> None:
        for task in [task for task in self._own if task.run == run]:
            self._forgotten += self._own.pop(task)
        self._running = {task for task in self._running if task.run != run}

    def close(self) -> None:
        self._reader.close()

    def _look(self) -> None:
        boxes = self._boxes()
        for task, box in boxes.items():
            self._own[task] = max(box.kills(), self._own.get(task, 0))
        if any(task.run in self._live_runs.runs and task not in boxes for task in self._running):
            return  # its exit is about to arrive: it may have been killed itself
        folders = [Path(folder) for box in boxes.values() for folder in box.cgroups.values()]
        pids = [pid for box in boxes.values() for pid in box.pids()] if self._is_tight else []
        killed = self._reader.look(
            folders, self._forgotten + sum(self._own.values()), pids, tight=self._is_tight
        )
        if killed is None:
            return
        reason = Reason(ReasonKind.KILLED_OUTSIDE, asdict(killed))
        for run in self._live_runs.runs.values():
            if run.submission.engine == LOCAL:
                self._live_runs.event(run, "warning", reason)


class OutsideUse(Component):
    """Records for each run what others on this machine used beside its jobs: the jobs of other
    users, and programs outside Headgate.

    Args:
        machine: This machine.
        live_runs: The runs.
        boxes: The boxes of the tasks here.
        on_gpus: What processes in no box used of each GPU since the last reading, as
            `GpuSampler.others`.
    """

    def __init__(
        self,
        machine: Node,
        live_runs: LiveRuns,
        boxes: Callable[[], Mapping[TaskId, Box]],
        on_gpus: Callable[[], Mapping[int, Mapping[int, float]]],
    ) -> None:
        self._machine = machine
        self._live_runs = live_runs
        self._boxes = boxes
        self._on_gpus = on_gpus
        self._reader = OutsideProgramsReader()
        self._used: dict[str, dict[ProgramKey, OutsideProgram]] = {}
        self._beside: dict[str, _Beside] = {}
        self._on_gpus_beside: dict[str, _Beside] = {}
        self._moved: dict[ProcessKey, DiskBytes] = {}
        self._moved_seconds = 0.0
        self._moved_readings: dict[str, _Columns] = {}
        self._disks_counted: dict[str, float] = {}
        self._unrecorded: set[str] = set()
        self._looked_at = self._gpus_read_at = self._told_at = -math.inf

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        match event:
            case TaskStarted():
                self._begin()
            case GpuMemoryUsed(node) if node == self._machine.name:
                self._look_at_gpus()
            case TaskExited() | MemoryUsed() if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
                self._look()
            case TaskExited(task) if (run := self._live_runs.runs.get(task.run)) is not None:
                self._record_programs(run)

    def moved(self, moved: DiskMoved) -> None:
        """Take what the arbiter read of the disk use of all users' processes."""
        self._told_at = time.monotonic()
        if not self._used:
            return  # nothing runs here that it could slow
        self._moved_seconds += moved.seconds
        for process in moved.processes:
            key = ProcessKey(process.pid, process.began)
            since = DiskBytes(process.read, process.written)
            self._moved[key] = self._moved.get(key, DiskBytes()).plus(since)
        if self._told_at - self._looked_at >= _APART_SECONDS:
            self._look()

    def forget(self, run: str) -> None:
        for of_runs in (self._used, self._beside, self._on_gpus_beside, self._disks_counted):
            of_runs.pop(run, None)
        self._unrecorded.discard(run)
        if not self._used:
            self._moved, self._moved_seconds, self._moved_readings = {}, 0.0, {}

    def _begin(self) -> None:
        """Start counting for runs that have just begun."""
        if self._not_begun() and time.monotonic() - self._looked_at >= _APART_SECONDS:
            self._look()
        self._begin_counting()

    def _begin_counting(self) -> None:
        for run in self._not_begun():
            self._used[run.id] = {}
            self._disks_counted[run.id] = time.monotonic()

    def _not_begun(self) -> list[LiveRun]:
        runs = self._live_runs.runs.values()
        return [run for run in runs if run.submission.engine == LOCAL and run.id not in self._used]

    def _look(self) -> None:
        last, self._looked_at = self._looked_at, time.monotonic()
        own = {os.getpid(), *(pid for box in self._boxes().values() for pid in box.pids())}
        has_arbiter = self._looked_at - self._told_at < _TOLD_SECONDS
        programs = self._reader.look(own, has_arbiter=has_arbiter)
        readings: dict[str, _Columns] = {}
        _add_rates(readings, programs, self._looked_at - last)
        moved, moved_seconds = self._take_moved(has_arbiter)
        for name, rates in self._moved_readings.items():
            reading = readings.setdefault(name, {})
            for column, rate in rates.items():
                reading[column] = reading.get(column, 0.0) + rate
        for run in self._live_runs.runs.values():
            if run.id in self._used:
                self._record(run, self._beside, readings)
                self._count(run, programs)
                if moved_seconds > 0.0 or not has_arbiter:
                    since = self._looked_at - self._disks_counted[run.id]
                    self._disks_counted[run.id] = self._looked_at
                    part = min(since / moved_seconds, 1.0) if moved_seconds > 0.0 else 0.0
                    self._count(run, [_part_of(program, part) for program in moved])
                self._record_programs(run)
        self._begin_counting()

    def _take_moved(self, has_arbiter: bool) -> tuple[list[OutsideProgram], float]:
        """The programs that moved bytes on disks as the arbiter told since the last look, and the
        seconds in which they did. Until it tells more, they go on at that rate.
        """
        seconds, programs = self._moved_seconds, list[OutsideProgram]()
        if seconds > 0.0 or not has_arbiter:
            programs = self._reader.moved_by(self._moved)
            self._moved_readings = {}
            _add_rates(self._moved_readings, programs, seconds)
            self._moved, self._moved_seconds = {}, 0.0
        return programs, seconds

    def _look_at_gpus(self) -> None:
        last, self._gpus_read_at = self._gpus_read_at, time.monotonic()
        elapsed = self._gpus_read_at - last if math.isfinite(last) else 0.0
        readings: dict[str, _Columns] = {}
        programs = []
        for gpu, by_pid in self._on_gpus().items():
            for pid, busy in by_pid.items():
                program = self._reader.program_of(pid)
                if program is not None and program.job is not None:
                    name = neighbour_name(program)
                else:
                    name = OUTSIDE
                reading = readings.setdefault(neighbour_on_gpu(name, gpu), {})
                reading["gpu_busy"] = reading.get("gpu_busy", 0.0) + busy
                if program is not None and busy > 0.0:
                    programs.append(replace(program, gpu_seconds=busy * elapsed))
        for run in self._live_runs.runs.values():
            if run.id in self._used:
                self._record(run, self._on_gpus_beside, readings)
                self._count(run, programs)

    def _count(self, run: LiveRun, programs: Sequence[OutsideProgram]) -> None:
        """Add to what programs used during a run."""
        used = self._used[run.id]
        for program in programs:
            before = used.get(program.key)
            used[program.key] = program if before is None else before.plus(program)
            self._unrecorded.add(run.id)

    def _record_programs(self, run: LiveRun) -> None:
        """Record the programs that used most during a run, if more was counted since."""
        if run.id not in self._unrecorded:
            return
        self._unrecorded.discard(run.id)
        used = self._used[run.id]
        most: dict[ProgramKey, OutsideProgram] = {}
        for measure in _MEASURES:
            largest = sorted(used.values(), key=measure, reverse=True)[:_MOST_PROGRAMS]
            most |= {program.key: program for program in largest if measure(program) > 0.0}
        run.recorder.add(
            "meta", key=PROGRAMS, value=json.dumps([asdict(program) for program in most.values()])
        )

    def _record(
        self,
        run: LiveRun,
        of_runs: dict[str, _Beside],
        readings: Mapping[str, _Columns],
    ) -> None:
        """Record what others used since the last look. A reading counts from the one before, so one
        that comes back is told to have used nothing until then.
        """
        now, beside = run.clock(), of_runs.setdefault(run.id, _Beside())
        if beside.looked_at is not None:
            columns = beside.active | {name: tuple(used) for name, used in readings.items()}
            for name in list(columns)[:_MOST_NEIGHBOURS]:
                nothing = dict.fromkeys(columns[name], 0.0)
                rows = [(now, readings.get(name, nothing))]
                if name not in beside.active:
                    rows.insert(0, (beside.looked_at, nothing))
                target = f"{NEIGHBOUR}{name}@{self._machine.name}"
                for t, used in rows:
                    run.recorder.add("usage", t=t, target=target, **used)
            beside.active = {name: tuple(used) for name, used in readings.items()}
        beside.looked_at = now


def _add_rates(
    readings: dict[str, _Columns], programs: Sequence[OutsideProgram], seconds: float
) -> None:
    """Add what programs used a second to the readings of their neighbours.

    Args:
        readings: By the neighbour's name.
        programs: The programs.
        seconds: Time in which they used it; not finite or 0: unknown, and nothing is added.
    """
    if not 0.0 < seconds < math.inf:
        return
    for program in programs:
        is_job = program.job is not None
        reading = readings.setdefault(neighbour_name(program) if is_job else OUTSIDE, {})
        used = {"disk_read": program.disk_read, "disk_write": program.disk_written}
        if is_job:  # the node's cores show those of programs outside
            used["cpu_cores"] = program.seconds
        for column, total in used.items():
            reading[column] = reading.get(column, 0.0) + total / seconds


def _part_of(program: OutsideProgram, part: float) -> OutsideProgram:
    """A program with a part of the bytes that it moved."""
    return replace(
        program, disk_read=program.disk_read * part, disk_written=program.disk_written * part
    )


@dataclass(slots=True)
class _Beside:
    """Who was beside a run at the last look, with the columns that were recorded, and its second
    then.
    """

    active: dict[str, tuple[str, ...]] = field(default_factory=dict)
    looked_at: float | None = None
