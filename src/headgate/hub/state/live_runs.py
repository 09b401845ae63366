"""What the parts of a hub share: what a part is, the runs that have not ended, and the clients that watch them."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from headgate.events import Action, Event
from headgate.hub.state.job import LiveJob
from headgate.hub.state.run import LiveRun
from headgate.identifiers import JobId, TaskId
from headgate.units import say_text

SHOW_SECONDS = 0.5

Watcher = Callable[[dict[str, Any]], None]


class Watchers:
    """Tells the watchers of a run what happens to it, and twice a second how it stands.

    Args:
        snapshot: How a run stands; None once it has ended.
    """

    def __init__(self, snapshot: Callable[[str], dict[str, Any] | None]) -> None:
        self._snapshot = snapshot
        self._watchers: dict[str, set[Watcher]] = {}
        self._timer: asyncio.Handle | None = None

    def add(self, run: str, watcher: Watcher) -> Callable[[], None]:
        """Have `watcher` called with what there is to say of a run; the function returned ends that."""
        watchers = self._watchers.setdefault(run, set())
        watchers.add(watcher)
        if self._timer is None:
            # Not at once: the answer to the request comes first.
            self._timer = asyncio.get_running_loop().call_soon(self._show)
        return lambda: watchers.discard(watcher)

    def tell(self, run: str, message: dict[str, Any]) -> None:
        """Send a message to all watchers of a run."""
        for watcher in list(self._watchers.get(run, ())):
            watcher(message)

    def drop(self, run: str) -> None:
        """There is nothing more to say of a run."""
        self._watchers.pop(run, None)

    def close(self) -> None:
        """Say no more by the clock."""
        if self._timer is not None:
            self._timer.cancel()

    def _show(self) -> None:
        self._timer = None
        snapshots = {run: self._snapshot(run) for run, watchers in self._watchers.items() if watchers}
        if any(snapshot is not None for snapshot in snapshots.values()):
            self._timer = asyncio.get_running_loop().call_later(SHOW_SECONDS, self._show)
        for run, snapshot in snapshots.items():
            if snapshot is not None:
                self.tell(run, snapshot)


class Component:
    """A part of the hub. The hub tells all of its parts of each event, of each run that has ended, and of its own end.
    An error in one part does not affect the others."""

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        """Take in an event, and what the controller did about it."""

    def forget(self, run: str) -> None:
        """A run has ended."""

    def close(self) -> None:
        """The hub ends."""


class LiveRuns:
    """Finds runs, and tells what happens to them to their stores and to whoever watches.

    Args:
        policy: Name of the policy as of now.
    """

    def __init__(self, policy: Callable[[], str]) -> None:
        self.runs: dict[str, LiveRun] = {}
        self.watchers = Watchers(self._snapshot)
        self._policy = policy
        self._loop = asyncio.get_running_loop()

    def find(self, id: JobId | TaskId) -> tuple[LiveRun, LiveJob]:
        """Run and job of a job's or task's id."""
        job = id if isinstance(id, JobId) else id.job
        return self.runs[job.run], self.runs[job.run].jobs[job.name]

    def event(
        self, run: LiveRun, kind: str, text: str, job: str | None = None, task: TaskId | None = None, **more: object
    ) -> None:
        """Something happened to a run; `more` names further columns of the store's table of events."""
        text = say_text(text)
        at, name = run.clock(), task.of_run if task else None
        run.event(at, kind, text, job=job, task=name, **more)
        message = {"type": "event", "t": at, "kind": kind, "text": text, "job": job, "task": name}
        self.watchers.tell(run.id, message)

    def failed(self, what: str, error: BaseException, about: str | None = None) -> None:
        """Something could not be done for an error that nobody foresaw.

        Args:
            about: Id of a run, a job or a task, whose run is told; None: all are.
        """
        traceback.print_exception(error)
        text = f"{what}: {error!r:.300}"
        job = about.job if isinstance(about, TaskId) else about if isinstance(about, JobId) else None
        run = job.run if job is not None else about
        if run is None:
            self.tell_all(text)
        elif run in self.runs:
            task = about if isinstance(about, TaskId) else None
            self.event(self.runs[run], "warning", text, job.name if job is not None else None, task)

    def trouble(self, text: str | None) -> None:
        """Something concerns every run, None: no longer; may be called from any thread."""
        self._loop.call_soon_threadsafe(self.tell_all, text or "the store is written again", bool(text))

    def tell_all(self, text: str, warns: bool = True) -> None:
        """Tell every run of something."""
        for run in self.runs.values():
            self.event(run, "warning" if warns else "note", text)

    def _snapshot(self, run: str) -> dict[str, Any] | None:
        return self.runs[run].snapshot(self._policy()) if run in self.runs else None
