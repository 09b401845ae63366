"""A run from Python: its state, its logs, and requests to its jobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from headgate.client import running_jobs
from headgate.client.explaining import MOST_READINGS, Explanation, Report, explain, report
from headgate.client.logs import JobLogs
from headgate.client.notebook import course, table
from headgate.client.predicting import LossPrediction, predict, predicted_ends
from headgate.client.proving import ProofNews, Proofs, prove
from headgate.client.running_jobs import JobEnd, RunningJobs
from headgate.client.watching import Watch
from headgate.hub.changes import Changes
from headgate.model.errors import HeadgateError, HubError, NotFoundError, UsageError
from headgate.model.identifiers import TaskName
from headgate.model.jobs import Job
from headgate.model.units import say_first
from headgate.recorded import results, runs, status
from headgate.recorded.events import (
    LoggedEvent,
    chain,
    decisions_after,
    latest,
    newest_decisions,
    read_controller,
    read_events,
)
from headgate.recorded.reader import RunReader
from headgate.recorded.results import JobResult
from headgate.recorded.rows import EventRow, JobRow
from headgate.recorded.runs import RunSummary
from headgate.recorded.status import NodeReading, RunStatus

if TYPE_CHECKING:
    from headgate.recorded.recording import Recording
    from headgate.reports.run_verdicts import RunVerdicts

_NAMED = 8
"""At most so many jobs are named as those that there are."""

LOOK_SECONDS = 0.2


class Run:
    """One execution of one or more jobs. It may still be running.

    Args:
        path: The run's folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"Run({self.id!r})"

    def _repr_html_(self) -> str:
        status = self.status()
        prediction = None
        if len(status.jobs) == 1:
            with suppress(HeadgateError):  # it has reported no loss
                prediction = self.predict().plot()
        return table(status) + course(self.recording(MOST_READINGS), prediction)

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def jobs(self) -> tuple[str, ...]:
        """The names of its jobs, in the order of submission."""
        return tuple(job.name for job in self.summary().jobs)

    def specs(self) -> dict[str, Job]:
        """Its jobs as they were handed in, by name."""
        with RunReader(self.path / runs.STORE) as reader:
            return {row.name: row.job() for row in reader.records(JobRow, order="position")}

    def summary(self) -> RunSummary:
        """The states of the run and its jobs; faster than `status`."""
        return runs.summary(self.path)

    def status(self) -> RunStatus:
        """The state of each job and what holds it back, as in `headgate status --json`.

        Raises:
            StorageError: The run's store cannot be read.
        """
        return status.read(self.path, verdicts=self.verdicts().verdicts)

    def results(self) -> tuple[JobResult, ...]:
        """What its jobs came to so far: parameters, metrics, and what those that run are expected
        to end with; see `headgate results`.

        Raises:
            StorageError: The run's store cannot be read.
        """
        jobs = results.read(self.path)
        running = [job.name for job in jobs if job.state in ("running", "stopping")]
        return results.with_predicted(jobs, predicted_ends(self.path, running))

    def events(
        self, job: str | None = None, *, follow: bool = False, after: int = 0
    ) -> Iterator[LoggedEvent]:
        """What the controller was told and decided, with causes, as in `headgate events`.

        Args:
            job: Only events of this job.
            follow: Go on until the run has ended.
            after: Only events with a greater id.

        Raises:
            NotFoundError: A version of Headgate without an event log recorded the run.
        """
        return read_events(self.path, job, follow, after)

    def wait(self, timeout: float | None = None) -> RunSummary:
        """Wait until every job has ended and the report is written.

        A `KeyboardInterrupt` ends only the wait: the jobs go on.

        Args:
            timeout: Most seconds to wait; None: no limit.

        Raises:
            TimeoutError: The run has not ended in time.
            HubError: The hub died.
        """
        deadline = time.monotonic() + timeout if timeout is not None else None

        def is_late() -> bool:
            return deadline is not None and time.monotonic() >= deadline

        if not self.wait_unless(is_late):
            raise TimeoutError(f"run {self.id} has not ended within {timeout:g} s")
        return self.summary()

    def wait_unless(self, given_up: Callable[[], bool]) -> bool:
        """Wait until the run has ended or `given_up` returns True. Returns whether the run has
        ended.

        Args:
            given_up: Called a few times a second.

        Raises:
            HubError: The hub died.
        """
        with self.watched() as watch:
            for _ in watch.follow(LOOK_SECONDS) if watch is not None else ():
                if given_up():
                    return False
        while runs.alive(self.path):  # the hub writes its last rows
            if given_up():
                return False
            time.sleep(LOOK_SECONDS)
        return True

    @contextmanager
    def watched(self) -> Iterator[Watch | None]:
        """A watch of the run; None if it has ended and its report is written.

        Raises:
            NotFoundError: The run is on another host.
        """
        try:
            hub = running_jobs.hub_of(self.id)
        except HubError:
            if runs.alive(self.path):
                raise
            hub = None  # another run's hub does not answer
        if hub is None:
            if host := self.summary().elsewhere:
                raise NotFoundError(f"run {self.id} runs on host {host}: watch it there")
            yield None
            return
        with hub:
            try:
                hub.ask("attach", run=self.id)
            except HeadgateError:
                if self.id in hub.ask("runs")["runs"]:
                    raise
                yield None
                return
            yield Watch(hub, self.id)

    def stop(self, *jobs: str, kill: bool = False) -> dict[str, JobEnd]:
        """Stop jobs at the end of a step, with a checkpoint, and wait until they have ended.

        Args:
            jobs: Names of the jobs, or of their sweeps; none: all.
            kill: Stop them at once, without a checkpoint.

        Returns:
            How each job ended, by name, without jobs that had ended before.

        Raises:
            NotFoundError: The run is not running, or has no such job.
        """
        return running_jobs.stop([self._running(*jobs)], kill=kill)[self.id]

    def ask_to_stop(self, *jobs: str, kill: bool = False) -> None:
        """Ask for the end of jobs (none: all), as `stop` does, without waiting for it.

        Raises:
            NotFoundError: The run is not running, or has no such job.
        """
        self._running(*jobs).ask_to_stop(kill=kill)

    def checkpoint(self, *jobs: str) -> tuple[str, ...]:
        """Ask jobs to save a checkpoint at the end of their step and go on.

        Args:
            jobs: Names of the jobs, or of their sweeps; none: all.

        Returns:
            The names of the jobs that will save one.

        Raises:
            HeadgateError: No job can save a checkpoint.
            NotFoundError: The run is not running, or has no such job.
        """
        request = self._running(*jobs).checkpoint()
        running_jobs.check_asked([request])
        return request.jobs

    def pause(self, *jobs: str, release: bool = False) -> tuple[str, ...]:
        """Pause jobs until `unpause`: running ones keep their memory, and waiting ones their place
        in the queue.

        Args:
            jobs: Names of the jobs, or of their sweeps; none: all that can be paused.
            release: End running jobs with a checkpoint, which gives back memory and GPUs.

        Returns:
            The names of the paused jobs.

        Raises:
            UsageError: A job cannot be paused.
            NotFoundError: The run is not running, or has no such job.

        Example:
            >>> run.pause("cnn")
            >>> run.unpause("cnn")
        """
        return self._running(*jobs).pause(release=release)

    def unpause(self, *jobs: str) -> tuple[str, ...]:
        """Let paused jobs (none: all) go on. Returns their names.

        Raises:
            UsageError: A job is not paused.
            NotFoundError: The run is not running, or has no such job.
        """
        return self._running(*jobs).unpause()

    def set(self, job: str | None = None, **changes: float | str) -> None:
        """Change a job that has not ended, or those of a sweep that have not.

        Args:
            job: Its name, or that of a sweep; None: the run's only one.
            changes: `workers` that it goes on with; most `cores`; `priority`; `memory` of each
                worker, in bytes; `timeout`, in seconds.

        Raises:
            UsageError: That cannot be.
            NotFoundError: The run is not running, or has no such job.

        Example:
            >>> run.set("cnn", priority=3, cores=1)
        """
        self._running(self._only(None) if job is None else job).change(Changes.of(changes))

    def prove(
        self,
        job: str | None = None,
        *,
        neighbour: str | None = None,
        pause_at_most: float | None = None,
        watcher: Callable[[ProofNews], None] = lambda _: None,
    ) -> Proofs:
        """Prove which job slows which: pause neighbours for short random moments while the jobs
        run.

        Args:
            job: The job whose steps are watched; None: each in turn.
            neighbour: The job to pause; None: each other job in turn.
            pause_at_most: Fraction of its time for which a job may be paused, up to 0.25; None:
                0.02.
            watcher: Called with news.

        Raises:
            UsageError: Such a proof is impossible.
            NotFoundError: The run is not running.
        """
        return prove(self._running(), job, neighbour, pause_at_most, watcher)

    def explain(self, job: str | None = None) -> Explanation:
        """Find what held its jobs back (None: all), and what more of each resource would gain.

        Raises:
            NotFoundError: The run has no such job.
        """
        return explain(self.path, job)

    def why(self, job: str, event: int | None = None) -> list[list[LoggedEvent]]:
        """The chains of events that led to the present state and share of a job, its own first.

        Args:
            job: Its name.
            event: Id of an entry of the log; None: those of its present state and share.

        Raises:
            NotFoundError: The run has no such job, event, or no event log.
        """
        entries, seen = read_controller(self.path), set[int]()
        if event is not None and event not in entries:
            raise NotFoundError(f"the log of run {self.id} has no event {event}")
        ends = latest(entries, self.id, job) if event is None else [entries[event]]
        return [list(chain(entries, end, seen)) for end in ends]

    def newest_decisions(self, after: int, most: int) -> list[LoggedEvent]:
        """The latest decisions about tasks and shares of its jobs, and checkpoints that these
        saved.

        Args:
            after: Only entries of the log with a greater id.
            most: Most entries.
        """
        return newest_decisions(self.path, after, most)

    def recorded_events(self, last: int) -> list[EventRow]:
        """The last events that its store has: states that jobs came to, warnings, faults."""
        with RunReader(self.path / runs.STORE) as reader:
            return list(reader.records(EventRow, order="t, rowid"))[-last:]

    def decisions(self, after: int = 0) -> tuple[dict[str, int], int]:
        """How many decisions of each kind were made about its jobs, and the id of the last entry of
        its log.

        Args:
            after: Only of entries with a greater id.
        """
        with RunReader(self.path / runs.STORE) as reader:
            return decisions_after(reader, after)

    def verdicts(self) -> RunVerdicts:
        """What held its jobs back most: over its last hour while it runs, else over all of it.

        Raises:
            StorageError: The run's store cannot be read.
        """
        from headgate.reports import run_verdicts

        return run_verdicts.read(self.path)

    def predict(self, job: str | None = None) -> LossPrediction:
        """Predict how a job's loss goes on, and when the job would end.

        Args:
            job: Its name; None: the run's only job.

        Raises:
            NotFoundError: The run has recorded nothing of the job.
            HeadgateError: The job has reported no loss yet.
        """
        return predict(self.path, self._only(job))

    def nodes(self) -> tuple[NodeReading, ...]:
        """The machines that it runs on, with what was used of each last."""
        return status.nodes(self.path)

    def recording(self, most: int | None = None, about: str | None = None) -> Recording:
        """Read everything that was recorded.

        Args:
            most: Most readings of each task; None: all.
            about: A job: of others, if there are over 40, only what they used is read. None: all.

        Raises:
            StorageError: The run's store cannot be read.
        """
        from headgate.recorded import recording

        return recording.read(self.path / runs.STORE, most=most, about=about)

    def report(self, to: str | Path | None = None) -> Report:
        """Write the run's report as one HTML page.

        Args:
            to: The file to write; None: `report.html` in the run's folder.
        """
        return report(self.path, Path(to) if to is not None else None)

    @overload
    def logs(
        self,
        job: str | None = None,
        task: str | None = None,
        tail: int | None = None,
        *,
        follow: Literal[False] = False,
    ) -> str: ...

    @overload
    def logs(
        self,
        job: str | None = None,
        task: str | None = None,
        tail: int | None = None,
        *,
        follow: Literal[True],
    ) -> Iterator[str]: ...

    def logs(
        self,
        job: str | None = None,
        task: str | None = None,
        tail: int | None = None,
        *,
        follow: bool = False,
    ) -> str | Iterator[str]:
        """What a task printed.

        Args:
            job: Name of its job; None: the run's only one.
            task: `worker-1`; None: the one that speaks for the job.
            tail: Only so many lines, the last ones.
            follow: Give line by line instead, until the job has ended.

        Raises:
            NotFoundError: There is no such job or task.
        """
        logs = self.job_logs(job, task)
        return logs.lines(tail) if follow else logs.text(tail)

    def job_logs(self, job: str | None = None, task: str | None = None) -> JobLogs:
        """The logs that `logs` reads."""
        name = TaskName(task) if task is not None else None
        return JobLogs.of(self.path, self._only(job), name)

    def _running(self, *jobs: str) -> RunningJobs:
        sweeps = {*results.sweeps_of(self.path).values()} if {*jobs} - {*self.jobs} else ()
        names = [f"{self.id}/{job if job in sweeps else self._only(job)}" for job in jobs]
        [chosen] = running_jobs.running_jobs(names, self.id)
        return chosen

    def _only(self, job: str | None) -> str:
        jobs = self.jobs
        if job is None and len(jobs) == 1:
            return jobs[0]
        if job is None:
            raise UsageError(
                f"run {self.id} has several jobs: name one of {say_first(jobs, _NAMED)}"
            )
        if job not in jobs:
            raise NotFoundError(
                f"run {self.id} has no job {job!r}; it has {say_first(jobs, _NAMED)}"
            )
        return job
