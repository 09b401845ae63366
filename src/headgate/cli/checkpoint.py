"""`headgate checkpoint`."""

from __future__ import annotations

import json

import click

from headgate.cli.many_jobs import folded
from headgate.client.running_jobs import check_asked, running_jobs


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option(
    "--run", help="Run of the jobs, by its id or part of it. Default: the latest that is running."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(jobs: tuple[str, ...], run: str | None, as_json: bool) -> None:
    """Have running jobs save a checkpoint at the end of their step, and go on.

    If you name no job, all jobs of the run do so; the name of a sweep stands for its jobs.

    \b
    Example: headgate checkpoint cnn
             headgate checkpoint --run 20261121-0930
    """
    requests = [chosen.checkpoint() for chosen in running_jobs(jobs, run)]
    check_asked(requests)
    if as_json:
        click.echo(json.dumps({request.run: request.jobs for request in requests}, indent=2))
        return
    for request in requests:
        for name in folded(request.jobs):
            click.echo(f"{request.run}/{name}: will save a checkpoint at the end of its step")
