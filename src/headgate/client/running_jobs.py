"""Which running jobs a command line means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from headgate.client.starting import await_answer
from headgate.hub.connection import HubConnection, connect
from headgate.model.errors import HubError, NotFoundError
from headgate.model.identifiers import run_and_job
from headgate.recorded import runs
from headgate.recorded.runs import RunSummary

_NOTHING = "nothing is running"


@dataclass(frozen=True, slots=True)
class RunningJobs:
    """Jobs of one run; None: all of them. `hub` is the folder of the hub that runs them."""

    run: str
    jobs: list[str] | None
    hub: Path

    def connect(self) -> HubConnection:
        """The hub that runs them, to be closed.

        Raises:
            NotFoundError: It is gone.
        """
        hub = connect(self.hub)
        if hub is None:
            raise NotFoundError(_NOTHING)
        return hub


def running_jobs(jobs: Sequence[str], run: str | None, every: bool = False) -> list[RunningJobs]:
    """The jobs named (all, when none is), in the run named (the latest that is running, when none
    is), whichever hub of this user's has it.

    Raises:
        NotFoundError: Nothing that is running is so called.
    """
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
        id = run if run in running else runs.find(run).name  # whose folder may be gone
        if id not in running:
            summary = runs.summary(runs.home() / "runs" / id)
            raise NotFoundError(
                _said_elsewhere(summary) if summary.elsewhere else f"run {id} is not running"
            )
        running = [id]
    if not jobs:
        return [RunningJobs(running[-1], None, hubs[running[-1]])]
    chosen: dict[str, list[str]] = {}
    for job in jobs:
        prefix, name = run_and_job(job)
        fitting = [
            id
            for id in running
            if prefix in id and (runs.home() / "runs" / id / "jobs" / name).is_dir()
        ]
        if not fitting:
            where = (
                f"it is a run: say --run {job}"
                if job in running
                else "`headgate status` lists the jobs of a run"
            )
            raise NotFoundError(f"no running job {job!r}; {where}")
        chosen.setdefault(fitting[-1], []).append(name)
    return [RunningJobs(id, names, hubs[id]) for id, names in chosen.items()]


def _running() -> dict[str, Path]:
    """The runs that hubs within reach have, and the folder of the hub of each."""
    return dict(sorted((id, folder) for folder in runs.hubs() for id in _runs_of(folder)))


def _elsewhere() -> list[RunSummary]:
    """The runs that run on other hosts."""
    summaries = [runs.summary(folder) for folder in runs.listing() if runs.alive(folder)]
    return [summary for summary in summaries if summary.elsewhere]


def _said_elsewhere(summary: RunSummary) -> str:
    return f"run {summary.id} runs on host {summary.host}: type it there"


def _silent() -> str:
    """What is said of a hub that lives and does not answer."""
    return (
        f"a hub on {runs.host()} does not answer: it is ending, or its socket is gone; try "
        "again in a moment"
    )


def hub_of(run: str) -> HubConnection | None:
    """The hub that runs a run, to be closed; None where none does."""
    for _ in range(2):
        for folder in runs.hubs():
            if run in _runs_of(folder):
                return connect(folder)
        await_answer()
    return None


def _runs_of(folder: Path) -> list[str]:
    hub = connect(folder)
    if hub is None:
        return []
    with hub:
        return list(hub.ask("runs")["runs"])
