"""`headgate report`."""

from __future__ import annotations

import dataclasses
import json
import webbrowser
from pathlib import Path
from typing import Any

import click

from headgate.recorded import runs


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
    from headgate.reports import html

    folder = runs.find(run)
    page = html.write(folder / runs.STORE, (output or folder / "report.html").absolute())
    if as_json:
        click.echo(json.dumps({"report": str(page), **_figures(folder)}, indent=2))
    else:
        click.echo(page)
    if show and not webbrowser.open(page.as_uri()):
        click.echo("no browser could be opened", err=True)


def _figures(folder: Path) -> dict[str, Any]:
    from headgate.diagnosis.job_figures import figures
    from headgate.recorded.recording import read
    from headgate.reports.explained import as_lines, explained
    from headgate.reports.words import what_happened

    run = read(folder / runs.STORE)
    jobs = [figures(job) for job in run.jobs]
    return {
        "run": run.id,
        "state": run.state,
        "seconds": run.seconds,
        "verdicts": [text for text, _ in as_lines(explained(run))],
        "story": what_happened(run, jobs),
        "warnings": [event for event in run.events if event["kind"] == "warning"],
        "jobs": [dataclasses.asdict(job) for job in jobs],
    }
