"""`headgate ps`."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict

import click
from rich.table import Table
from rich.text import Text

from headgate.cli.live_view import print_table
from headgate.client.starting import clean
from headgate.model.errors import HeadgateError
from headgate.model.units import say_seconds
from headgate.recorded import runs

SHOWN = 20


@click.command()
@click.option(
    "-a",
    "--all",
    "every",
    is_flag=True,
    help=f"All runs, not only the latest {SHOWN}. --json always has all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(every: bool, as_json: bool) -> None:
    """List the runs, the latest last.

    A run whose hub died is shown as interrupted. `headgate resume` goes on with it.

    \b
    Example: headgate ps --all
    """
    clean()
    rows = []
    folders = runs.listing()
    shown = folders if every or as_json else folders[-SHOWN:]
    for folder in shown:
        try:
            rows.append(runs.summary(folder))
        except HeadgateError as error:
            click.echo(f"headgate: {error}", err=True)
    if as_json:
        click.echo(json.dumps([asdict(run) for run in rows], indent=2))
        return
    if not rows:
        click.echo("there are no runs yet; start one with: headgate run train.py")
        return
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for heading in ("run", "state", "began", "took"):
        table.add_column(heading, no_wrap=True)
    table.add_column("jobs")
    table.add_column("command")
    for run in rows:
        counts = Counter(job.state for job in run.jobs)
        table.add_row(
            run.id,
            f"{run.state} on {run.elsewhere}" if run.elsewhere else run.state,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began)),
            say_seconds(run.took) if run.took is not None else "",
            ", ".join(f"{count} {state}" for state, count in counts.items()),
            Text(run.command, no_wrap=True, overflow="ellipsis"),
        )
    print_table(table)
    if len(shown) < len(folders):
        click.echo(f"... and {len(folders) - len(shown)} earlier; --all")
