"""Write the figures of live jobs to trackers: a process of its own that follows the run's store.

Its standard input ends with the run. It prints a line of JSON for each change: the job, the
destination, and an error or null.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from headgate.diagnosis.account import Account
from headgate.exports.series import PREFIX, Series, series
from headgate.exports.trackers import TrackerRun, run_type
from headgate.exports.trackers.base import points_of
from headgate.exports.tracking import (
    first_line,
    lost_seconds,
    outcome,
    tracked_job,
    verdict_tags,
)
from headgate.model.job_states import ENDED
from headgate.model.trackers import Destination
from headgate.recorded import runs
from headgate.recorded.jobs import RecordedJob
from headgate.recorded.reader import RunReader
from headgate.recorded.recording import Recording, read
from headgate.recorded.rows import TaskRow
from headgate.reports.explained import explained

STATE = "trackers.json"
"""File in a job's folder: its run in each tracker, for a run that resumes it."""
_LOOK_SECONDS, _REST = 2.0, 20.0
"""Least seconds between two looks, and seconds of rest for each second of CPU that one took."""
_LATE_SECONDS = 2.0
"""Rows may come this late to the store."""
_OVERLAP_SECONDS = 30.0
"""How far back of its last look one reads, for the partial readings at its beginning."""
_VERDICT_SECONDS, _MOST_ROWS = 15.0, 2000
_SCRIPT_SECONDS = 120.0
"""How long a job that reports nothing is given to open a run of its own."""
_END_SECONDS = 60.0
"""Most seconds from the end of the run to the end of this process."""
_MORE_SECONDS = 10.0
"""How long a tracker that fails is tried after the end of the run."""
_AGAIN_SECONDS = (2.0, 60.0)


class TrackedFigures:
    """The figures of a job on their way to a tracker.

    Args:
        folder: The run's folder.
        job: Name of the job.
        destination: Where they go.
        former: Id of the run there of the job that this one resumes.
    """

    def __init__(
        self, folder: Path, job: str, destination: Destination, former: str | None
    ) -> None:
        self.job, self.destination = job, destination
        self.until = -1.0
        self.is_done = False
        self._folder, self._id = folder, former
        self._run: TrackerRun | None = None
        self._of_script: str | None = None
        self._pids: set[int] = set()
        self._step = 0

    @property
    def id(self) -> str | None:
        """Id of its own run there; None: it has none."""
        return self._id

    def send(self, run: Recording, account: Account | None, is_last: bool) -> None:
        """Send what is new.

        Raises:
            Exception: The tracker refuses it; the next call sends it again.
        """
        job = run.job(self.job)
        if job is None or job.started is None:
            return
        has_ended = is_last or (
            job.state in ENDED and run.seconds > (job.ended or 0.0) + 2 * _LATE_SECONDS
        )
        if self._run is None and not self._open(run, job, has_ended):
            return
        assert self._run is not None
        horizon = run.seconds if has_ended else run.seconds - _LATE_SECONDS
        figures = [
            self._since(figure, horizon)
            for figure in series(run)
            if figure.job == self.job
            # a script writes its own losses and metrics
            and (self._of_script is None or figure.name.startswith(PREFIX))
        ]
        if account is not None:
            figures += [self._since(figure, math.inf) for figure in lost_seconds(run, account)]
        points = points_of(figures, run.began or 0.0)
        self._run.add(points)
        self.until, self._step = horizon, max([self._step, *(point.step for point in points)])
        if account is not None:
            self._run.note(verdict_tags(account))
        if has_ended:
            self._run.end(None if self._of_script else outcome(job.state))
            self.is_done = True

    def _open(self, run: Recording, job: RecordedJob, has_ended: bool) -> bool:
        """Open the run that the script has there, or its own. False: the script may open one.

        Nothing is opened before: two that make a database at once may break each other.
        """
        started = max((task.started or 0.0 for task in job.tasks), default=job.started or 0.0)
        self._pids |= _processes(self._folder, self.job)
        reports = len(job.progress.t) > 0 or run.seconds - started > _SCRIPT_SECONDS
        if not (reports or has_ended):
            return False
        kind, facts = run_type(self.destination.tracker), tracked_job(run, job)
        since, pids = (run.began or 0.0) + started - 1.0, frozenset(self._pids)
        self._of_script = kind.of_script(facts, self.destination.output, since, pids)
        self._run = kind(facts, self.destination.output, self._of_script or self._id)
        if self._of_script is None:
            self._id = self._run.id
        return True

    def _since(self, figure: Series, horizon: float) -> Series:
        """The new points of a figure. A look that begins late in the run may see no step before
        them, so the last known step stands for it.
        """
        points = (
            point._replace(step=point.step or self._step)
            for point in figure.points
            if self.until < point.t <= horizon
        )
        return Series(figure.job, figure.name, tuple(points))


def _processes(folder: Path, job: str) -> set[int]:
    """The processes of a job's tasks on this machine."""
    with RunReader(folder / runs.STORE) as reader:
        pids = [row.pid for row in reader.records(TaskRow, "job = ?", [job]) if row.pid]
    processes = set(pids)
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            processes |= {child.pid for child in psutil.Process(pid).children(recursive=True)}
    return processes


class Following:
    """Sends the figures of some jobs of a run, and tells of trackers that fail.

    Args:
        folder: The run's folder.
        jobs: Names of the jobs.
        notices: Descriptor that lines of JSON are written to.
    """

    def __init__(self, folder: Path, jobs: Sequence[str], notices: int) -> None:
        self._folder, self._notices = folder, notices
        self._over, self._is_through = threading.Event(), threading.Event()
        run = read(folder / runs.STORE, since=0.0)
        former = run.description.resumed_from
        self._every: list[TrackedFigures] = []
        for name in jobs:
            job = run.job(name)
            for text in job.spec.track if job is not None else ():
                earlier = _former(folder.parent / former, name, text) if former else None
                figures = TrackedFigures(folder, name, Destination.of(text), earlier)
                self._every.append(figures)
        self._failing: dict[str, float] = {}
        """By destination: seconds to wait until it is tried again."""
        self._again: dict[str, float] = {}
        self._read_at, self._length = 0.0, 0.0
        self._judged_at = 0.0

    def follow(self) -> None:
        """Send until the run is over."""
        threading.Thread(target=self._wait_for_end, daemon=True).start()
        for tracker in {figures.destination.tracker for figures in self._every}:
            with contextlib.suppress(Exception):  # told when it is first used
                run_type(tracker)  # imports for seconds
        is_last = False
        while not is_last:
            is_last = self._over.is_set()
            if is_last:
                _wait_until_written(self._folder)
            began = time.process_time()
            self._look(is_last)
            self._over.wait(max(_LOOK_SECONDS, _REST * (time.process_time() - began)))
        ends = time.monotonic() + _MORE_SECONDS
        while (left := self._left()) and time.monotonic() < ends:
            time.sleep(min(self._failing.values(), default=1.0))
            self._again.clear()
            self._look(is_last=True)
        for figures in left:
            self._tell(figures, "", has_missed=True)
        self._is_through.set()

    def _wait_for_end(self) -> None:
        sys.stdin.buffer.read()
        self._over.set()
        if self._is_through.wait(_END_SECONDS):
            return
        for figures in self._left():
            self._tell(figures, "no answer", has_missed=True)
        os._exit(1)  # a library does not come back

    def _left(self) -> list[TrackedFigures]:
        return [figures for figures in self._every if not figures.is_done]

    def _look(self, is_last: bool) -> None:
        left = self._left()
        if not left:
            return
        now = time.monotonic()
        since = None
        if self._read_at:
            behind = self._length - min(figures.until for figures in left)
            since = now - self._read_at + behind + _OVERLAP_SECONDS
        run = read(self._folder / runs.STORE, since=since)
        self._read_at, self._length = now, run.seconds
        accounts: Mapping[str, Account] = {}
        if is_last or now - self._judged_at > _VERDICT_SECONDS:
            self._judged_at = now
            whole = read(self._folder / runs.STORE, most=_MOST_ROWS)
            accounts = {account.job: account for account in explained(whole)}
        for figures in left:
            self._send(figures, run, accounts.get(figures.job), is_last)

    def _send(
        self, figures: TrackedFigures, run: Recording, account: Account | None, is_last: bool
    ) -> None:
        name = str(figures.destination)
        if time.monotonic() < self._again.get(name, 0.0):
            return
        before = figures.id
        least, most = _AGAIN_SECONDS
        try:
            figures.send(run, account, is_last)
        except Exception as error:  # noqa: BLE001  # libraries have classes of their own
            if self._failing.get(name) == least:  # again, so it is no passing trouble
                self._tell(figures, f"{first_line(error):.300}")
            self._failing[name] = min(2 * self._failing.get(name, least / 2), most)
            self._again[name] = time.monotonic() + self._failing[name]
        else:
            if self._failing.pop(name, 0.0) > least:
                self._tell(figures, None)
        if figures.id != before:
            self._keep(figures.job)

    def _keep(self, job: str) -> None:
        """Write which runs a job has, for a run that resumes it."""
        ids = {str(sent.destination): sent.id for sent in self._every if sent.job == job}
        path = self._folder / "jobs" / job / STATE
        path.with_suffix(".partial").write_text(json.dumps(ids))
        path.with_suffix(".partial").replace(path)

    def _tell(self, figures: TrackedFigures, error: str | None, has_missed: bool = False) -> None:
        notice = {
            "job": figures.job,
            "destination": str(figures.destination),
            "error": error,
            "has_missed": has_missed,
        }
        with contextlib.suppress(OSError):  # the hub is gone
            os.write(self._notices, json.dumps(notice).encode() + b"\n")


def _former(folder: Path, job: str, destination: str) -> str | None:
    """The id that the job of an earlier run has in a tracker."""
    try:
        ids: Any = json.loads((folder / "jobs" / job / STATE).read_text())
    except (OSError, ValueError):
        return None
    id = ids.get(destination) if isinstance(ids, dict) else None
    return id if isinstance(id, str) else None


def _wait_until_written(folder: Path) -> None:
    """Wait until the run's hub has written its last rows, or is gone."""
    with contextlib.suppress(OSError), (folder / runs.LOCK).open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)


def main(folder: str, *jobs: str) -> None:
    """Follow a run.

    Args:
        folder: Its folder.
        jobs: Names of its jobs.
    """
    notices = os.dup(1)
    os.dup2(2, 1)  # libraries print
    os.nice(10)
    # an unreachable server is told once, and tried again here
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
    Following(Path(folder), jobs, notices).follow()


if __name__ == "__main__":
    main(*sys.argv[1:])
