"""All live runs of a hub, and who watches them."""

from __future__ import annotations

import asyncio
import json
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.forecast.job_tracker import Trackers
from headgate.hub.state.attempt import Attempt
from headgate.hub.state.job import LiveJob
from headgate.hub.state.run import LiveRun
from headgate.model.errors import UsageError
from headgate.model.identifiers import JobId, TaskId, TaskName
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.units import say_first

Watcher = Callable[[dict[str, Any]], None]

SHOW_SECONDS = 0.5
_OF_A_SCRIPT = frozenset(
    {
        ReasonKind.STEPS_UNSEEN,
        ReasonKind.UNCONNECTED,
        ReasonKind.METRIC_MISSING,
        ReasonKind.HAS_NAMESAKE,
        ReasonKind.GPU_NEED_UNKNOWN,
    }
)
"""What all jobs of a sweep would say alike, for their script is the same."""
_NAMED = 8
"""At most so many jobs are named as those that there are."""
REST = 50.0
"""Seconds of rest for each CPU second of a snapshot of very many jobs."""


class Watchers:
    """Sends events of runs to their watchers, and a snapshot twice a second.

    Args:
        snapshot: The state of a run; None: it has ended.
    """

    def __init__(self, snapshot: Callable[[str], dict[str, Any] | None]) -> None:
        self._snapshot = snapshot
        self._watchers: dict[str, set[Watcher]] = {}
        self._timer: asyncio.Handle | None = None

    def add(self, run: str, watcher: Watcher) -> Callable[[], None]:
        """Call `watcher` with all messages of a run. The returned function ends that."""
        watchers = self._watchers.setdefault(run, set())
        watchers.add(watcher)
        if self._timer is None:
            # Delayed: the answer to the request comes first.
            self._timer = asyncio.get_running_loop().call_soon(self._show)
        return lambda: watchers.discard(watcher)

    def tell(self, run: str, message: dict[str, Any]) -> None:
        """Send a message to all watchers of a run."""
        for watcher in list(self._watchers.get(run, ())):
            watcher(message)

    def drop(self, run: str) -> None:
        """End all messages of a run."""
        self._watchers.pop(run, None)

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _show(self) -> None:
        self._timer, began = None, time.thread_time()
        snapshots = {
            run: self._snapshot(run) for run, watchers in self._watchers.items() if watchers
        }
        for run, snapshot in snapshots.items():
            if snapshot is not None:
                self.tell(run, snapshot)
        if any(snapshot is not None for snapshot in snapshots.values()):
            pause = max(SHOW_SECONDS, REST * (time.thread_time() - began))
            self._timer = asyncio.get_running_loop().call_later(pause, self._show)


@dataclass(frozen=True, slots=True)
class ChosenJobs:
    """Jobs of a run that somebody asks for.

    Args:
        jobs: The jobs, by name.
        named: Those that were named themselves. The others are there as part of a sweep, or of the
            run, and what cannot be done with one of them is done with the rest.
    """

    jobs: Mapping[str, LiveJob]
    named: frozenset[str] = frozenset()


def _of_sweep(jobs: Mapping[str, LiveJob], sweep: str) -> dict[str, LiveJob]:
    return {
        name: job
        for name, job in jobs.items()
        if job.spec.trial is not None and job.spec.trial.sweep == sweep
    }


class LiveRuns:
    """Finds runs, and passes their events to stores and watchers.

    Args:
        policy: Name of the present policy.
    """

    def __init__(self, policy: Callable[[], str], tracker: Trackers) -> None:
        self.runs: dict[str, LiveRun] = {}
        self.watchers = Watchers(self._snapshot)
        self.listeners: list[Callable[[LiveRun, str, Reason, str | None], None]] = []
        """Called with each event of a run: its kind, its reason and its job."""
        self._policy, self._tracker = policy, tracker
        self._loop = asyncio.get_running_loop()

    def find(self, id: JobId | TaskId) -> tuple[LiveRun, LiveJob]:
        """Run and job of a job's or task's id."""
        job = id if isinstance(id, JobId) else id.job
        return self.runs[job.run], self.runs[job.run].jobs[job.name]

    def chosen(self, run: str, names: Sequence[str] | None) -> ChosenJobs:
        """Jobs of a run by their names or those of their sweeps; None: all.

        Raises:
            UsageError: The run has no such job.
        """
        every = self.runs[run].jobs
        if names is None:
            return ChosenJobs(every)
        jobs = dict[str, LiveJob]()
        for name in names:
            found = {name: every[name]} if name in every else _of_sweep(every, name)
            if not found:
                expected = say_first([*every], _NAMED)
                raise UsageError(f"run {run} has no job {name!r}; expected one of {expected}")
            jobs |= found
        return ChosenJobs(jobs, frozenset(names) & every.keys())

    def attempt_of(self, task: TaskId) -> tuple[LiveRun, LiveJob, Attempt, TaskName]:
        """Run, job, attempt and name of a task.

        Raises:
            KeyError: Its job has no attempt now.
        """
        run, live = self.find(task)
        if live.current is None:
            raise KeyError(task)
        return run, live, live.current, task.name

    def event(
        self,
        run: LiveRun,
        kind: str,
        reason: Reason,
        job: str | None = None,
        task: TaskId | None = None,
        **more: object,
    ) -> None:
        """Record an event of a run; `more` names further columns of the store's table. What jobs of
        a sweep say alike of their script is told once.
        """
        trial = (
            run.jobs[job].spec.trial if job is not None and reason.kind in _OF_A_SCRIPT else None
        )
        if trial is not None:
            said = trial.sweep, json.dumps(reason.plain(), sort_keys=True)
            if said in run.said_of_sweeps:
                return
            run.said_of_sweeps.add(said)
        name = task.of_run if task else None
        self.watchers.tell(run.id, run.event(kind, reason, job, name, **more))
        for listen in self.listeners:
            listen(run, kind, reason, job)

    def failed(self, what: str, error: BaseException, about: str | None = None) -> None:
        """Report an unexpected error.

        Args:
            what: The failed operation.
            error: The error.
            about: Id of the run, job or task concerned; None: all runs are told.
        """
        traceback.print_exception(error)
        reason = Reason.of(ReasonKind.INTERNAL_ERROR, text=what, error=f"{error!r:.300}")
        job = about if isinstance(about, JobId) else None
        if isinstance(about, TaskId):
            job = about.job
        run = job.run if job is not None else about
        if run is None:
            self.tell_all(reason)
        elif run in self.runs:
            task = about if isinstance(about, TaskId) else None
            name = job.name if job is not None else None
            self.event(self.runs[run], "warning", reason, name, task)

    def trouble(self, text: str | None) -> None:
        """Report trouble that concerns every run; None: it is over. Any thread may call it."""
        reason = Reason.of(ReasonKind.STORE_FAILS if text else ReasonKind.STORE_WRITES, text=text)
        self._loop.call_soon_threadsafe(self.tell_all, reason, "warning" if text else "note")

    def tell_all(self, reason: Reason, kind: str = "warning") -> None:
        """Send a message to every run."""
        for run in self.runs.values():
            self.event(run, kind, reason)

    def _snapshot(self, run: str) -> dict[str, Any] | None:
        if run not in self.runs:
            return None
        return self.runs[run].snapshot(self._policy(), self._tracker)
