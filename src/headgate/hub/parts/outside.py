"""Programs outside Headgate's jobs: their CPU use while jobs run, and OOM kills among them."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from headgate.engines.base import LOCAL
from headgate.hub.parts import Component
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.isolation.base import Box
from headgate.model.actions import Action
from headgate.model.cluster import Node
from headgate.model.events import Event, MemoryUsed, TaskExited, TaskStarted
from headgate.model.identifiers import TaskId
from headgate.model.reasons import Reason, ReasonKind
from headgate.recorded.recording import NEIGHBOUR
from headgate.sampling.available import AvailableMemory
from headgate.sampling.outside_kills import OutsideKillsReader
from headgate.sampling.outside_programs import (
    PROGRAMS,
    OutsideProgram,
    OutsideProgramsReader,
    neighbour_name,
)

_LOOK_SECONDS, _APART_SECONDS = 5.0, 1.0
"""Seconds between two looks during a run, and the least between looks when many runs begin."""
_MOST_PROGRAMS, _MOST_NEIGHBOURS = 5, 50
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
    """Records for each run which programs outside Headgate's jobs used the cores.

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
        self._reader = OutsideProgramsReader()
        self._used: dict[str, dict[tuple[str, str], OutsideProgram]] = {}
        self._beside: dict[str, _Beside] = {}
        self._looked_at = -math.inf

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        match event:
            case TaskStarted():
                self._begin()
            case TaskExited() | MemoryUsed() if time.monotonic() - self._looked_at >= _LOOK_SECONDS:
                self._look()

    def forget(self, run: str) -> None:
        self._used.pop(run, None)
        self._beside.pop(run, None)

    def _begin(self) -> None:
        """Start counting for runs that have just begun."""
        if self._not_begun() and time.monotonic() - self._looked_at >= _APART_SECONDS:
            self._look()
        self._used.update({run.id: {} for run in self._not_begun()})

    def _not_begun(self) -> list[LiveRun]:
        runs = self._live_runs.runs.values()
        return [run for run in runs if run.submission.engine == LOCAL and run.id not in self._used]

    def _look(self) -> None:
        last, self._looked_at = self._looked_at, time.monotonic()
        own = {os.getpid(), *(pid for box in self._boxes().values() for pid in box.pids())}
        programs = self._reader.look(own)
        elapsed = self._looked_at - last
        cores: dict[str, float] = {}
        for program in programs:
            if program.job is not None and math.isfinite(elapsed):
                name = neighbour_name(program)
                cores[name] = cores.get(name, 0.0) + program.seconds / elapsed
        for run in self._live_runs.runs.values():
            if (used := self._used.get(run.id)) is None:
                continue
            self._record(run, cores)
            for outside_program in programs:
                key = outside_program.user, outside_program.command
                before = used[key].seconds if key in used else 0.0
                used[key] = replace(outside_program, seconds=before + outside_program.seconds)
            most = sorted(used.values(), key=lambda program: -program.seconds)[:_MOST_PROGRAMS]
            if most:
                run.recorder.add(
                    "meta",
                    key=PROGRAMS,
                    value=json.dumps([asdict(outside_program) for outside_program in most]),
                )
        self._used.update({run.id: {} for run in self._not_begun()})

    def _record(self, run: LiveRun, cores: Mapping[str, float]) -> None:
        """Record the cores that each job of another user had since the last look. A reading counts
        from the one before, so a job that comes back is told to have used nothing until then.
        """
        now, beside = run.clock(), self._beside.setdefault(run.id, _Beside())
        if beside.looked_at is not None:
            for name in list(cores.keys() | beside.active)[:_MOST_NEIGHBOURS]:
                target = f"{NEIGHBOUR}{name}@{self._machine.name}"
                rows = [(now, cores.get(name, 0.0))]
                if name not in beside.active:
                    rows.insert(0, (beside.looked_at, 0.0))
                for t, used in rows:
                    run.recorder.add("usage", t=t, target=target, cpu_cores=used)
            beside.active = set(cores)
        beside.looked_at = now


@dataclass(slots=True)
class _Beside:
    """Jobs of other users that ran beside a run at the last look, and its second then."""

    active: set[str] = field(default_factory=set)
    looked_at: float | None = None
