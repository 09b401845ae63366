"""Write the controller's events and decisions to the logs of the runs and of the hub."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.model import events, progress, records
from headgate.model.actions import Action, PlanJob, StartTask, StopTask, subject
from headgate.model.events import Event, Notice
from headgate.model.identifiers import JobId, TaskId
from headgate.planning.interference import Interference
from headgate.recorded.events import CONTROLLER, HUB_LOG, LoggedEvent, encode, kind_of

MOST_READINGS = 200_000
"""Readings of a run after which its log keeps only those that led to an action."""
HUB_LOG_BYTES = 2 * 2**20
"""Size at which the hub's own log is rotated, replacing the previous one."""
_READINGS = (
    events.Usage | progress.Progress | events.MemoryUsed | events.GpuMemoryUsed | events.Wake
)
_AFTER_START = (
    events.TaskStarted
    | events.TaskReady
    | events.TaskConnected
    | events.TaskJoined
    | events.TaskExited
)
_AFTER_STOP = events.TaskExited | events.CheckpointDone


class EventLog:
    """Numbers the entries of successive controllers, and writes each to the right logs.

    An event goes to the log of its run, and of each run that one of its actions concerns. An event
    without a run goes to the oldest run and, unless it is a reading, to the hub's own log.

    Args:
        folder: The hub's folder.
        last: The number after which entries are counted, because runs that are taken up have it.
    """

    def __init__(self, live_runs: LiveRuns, folder: Path, last: int = 0) -> None:
        self._live_runs = live_runs
        self._path = folder / HUB_LOG
        self._last = last
        self._forget_all()

    def _forget_all(self) -> None:
        self._controller = secrets.token_hex(8)
        self._id = self._last
        self._before: list[LoggedEvent] = []  # entries from before any run
        self._readings: Counter[str] = Counter()
        self.pairs = Interference()  # the pairs known to the controller
        self._starts: dict[TaskId, int] = {}
        self._stops: dict[TaskId, int] = {}
        self._plans: dict[tuple[JobId, int], int] = {}

    def controller_made(self, now: float, policy: str) -> None:
        """Record a new controller."""
        self._forget_all()
        self._notice(now, events.ControllerMade(policy))

    def begin(self, run: LiveRun) -> None:
        """Start the log of a run with what the controller was told before."""
        run.recorder.add("meta", key=CONTROLLER, value=self._controller)
        for entry in self._before:
            self._write(run, entry)

    def note_pairs(self, now: float, known: Interference) -> None:
        """Record the known slowdowns of pairs if they have changed."""
        if known is not self.pairs:
            if known or self.pairs:
                self._notice(now, events.PairsKnown(known.pairs, known.solo))
            self.pairs = known

    def forget(self, now: float, run: str) -> None:
        """Record that the controller drops an ended run."""
        self._notice(now, events.RunForgotten(run))
        for causes in (self._starts, self._stops):
            for task in [task for task in causes if task.run == run]:
                del causes[task]
        for job, revision in [key for key in self._plans if key[0].run == run]:
            del self._plans[job, revision]
        self._readings.pop(run, None)

    def record(self, now: float, event: Event, actions: Sequence[Action]) -> None:
        """Write an event and the controller's actions."""
        is_reading = isinstance(event, _READINGS)
        if is_reading and not self._live_runs.runs:
            return
        entry = self._entry(now, event, self._cause(event))
        if self._of(event) is None and not is_reading:
            self._write_to_hub(entry)
        for run in self._concerned(event, *actions):
            if not is_reading or actions or self._has_room(now, run):
                self._write(run, entry)
        if not self._live_runs.runs:
            self._before.append(entry)
        for action in actions:
            decided = self._entry(now, action, entry.id)
            self._remember(decided)
            for run in self._concerned(action):
                self._write(run, decided)

    def _notice(self, now: float, notice: Notice) -> None:
        entry = self._entry(now, notice, None)
        self._write_to_hub(entry)
        for run in self._concerned(notice):
            self._write(run, entry)
        if not self._live_runs.runs:
            self._before.append(entry)

    def _entry(self, now: float, what: Event | Action | Notice, cause: int | None) -> LoggedEvent:
        self._id += 1
        return LoggedEvent("", self._id, time.time(), now, kind_of(what), what, cause)

    def _of(self, what: Event | Action | Notice) -> str | None:
        """The live run that an entry is about."""
        about = subject(what)
        return about.run if about is not None and about.run in self._live_runs.runs else None

    def _concerned(self, *entries: Event | Action | Notice) -> list[LiveRun]:
        """The runs that entries are about; the oldest run if they name none."""
        live = self._live_runs.runs
        ids = dict.fromkeys(id for id in map(self._of, entries) if id is not None)
        return [live[id] for id in ids] or list(islice(live.values(), 1))

    def _has_room(self, now: float, run: LiveRun) -> bool:
        self._readings[run.id] += 1
        if self._readings[run.id] == MOST_READINGS + 1:
            self._write(run, self._entry(now, events.ReadingsLeftOut(MOST_READINGS), None))
        return self._readings[run.id] <= MOST_READINGS

    def _cause(self, event: Event) -> int | None:
        """Id of the action that an event answers."""
        if isinstance(event, _AFTER_STOP) and event.task in self._stops:
            return self._stops[event.task]
        if isinstance(event, _AFTER_START):
            return self._starts.get(event.task)
        if isinstance(event, events.JobPlanned):
            return self._plans.get((event.job, event.revision))
        return None

    def _remember(self, entry: LoggedEvent) -> None:
        """Keep an entry that an event may answer."""
        match entry.what:
            case StartTask(task=task):
                self._starts[task] = entry.id
                self._stops.pop(task, None)
            case StopTask(task=task):
                self._stops[task] = entry.id
            case PlanJob(job, _, revision):
                self._plans[job, revision] = entry.id

    def _write(self, run: LiveRun, entry: LoggedEvent) -> None:
        job = entry.job
        run.recorder.add(
            "log",
            id=entry.id,
            t=entry.now - run.began,
            now=entry.now,
            kind=entry.kind,
            job=job.name if job is not None and job.run == run.id else None,
            cause=entry.cause,
            value=encode(records.dump(entry.what)),
        )

    def _write_to_hub(self, entry: LoggedEvent) -> None:
        line = encode(entry.as_json()) + "\n"
        with contextlib.suppress(OSError):  # the disk may be full
            if self._path.exists() and self._path.stat().st_size + len(line) > HUB_LOG_BYTES:
                os.replace(self._path, f"{self._path}.1")
            with open(self._path, "a") as file:
                file.write(line)
