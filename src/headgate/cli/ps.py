"""`headgate ps`."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict

import click
from rich.table import Table

from headgate import runs
from headgate.cli.following import print_table
from headgate.errors import HeadgateError
from headgate.hub.client import clean
from headgate.units import say_seconds

SHOWN = 20


@click.command()
@click.option("-a", "--all", "every", is_flag=True, help=f"All runs, not only the latest {SHOWN}.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(every: bool, as_json: bool) -> None:
    """List the runs, the latest last. A run whose hub died is shown as interrupted.

    \b
    Example: headgate ps --all
    """
    clean()
    found = []
    for folder in runs.listing()[0 if every else -SHOWN :]:
        try:
            found.append(runs.summary(folder))
        except HeadgateError as error:
            click.echo(f"headgate: {error}", err=True)
    if as_json:
        click.echo(json.dumps([asdict(run) for run in found], indent=2))
        return
    if not found:
        click.echo("there are no runs yet; start one with: headgate run train.py")
        return
    table = Table("run", "state", "began", "took", "jobs", "command", box=None, pad_edge=False)
    for run in found:
        counts = Counter(job.state for job in run.jobs)
        took = run.ended if run.ended is not None else time.time() - run.began if run.state == "running" else None
        table.add_row(
            run.id,
            run.state,
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.began)),
            say_seconds(took) if took is not None else "",
            ", ".join(f"{count} {state}" for state, count in counts.items()),
            run.command.replace("[", r"\["),
        )
    print_table(table)
