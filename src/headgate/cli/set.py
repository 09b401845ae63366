"""`headgate set`."""

from __future__ import annotations

import json

import click

from headgate.cli.many_jobs import folded
from headgate.client.running_jobs import running_jobs
from headgate.hub.changes import Changes
from headgate.model.errors import UsageError


@click.command()
@click.argument("job")
@click.argument("changes", nargs=-1, required=True, metavar="NAME=VALUE...")
@click.option(
    "--run", help="Run of the job, by its id or part of it. Default: the latest that is running."
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(job: str, changes: tuple[str, ...], run: str | None, as_json: bool) -> None:
    """Change a job that has not ended, or those of a sweep that have not.

    `priority` and `cores`, the most that it may use, hold from now on, and when it is resumed.
    So do `memory`, the most of each worker, and `timeout`. `workers` is the same as `headgate
    resize`. With `at_once`, at most so many jobs of its run or sweep run at once.

    \b
    Example: headgate set cnn priority=3
             headgate set cnn cores=0.5 memory=4GiB timeout=2h
             headgate set train at_once=4
    """
    values = dict[str, str]()
    for change in changes:
        name, sign, value = change.partition("=")
        if not sign:
            raise UsageError(f"found {change!r}; expected NAME=VALUE, such as priority=3")
        values[name] = value
    asked = Changes.of(values)
    [chosen] = running_jobs([job], run)
    changed = chosen.change(asked)
    if as_json:
        [name] = chosen.jobs or [job]
        answer = {"run": chosen.run, "job": name, "jobs": changed, **asked.plain()}
        click.echo(json.dumps(answer))
        return
    for name in folded(changed):
        click.echo(f"{chosen.run}/{name}: {asked}")
