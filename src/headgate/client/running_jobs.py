"""Requests to running jobs: stop, save a checkpoint, resize."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.client.starting import await_answer, take_up
from headgate.hub.changes import Changes
from headgate.hub.connection import TAKE_IN_SECONDS, HubConnection, connect
from headgate.model.errors import HeadgateError, HubError, NotFoundError
from headgate.model.identifiers import run_and_job
from headgate.model.job_states import ENDED
from headgate.recorded import runs
from headgate.recorded.results import sweeps_of
from headgate.recorded.runs import RunSummary

_NOTHING = "nothing is running"
_WRITTEN_SECONDS = 10.0
"""Most seconds until the store has the ends of jobs. It is written about twice a second; a full
disk takes no rows.
"""
_LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """Jobs of a run that will save a checkpoint, and jobs whose Headgate library has not connected
    yet.
    """

    run: str
    jobs: tuple[str, ...]
    unconnected: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunningJobs:
    """Jobs of one run by their names, or those of their sweeps; None: all of them. `hub` is the
    folder of the hub that runs them.
    """

    run: str
    jobs: list[str] | None
    hub: Path

    def connect(self) -> HubConnection:
        """Connect to their hub. The caller closes the connection.

        Raises:
            NotFoundError: The hub is gone.
        """
        hub = connect(self.hub)
        if hub is None:
            raise NotFoundError(_NOTHING)
        return hub

    def checkpoint(self) -> CheckpointRequest:
        """Ask the jobs to save a checkpoint at the end of their step and go on."""
        with self.connect() as hub:
            answer = hub.ask("checkpoint", run=self.run, jobs=self.jobs)
        return CheckpointRequest(self.run, tuple(answer["jobs"]), tuple(answer["unconnected"]))

    def ask_to_stop(self, *, kill: bool = False) -> None:
        """Ask for the end of the jobs, as `stop` does, without waiting for it."""
        with self.connect() as hub:
            hub.ask("stop", run=self.run, jobs=self.jobs, kill=kill)

    def pause(self, *, release: bool = False) -> tuple[str, ...]:
        """Pause the jobs, as `Run.pause` does. Returns their names."""
        with self.connect() as hub:
            answer = hub.ask("pause", run=self.run, jobs=self.jobs, release=release)
        return tuple(answer["jobs"])

    def unpause(self) -> tuple[str, ...]:
        """Let the paused ones among the jobs go on. Returns their names."""
        with self.connect() as hub:
            return tuple(hub.ask("unpause", run=self.run, jobs=self.jobs)["jobs"])

    def change(self, changes: Changes) -> tuple[str, ...]:
        """Change each job. Returns their names.

        Raises:
            UsageError: A job cannot be changed in this way.
        """
        changed = list[str]()
        with self.connect() as hub:
            for job in self.jobs or ():
                changed += hub.ask("change", run=self.run, job=job, changes=changes.plain())["jobs"]
        return tuple(changed)


@dataclass(frozen=True, slots=True)
class JobEnd:
    """How a job ended: its state, the reason, and the fields of its `Ending`, if any."""

    state: str
    reason: str
    ending: Mapping[str, Any] | None


def check_asked(requests: Sequence[CheckpointRequest]) -> None:
    """Check that at least one job will save a checkpoint.

    Raises:
        HeadgateError: No job will.
    """
    if any(request.jobs for request in requests):
        return
    unconnected = [name for request in requests for name in request.unconnected]
    if unconnected:
        raise HeadgateError(
            f"{', '.join(unconnected)} imports one of Headgate's libraries and has not connected: "
            "try again once it trains; `headgate status` warns where it never does"
        )
    raise HeadgateError(
        "none of these jobs uses headgate.torch, .keras or .jax, so none can save a checkpoint"
    )


def stop(chosen: Sequence[RunningJobs], *, kill: bool = False) -> dict[str, dict[str, JobEnd]]:
    """Stop jobs at the end of a step, with a checkpoint, and wait until they have ended.

    Args:
        chosen: The jobs of each run.
        kill: Stop them at once, without a checkpoint.

    Returns:
        How each job ended, by run and name, without jobs that had ended before.
    """
    with ExitStack() as connections:
        asked = []
        for jobs in chosen:
            # Two connections for each run keep answers apart from messages about the run.
            hub, watched = (connections.enter_context(jobs.connect()) for _ in range(2))
            asked.append((jobs, watched, _ask_to_stop(hub, watched, jobs, kill)))
        return {jobs.run: _ends(watched, jobs, names) for jobs, watched, names in asked}


def _ask_to_stop(
    hub: HubConnection, watched: HubConnection, chosen: RunningJobs, kill: bool
) -> list[str] | None:
    """Ask the hub to stop jobs of a run. Returns the jobs that it stops; None if the run has
    ended.
    """
    try:
        watched.ask("attach", run=chosen.run)
        request = {"run": chosen.run, "jobs": chosen.jobs, "kill": kill}
        stopping: list[str] = hub.ask("stop", patience=TAKE_IN_SECONDS, **request)["jobs"]
    except HubError:
        raise
    except HeadgateError:
        if chosen.run in hub.ask("runs")["runs"]:
            raise
        return None
    return stopping


def _ends(
    watched: HubConnection, chosen: RunningJobs, stopping: list[str] | None
) -> dict[str, JobEnd]:
    folder = runs.home() / "runs" / chosen.run
    if stopping is None:
        written = _written(folder)
        if chosen.jobs is None:
            return written
        sweeps = sweeps_of(folder)
        return {job: end for job, end in written.items() if {job, sweeps.get(job)} & {*chosen.jobs}}
    ends: dict[str, JobEnd] = {}
    while any(job not in ends or ends[job].state not in ENDED for job in stopping):
        message = watched.receive() or {}
        if message.get("type") in ("snapshot", "end"):
            told = {
                job["name"]: JobEnd(job["state"], job["reason"], job["ending"])
                for job in message["jobs"]
            }
            # where all have ended, the end of the run comes, once it can be resumed
            if message["type"] == "end" or any(job.state not in ENDED for job in told.values()):
                ends = told
    deadline = time.monotonic() + _WRITTEN_SECONDS
    while time.monotonic() < deadline and not _are_written(folder, stopping):
        time.sleep(_LOOK_SECONDS)
    return {job: ends[job] for job in stopping}


def _are_written(folder: Path, jobs: Sequence[str]) -> bool:
    """Whether a run's store has the ends of jobs, or is gone or damaged and never will."""
    try:
        written = _written(folder)
    except HeadgateError:
        return True
    return all(job in written and written[job].state in ENDED for job in jobs)


def _written(folder: Path) -> dict[str, JobEnd]:
    return {
        job.name: JobEnd(job.state, job.reason, job.ending) for job in runs.summary(folder).jobs
    }


def running_jobs(jobs: Sequence[str], run: str | None, every: bool = False) -> list[RunningJobs]:
    """Find running jobs among all hubs of this user.

    Args:
        jobs: Their names, or those of their sweeps; empty: all.
        run: Their run; None: the latest that is running.
        every: Whether `run=None` means every running run.

    Raises:
        NotFoundError: No running job matches.
    """
    take_up()
    hubs = _running()
    if (not hubs or (run is not None and run not in hubs)) and await_answer():
        raise HubError(_silent())
    hubs = hubs or _running()
    running = list(hubs)
    if not running:
        raise NotFoundError("; ".join([_NOTHING, *map(_said_elsewhere, _elsewhere())]))
    if every:
        return [RunningJobs(id, None, folder) for id, folder in hubs.items()]
    if run is not None:
        id = run if run in running else runs.find(run).name  # its folder may be gone
        if id not in running:
            summary = runs.summary(runs.home() / "runs" / id)
            raise NotFoundError(
                _said_elsewhere(summary) if summary.elsewhere else f"run {id} is not running"
            )
        running = [id]
    if not jobs:
        own = (id for id in reversed(running) if not runs.is_aside(runs.home() / "runs" / id))
        latest = next(own, running[-1])
        return [RunningJobs(latest, None, hubs[latest])]
    chosen: dict[str, list[str]] = {}
    for job in jobs:
        prefix, name = run_and_job(job)
        fitting = [id for id in running if prefix in id and _has(runs.home() / "runs" / id, name)]
        if not fitting:
            where = (
                f"it is a run: say --run {job}"
                if job in running
                else "`headgate status` lists the jobs of a run"
            )
            raise NotFoundError(f"no running job {job!r}; {where}")
        chosen.setdefault(fitting[-1], []).append(name)
    return [RunningJobs(id, names, hubs[id]) for id, names in chosen.items()]


def _has(folder: Path, name: str) -> bool:
    """Whether a run has a job of this name, or a sweep."""
    if (folder / "jobs" / name).is_dir():
        return True
    with suppress(HeadgateError):  # its folder is gone
        return name in sweeps_of(folder).values()
    return False


def _running() -> dict[str, Path]:
    """Runs of all reachable hubs, each with the folder of its hub."""
    return dict(sorted((id, folder) for folder, hub in hubs().items() for id in hub.runs))


def _elsewhere() -> list[RunSummary]:
    summaries = [runs.summary(folder) for folder in runs.listing() if runs.alive(folder)]
    return [summary for summary in summaries if summary.elsewhere]


def _said_elsewhere(summary: RunSummary) -> str:
    return f"run {summary.id} runs on host {summary.host}: type it there"


def _silent() -> str:
    """A message about a live hub that does not answer."""
    return (
        f"a hub on {runs.host()} does not answer: it is ending, or its socket is gone; try "
        "again in a moment"
    )


def hub_of(run: str) -> HubConnection | None:
    """Connect to the hub that runs a run or writes its report; None if there is none. The caller
    closes the connection.
    """
    for _ in range(2):
        for folder, hub in hubs().items():
            if run in hub.runs or run in hub.unreported:
                return connect(folder)
        if not runs.alive(runs.home() / "runs" / run):
            return None
        await_answer()
    return None


@dataclass(frozen=True, slots=True)
class HubState:
    """The state of a hub: its policy, the ids of its live runs, and those of ended runs whose
    report is not written yet.
    """

    policy: str
    runs: tuple[str, ...]
    unreported: tuple[str, ...]


def hubs() -> dict[Path, HubState]:
    """All hubs of this user that answer, by folder.

    Raises:
        HubError: A hub has another version, or does not answer.
    """
    states = {}
    for folder in runs.hubs():
        if (hub := connect(folder)) is not None:
            with hub:
                answer = hub.ask("runs")
            states[folder] = HubState(
                answer["policy"], tuple(answer["runs"]), tuple(answer.get("unreported", ()))
            )
    return states
