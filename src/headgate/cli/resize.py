"""`headgate resize`."""

from __future__ import annotations

import json

import click

from headgate.cli.many_jobs import folded
from headgate.cli.options import Whole
from headgate.client.running_jobs import running_jobs
from headgate.hub.changes import Changes
from headgate.model.units import counted


@click.command()
@click.argument("job")
@click.option(
    "--workers",
    metavar="N",
    type=Whole(min=1),
    required=True,
    help="How many workers it is to have: 4.",
)
@click.option(
    "--run", help="Run of the job, by its id or part of it. Default: the latest that is running."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(job: str, workers: int, run: str | None, as_json: bool) -> None:
    """Have a running job of several tasks go on with more or fewer workers.

    Workers of a parameter-server job join or leave while the others go on. An all-reduce job is
    stopped with a checkpoint and started again from it.

    \b
    Example: headgate resize cnn --workers 4
    """
    [chosen] = running_jobs([job], run)
    resized = chosen.change(Changes(workers=workers))
    if as_json:
        [name] = chosen.jobs or [job]
        answer = {"run": chosen.run, "job": name, "jobs": resized, "workers": workers}
        click.echo(json.dumps(answer))
        return
    for name in folded(resized):
        click.echo(f"{chosen.run}/{name}: is being resized to {counted(workers, 'worker')}")
