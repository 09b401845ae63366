"""`headgate pause`."""

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
@click.option(
    "--release",
    is_flag=True,
    help="End them with a checkpoint, which gives back their memory and GPUs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(jobs: tuple[str, ...], run: str | None, release: bool, as_json: bool) -> None:
    """Pause jobs until `headgate unpause`.

    If you name no job, all jobs of the run are paused; the name of a sweep stands for its jobs. A
    job that runs is frozen and keeps its memory; with `--release` it ends with a checkpoint
    instead, and starts again from that. A job that waits keeps its place in the queue.

    \b
    Example: headgate pause cnn
             headgate pause cnn --release
    """
    paused = [(chosen.run, chosen.pause(release=release)) for chosen in running_jobs(jobs, run)]
    if as_json:
        click.echo(json.dumps({id: {"paused": names} for id, names in paused}))
        return
    for id, names in paused:
        for name in folded(names):
            click.echo(f"{id}/{name}: {'ends for its pause' if release else 'paused'}")
