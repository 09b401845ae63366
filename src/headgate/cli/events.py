"""`headgate events`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from headgate.client.run import Run
from headgate.model.errors import UsageError
from headgate.recorded import runs
from headgate.recorded.events import LoggedEvent, read_events, read_hub_log
from headgate.reports import event_words


@click.command("events")
@click.argument("run", required=False)
@click.option("--job", metavar="JOB", help="Only what is about this job.")
@click.option(
    "--why",
    metavar="JOB",
    help="What led to the present state and share of this job, step by step.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on printing until the run ends.")
@click.option(
    "--hub", "of_hub", is_flag=True, help="What belongs to no run: nodes, and controllers made."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print as JSON; with --follow an entry a line."
)
def command(
    run: str | None, job: str | None, why: str | None, follow: bool, of_hub: bool, as_json: bool
) -> None:
    """List what a run's controller was told, and what it decided, with causes.

    An arrow to the left marks what came in, one to the right what was decided. RUN is a run's id or
    part of it; by default the latest.

    \b
    Example: headgate events
             headgate events 20261121-0930 --job cnn --follow
             headgate events --why cnn
             headgate events --hub
    """
    if of_hub and (run or job or why or follow):
        raise UsageError("found --hub with a run; it lists what belongs to none, and stands alone")
    if why and (job or follow):
        raise UsageError("found --why with --job or --follow; give --why JOB alone")
    if of_hub:
        _print(read_hub_log(runs.hub()), as_json)
        return
    folder = runs.find(run)
    if name := job or why:
        runs.find_job(name, folder.name)  # raises where there is none
    if why:
        _explain(folder, why, as_json)
    elif follow:
        for entry in read_events(folder, job, follow=True):
            click.echo(json.dumps(_entry(entry)) if as_json else event_words.line(entry))
    else:
        _print(read_events(folder, job), as_json)


def _print(entries: Iterable[LoggedEvent], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([_entry(entry) for entry in entries], indent=2))
        return
    for entry in entries:
        click.echo(event_words.line(entry))


def _explain(folder: Path, job: str, as_json: bool) -> None:
    chains = Run(folder).why(job)
    if as_json:
        click.echo(json.dumps([[_entry(entry) for entry in links] for links in chains], indent=2))
        return
    for links in chains:
        for line in event_words.chain_lines(links):
            click.echo(line)


def _entry(entry: LoggedEvent) -> dict[str, Any]:
    return {
        **entry.as_json(),
        "run": entry.run,
        "name": entry.name,
        "job": entry.job.name if entry.job is not None else None,
        "task": entry.task.name if entry.task is not None else None,
        "text": event_words.text(entry),
    }
