"""`headgate report`."""

from __future__ import annotations

import json
import webbrowser
from pathlib import Path

import click

from headgate.client.client import Client


@click.command("report")
@click.argument("run", required=False)
@click.option("--open", "show", is_flag=True, help="Open the page in a browser.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write this file instead of the run's own: /tmp/report.html.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures of the report as JSON.")
def command(run: str | None, show: bool, output: Path | None, as_json: bool) -> None:
    """Write a run's report as one HTML page, and print its path.

    RUN is a run's id or part of it; by default the latest. You can report a run that still goes on.

    \b
    Example: headgate report
             headgate report 20260314 --open
             headgate report --output /tmp/for-a-colleague.html
             headgate report --json
    """
    report = Client().find(run).report(output)
    if as_json:
        click.echo(json.dumps({"report": str(report.path), **report.figures()}, indent=2))
    else:
        click.echo(report.path)
    if show and not webbrowser.open(report.path.as_uri()):
        click.echo("no browser could be opened", err=True)
