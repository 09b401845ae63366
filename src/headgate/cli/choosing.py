"""Which running jobs a command line means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headgate import runs
from headgate.errors import NotFoundError
from headgate.hub.client import Hub, connect

_NOTHING = "nothing is running"


@dataclass(frozen=True, slots=True)
class RunningJobs:
    """Jobs of one run; None: all of them."""

    run: str
    jobs: list[str] | None


def running_hub() -> Hub:
    """The hub that runs jobs, to be closed.

    Raises:
        NotFoundError: There is none.
    """
    hub = connect()
    if hub is None:
        raise NotFoundError(_NOTHING)
    return hub


def running_jobs(hub: Hub, jobs: Sequence[str], run: str | None, every: bool = False) -> list[RunningJobs]:
    """The jobs named (all, when none is), in the run named (the latest that is running, when none is).

    Raises:
        NotFoundError: Nothing that is running is so called.
    """
    running: list[str] = sorted(hub.ask("runs")["runs"])
    if not running:
        raise NotFoundError(_NOTHING)
    if every:
        return [RunningJobs(id, None) for id in running]
    if run is not None:
        id = runs.find(run).name
        if id not in running:
            raise NotFoundError(f"run {id} is not running")
        running = [id]
    if not jobs:
        return [RunningJobs(running[-1], None)]
    chosen: dict[str, list[str]] = {}
    for job in jobs:
        prefix, _, name = job.rpartition("/")
        fitting = [id for id in running if prefix in id and (runs.home() / "runs" / id / "jobs" / name).is_dir()]
        if not fitting:
            raise NotFoundError(f"no running job {job!r}; `headgate status` lists the jobs of a run")
        chosen.setdefault(fitting[-1], []).append(name)
    return [RunningJobs(id, names) for id, names in chosen.items()]
