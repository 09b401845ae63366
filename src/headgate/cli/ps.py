"""`headgate ps`."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from headgate.cli.live_view import print_table
from headgate.client.starting import clean
from headgate.model.errors import HeadgateError
from headgate.model.job_states import ENDED
from headgate.model.units import say_seconds
from headgate.recorded import at_stake, runs

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
        values = [{**asdict(run), "at_stake": _at_stake(run)} for run in rows]
        click.echo(json.dumps(values, indent=2))
        return
    if not rows:
        click.echo("there are no runs yet; start one with: headgate run train.py")
        return
    stakes = {run.id: _at_stake(run) for run in rows}
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for heading in ("run", "state", "began", "took"):
        table.add_column(heading, no_wrap=True)
    table.add_column("jobs")
    if any(stake is not None for stake in stakes.values()):
        table.add_column("a stop loses", no_wrap=True)
    table.add_column("command")
    for run in rows:
        counts = Counter(job.state for job in run.jobs)
        table.add_row(
            run.id,
            f"{run.state} on {run.elsewhere}" if run.elsewhere else run.state,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(run.began)),
            say_seconds(run.took) if run.took is not None else "",
            ", ".join(f"{count} {state}" for state, count in counts.items()),
            *_stake_cell(run, stakes),
            Text(run.command, no_wrap=True, overflow="ellipsis"),
        )
    print_table(table)
    if len(shown) < len(folders):
        click.echo(f"... and {len(folders) - len(shown)} earlier; --all")


def _at_stake(run: runs.RunSummary) -> float | None:
    """Most seconds of training that a stop of a live run would lose of a job whose script saves by
    itself; None: there is no such job.
    """
    if run.state != "running":
        return None
    with suppress(HeadgateError):
        ended = {job.name for job in run.jobs if job.state in ENDED}
        stakes = at_stake.of_run(Path(run.path)).values()
        return max((stake.seconds for stake in stakes if stake.job not in ended), default=None)
    return None


def _stake_cell(run: runs.RunSummary, stakes: Mapping[str, float | None]) -> list[str]:
    if all(stake is None for stake in stakes.values()):
        return []
    stake = stakes[run.id]
    return [say_seconds(stake) if stake is not None else ""]
