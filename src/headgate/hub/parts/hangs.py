"""Jobs that make no step for far longer than usual: an event says so, with where each of their tasks stands."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from headgate.errors import HeadgateError
from headgate.events import Action, Event, Progress, TaskExited, TaskStarted
from headgate.hub.state.live_runs import Component, LiveRuns
from headgate.hub.state.run import LiveRun
from headgate.identifiers import JobId, TaskId
from headgate.telemetry import stacks
from headgate.telemetry.stacks import Frame, TaskStacks
from headgate.units import say_seconds

LEAST_SECONDS = 60.0
"""Without a step: a shorter silence is not told of, however short steps are."""
_TIMES = 10.0
"""By so many times the longest time between two steps so far, which an evaluation or a checkpoint may have been."""
_LEAST_STEPS = 3
"""Reports of a step, before what is usual is known."""
_NOT_THE_SCRIPT = ("-packages/", "/lib/python", "/inject/", "<frozen")
"""In the files of calls that no user wrote."""


@dataclass
class StepClock:
    """How long a job usually takes from one step to the next, and since when it has made none.

    Args:
        at: When its attempt began, in seconds.
        least: Seconds without a step that are never told of.
    """

    at: float
    least: float = LEAST_SECONDS
    step: int = -1
    reports: int = 0
    longest: float = 0.0
    told: bool = False

    def reported(self, now: float, step: int) -> float | None:
        """It has come to this step; where its silence was told of, how long it was."""
        if step <= self.step:
            return None
        silence, was_told = now - self.at, self.told
        if self.reports:  # the first one has its start in it
            self.longest = max(self.longest, silence)
        self.step, self.at, self.told = step, now, False
        self.reports += 1
        return silence if was_told else None

    def is_late(self, now: float) -> bool:
        """Whether it has made no step for far longer than usual, and nobody was told."""
        usual = max(self.least, _TIMES * self.longest)
        return not self.told and self.reports >= _LEAST_STEPS and now - self.at > usual

    def stood_still(self, seconds: float) -> None:
        """The machine or the hub stood still for so long: nobody made a step then."""
        self.at += seconds


@dataclass
class _Watched:
    """An attempt of a job, and the first process of each of its tasks."""

    clock: StepClock
    pids: dict[TaskId, int] = field(default_factory=dict)


class Hangs(Component):
    """Watches the steps of all jobs.

    Args:
        live_runs: Whose runs are told.
        is_here: Whether the tasks of a run are processes of this machine.
        least: Seconds without a step that are never told of; it looks ten times as often.
    """

    def __init__(self, live_runs: LiveRuns, is_here: Callable[[LiveRun], bool], least: float = LEAST_SECONDS) -> None:
        self._live_runs = live_runs
        self._is_here = is_here
        self._least = least
        self._watched: dict[JobId, _Watched] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._looked = time.monotonic()
        self._reading: set[asyncio.Task[None]] = set()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, TaskStarted):
            fresh = _Watched(StepClock(time.monotonic(), self._least))
            self._watched.setdefault(event.task.job, fresh).pids[event.task] = event.pid
            if self._timer is None:
                self._looked = time.monotonic()
                self._look_later()
        elif isinstance(event, Progress) and event.step is not None:
            self._reported(event.task, event.step)
        elif isinstance(event, TaskExited) and (watched := self._watched.get(event.task.job)) is not None:
            watched.pids.pop(event.task, None)
            if not watched.pids:
                del self._watched[event.task.job]

    def forget(self, run: str) -> None:
        self._watched = {job: watched for job, watched in self._watched.items() if job.run != run}

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for reading in self._reading:
            reading.cancel()

    def _reported(self, task: TaskId, step: int) -> None:
        job = task.job
        if (watched := self._watched.get(job)) is None:
            return
        silence = watched.clock.reported(time.monotonic(), step)
        if silence is not None and job.run in self._live_runs.runs:
            run = self._live_runs.runs[job.run]
            self._live_runs.event(
                run, "note", f"it makes steps again, after {say_seconds(silence)} without one", job.name
            )

    def _look_later(self) -> None:
        self._timer = self._loop.call_later(self._least / 10, self._look)

    def _look(self) -> None:
        now = time.monotonic()
        paused, self._looked = now - self._looked - self._least / 10, now
        if not self._watched:
            self._timer = None
            return
        self._look_later()
        for job, watched in self._watched.items():
            if paused > self._least / 10:
                watched.clock.stood_still(paused)
            if watched.clock.is_late(now) and job.run in self._live_runs.runs:
                watched.clock.told = True
                run, silence = self._live_runs.runs[job.run], now - watched.clock.at
                reading = self._loop.create_task(self._tell(job, run, dict(watched.pids), silence))
                self._reading.add(reading)
                reading.add_done_callback(self._reading.discard)

    async def _tell(self, job: JobId, run: LiveRun, pids: dict[TaskId, int], silence: float) -> None:
        """Say where its tasks stand; reading that takes some time, and is not done on the hub's loop."""
        where = "its tasks run elsewhere, and where they stand is not known"
        if self._is_here(run):
            where = await asyncio.to_thread(_where, pids)
        if job.run in self._live_runs.runs:
            text = f"no step for {say_seconds(silence)}, far longer than usual: {where}"
            self._live_runs.event(run, "warning", text, job.name)


def _where(pids: dict[TaskId, int]) -> str:
    """Where each task stands, in a line, tasks of one place together; the one that differs is named."""
    try:
        groups = stacks.grouped(stacks.read(task.name, pid) for task, pid in pids.items())
    except (HeadgateError, OSError, ValueError) as error:
        return f"where its tasks stand cannot be read: {error}"
    told = [_place(group) for group in groups]
    differ = stacks.differing(groups)
    others = f"; {', '.join(differ)}: elsewhere than most; the others may be waiting for it" if differ else ""
    return "; ".join(told) + others


def _place(group: Sequence[TaskStacks]) -> str:
    """Where the tasks of a group are: the call that they are in, and the line of the script that led there."""
    names = ", ".join(task.task for task in group)
    frames = group[0].place
    if not frames:
        return f"{names}: {group[0].trouble}"
    own = next((frame for frame in frames if not any(part in frame.file for part in _NOT_THE_SCRIPT)), frames[-1])
    told = [_call(frame) for frame in dict.fromkeys([frames[0], own])]
    return f"{names} in {', called from '.join(told)}"


def _call(frame: Frame) -> str:
    return f"{frame.function} ({os.path.basename(frame.file)}:{frame.line})"
