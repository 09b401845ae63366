"""`headgate unpause`."""

from __future__ import annotations

import json

import click

from headgate.cli.many_jobs import folded
from headgate.client.running_jobs import running_jobs


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option(
    "--run", help="Run of the jobs, by its id or part of it. Default: the latest that is running."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(jobs: tuple[str, ...], run: str | None, as_json: bool) -> None:
    """Let paused jobs go on.

    If you name no job, all paused jobs of the run go on; the name of a sweep stands for its jobs.
    One that gave back its memory waits for room, and starts again from its checkpoint.

    \b
    Example: headgate unpause cnn
    """
    again = [(chosen.run, chosen.unpause()) for chosen in running_jobs(jobs, run)]
    if as_json:
        click.echo(json.dumps({id: {"unpaused": names} for id, names in again}))
        return
    for id, names in again:
        for name in folded(names):
            click.echo(f"{id}/{name}: goes on")
