"""`headgate stop`."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from headgate.client.running_jobs import RunningJobs, running_jobs
from headgate.hub.connection import HubConnection
from headgate.model.errors import HeadgateError
from headgate.model.events import ENDED, state_in_words
from headgate.recorded import runs

_WRITTEN_SECONDS = 2.0
"""Longest that the ends may take to be in the store, which is written about twice a second; a full
disk takes none.
"""

_TOLD = ("state", "reason", "ending")


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option(
    "--run", help="Run of the jobs, by its id or part of it. Default: the latest that is running."
)
@click.option("-a", "--all", "every", is_flag=True, help="Stop all jobs of all runs.")
@click.option("--kill", is_flag=True, help="Kill them at once, without a checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(jobs: tuple[str, ...], run: str | None, every: bool, kill: bool, as_json: bool) -> None:
    """Stop jobs at the end of a step, with a checkpoint, and wait until they ended.

    If you name no job, all jobs of the run are stopped. `headgate resume` goes on with them. A job
    is `killed` that did not end in its time. The last checkpoint of each is named.

    \b
    Example: headgate stop cnn
             headgate stop --all --kill
    """
    with ExitStack() as connections:
        # Two connections for each run: answers and what is told of a run do not mix.
        asked = []
        for chosen in running_jobs(jobs, run, every):
            hub, watched = (connections.enter_context(chosen.connect()) for _ in range(2))
            asked.append((chosen, watched, _ask(hub, watched, chosen, kill)))
        ended = {
            chosen.run: _wait(watched, chosen, stopping) for chosen, watched, stopping in asked
        }
    if as_json:
        click.echo(json.dumps(ended, indent=2))
        return
    for id, states in ended.items():
        for job, end in states.items():
            click.echo(f"{id}/{job}: {state_in_words(end['state'], end['reason'])}")


def _ask(
    hub: HubConnection, watched: HubConnection, chosen: RunningJobs, kill: bool
) -> list[str] | None:
    """Have jobs of a run stopped; those that are, None where the run has ended by itself."""
    try:
        watched.ask("attach", run=chosen.run)
        stopping: list[str] = hub.ask("stop", run=chosen.run, jobs=chosen.jobs, kill=kill)["jobs"]
    except HeadgateError:
        if chosen.run in hub.ask("runs")["runs"]:
            raise
        return None
    return stopping


def _wait(
    watched: HubConnection, chosen: RunningJobs, stopping: list[str] | None
) -> dict[str, Any]:
    """Wait for the ends of jobs of one run; their states, with the reason and what else there is to
    say of each.
    """
    folder = runs.home() / "runs" / chosen.run
    if stopping is None:
        written = _written(folder)
        return written if chosen.jobs is None else {job: written[job] for job in chosen.jobs}
    jobs: dict[str, Any] = {}
    while any(job not in jobs or jobs[job]["state"] not in ENDED for job in stopping):
        message = watched.receive() or {}
        if message.get("type") in ("snapshot", "end"):
            jobs = {job["name"]: {name: job[name] for name in _TOLD} for job in message["jobs"]}
    deadline = time.monotonic() + _WRITTEN_SECONDS
    while time.monotonic() < deadline and not _are_written(folder, stopping):
        time.sleep(0.1)
    return {job: jobs[job] for job in stopping}


def _are_written(folder: Path, jobs: Sequence[str]) -> bool:
    """Whether a run's store has the ends of jobs, or never will, since it is gone or damaged."""
    try:
        written = _written(folder)
    except HeadgateError:
        return True
    return all(job in written and written[job]["state"] in ENDED for job in jobs)


def _written(folder: Path) -> dict[str, Any]:
    return {
        job.name: {name: getattr(job, name) for name in _TOLD} for job in runs.summary(folder).jobs
    }
