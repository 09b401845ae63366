"""`headgate metrics`."""

from __future__ import annotations

import dataclasses
import json

import click

from headgate.cli.live_view import wide_console
from headgate.model import units
from headgate.model.errors import UsageError
from headgate.recorded import runs


@click.command("metrics")
@click.argument("job", required=False)
@click.option(
    "--run", metavar="RUN", help="Run, by its id or part of it. Default: the latest with this job."
)
@click.option("--since", metavar="TIME", help="Look only at the end of the run: 30s, 5m, 1h.")
@click.option(
    "--spans",
    is_flag=True,
    help="Show how the time of a step divides: input, forward, backward, and so on.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(
    job: str | None, run: str | None, since: str | None, spans: bool, as_json: bool
) -> None:
    """Show what was measured of a run's jobs and nodes: latest, mean and highest values.

    For each task: CPU, memory, disk, network, GPU and pressure; loss and speed; how much of a step
    waits for input.

    \b
    Example: headgate metrics
             headgate metrics cnn --since 30s
             headgate metrics 20261121-0930/cnn --spans
    """
    from headgate.recorded.recording import read
    from headgate.reports.measured import measured

    try:
        last = units.seconds(since) if since is not None else None
    except ValueError as error:
        raise UsageError(f"--since is {since!r}; {error}") from error
    folder, name = runs.find_job(job, run) if job is not None else (runs.find(run), None)
    readings = measured(read(folder / runs.STORE, last), name, last)
    if as_json:
        targets = [dataclasses.asdict(reading) for reading in readings]
        click.echo(json.dumps({"run": folder.name, "since": last, "targets": targets}, indent=2))
        return

    from headgate.reports import terminal

    terminal.metrics(readings, wide_console(), spans=spans)
