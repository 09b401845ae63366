"""`headgate stop`."""

from __future__ import annotations

import json
import time

import click

from headgate import runs
from headgate.cli.choosing import RunningJobs, running_hub, running_jobs
from headgate.events import ENDED
from headgate.hub.client import Hub

_WRITTEN_SECONDS = 2.0
"""Longest that the ends may take to be in the store, which is written about twice a second; a full disk takes none."""


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option("--run", help="Run of the jobs; the latest that is running, when left out.")
@click.option("-a", "--all", "every", is_flag=True, help="All jobs of all runs.")
@click.option("--kill", is_flag=True, help="At once, without a checkpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(jobs: tuple[str, ...], run: str | None, every: bool, kill: bool, as_json: bool) -> None:
    """Stop jobs (all of a run's, when none is named) at the end of a step, with a checkpoint, and wait until they
    ended.

    \b
    Example: headgate stop cnn
             headgate stop --all --kill
    """
    with running_hub() as hub:
        ended: dict[str, dict[str, str]] = {}
        for chosen in running_jobs(hub, jobs, run, every):
            ended[chosen.run] = _stop(hub, chosen, kill)
    if as_json:
        click.echo(json.dumps(ended, indent=2))
        return
    for id, states in ended.items():
        for job, state in states.items():
            click.echo(f"{id}/{job}: {state}")


def _stop(hub: Hub, chosen: RunningJobs, kill: bool) -> dict[str, str]:
    """Stop jobs of one run and wait for their ends; their states."""
    states: dict[str, str] = {}
    with running_hub() as watched:  # a connection of its own: answers and what is told of a run do not mix
        watched.ask("attach", run=chosen.run)
        stopping = hub.ask("stop", run=chosen.run, jobs=chosen.jobs, kill=kill)["jobs"]
        while any(states.get(job) not in ENDED for job in stopping):
            message = watched.receive() or {}
            if message.get("type") in ("snapshot", "end"):
                states = {job["name"]: job["state"] for job in message["jobs"]}
    folder, deadline = runs.home() / "runs" / chosen.run, time.monotonic() + _WRITTEN_SECONDS
    while time.monotonic() < deadline:
        written = {job.name: job.state for job in runs.summary(folder).jobs}
        if all(written[job] in ENDED for job in stopping):
            break
        time.sleep(0.1)
    return {job: states[job] for job in stopping}
