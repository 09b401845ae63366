"""`headgate checkpoint`."""

from __future__ import annotations

import json

import click

from headgate.client.running_jobs import running_jobs
from headgate.model.errors import HeadgateError


@click.command()
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@click.option(
    "--run", help="Run of the jobs, by its id or part of it. Default: the latest that is running."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(jobs: tuple[str, ...], run: str | None, as_json: bool) -> None:
    """Have running jobs save a checkpoint at the end of their step, and go on.

    If you name no job, all jobs of the run do so.

    \b
    Example: headgate checkpoint cnn
             headgate checkpoint --run 20261121-0930
    """
    asked: dict[str, list[str]] = {}
    silent: list[str] = []
    for chosen in running_jobs(jobs, run):
        with chosen.connect() as hub:
            answer = hub.ask("checkpoint", run=chosen.run, jobs=chosen.jobs)
            asked[chosen.run] = answer["jobs"]
            silent += answer["unconnected"]
    if not any(asked.values()) and silent:
        raise HeadgateError(
            f"{', '.join(silent)} imports one of Headgate's libraries and has not connected: "
            "try again once it trains; "
            "`headgate status` warns where it never does"
        )
    if not any(asked.values()):
        raise HeadgateError(
            "none of these jobs uses headgate.torch, .keras or .jax, so none can save a checkpoint"
        )
    if as_json:
        click.echo(json.dumps(asked, indent=2))
        return
    for id, names in asked.items():
        for name in names:
            click.echo(f"{id}/{name}: will save a checkpoint at the end of its step")
