"""`headgate replay`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from headgate.model.units import counted
from headgate.recorded import runs
from headgate.recorded.events import as_json as entry_json
from headgate.recorded.events import read_controller
from headgate.reports import event_words
from headgate.reports.words import say
from headgate.simulation.replay import ChangedDecision, ReplayResult, load, replay, save

_SHOWN = 10
"""Most differences that are printed."""


@click.command("replay")
@click.argument("run", required=False)
@click.option(
    "--save",
    "path",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the events with today's actions, as a test: tests/controller/recorded/mine.jsonl.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.pass_context
def command(context: click.Context, run: str | None, path: Path | None, as_json: bool) -> None:
    """Feed a run's recorded events to today's controller, and say where it decides otherwise.

    RUN is a run's id or part of it, by default the latest, or a file that --save wrote. Nothing is
    started. The exit code is 0 where all actions are the same, and 1 where some differ.

    \b
    Example: headgate replay
             headgate replay 20261121-0930 --json
             headgate replay 20261121-0930 --save tests/controller/recorded/mine.jsonl
    """
    if run is not None and run.endswith(".jsonl"):
        name, result = run, replay(load(Path(run)))
    else:
        folder = runs.find(run)
        name, result = folder.name, replay(read_controller(folder))
    if path is not None:
        save(result, path)
    if as_json:
        click.echo(json.dumps(_figures(name, result), indent=2))
    else:
        _print(name, result)
    context.exit(1 if result.differences else 0)


def _print(name: str, result: ReplayResult) -> None:
    replayed = f"{counted(result.events, 'event')} in {say(result.seconds, 's')}"
    if result.stopped:
        replayed += f", up to where {result.stopped}"
    if not result.differences:
        click.echo(f"{name}: the same {counted(result.actions, 'action')} after {replayed}")
        return
    differing = counted(len(result.differences), "event")
    click.echo(f"{name}: today's controller differs at {differing} of {replayed}")
    for difference in result.differences[:_SHOWN]:
        click.echo(event_words.line(difference.event))
        for mark, actions in (("-", difference.recorded), ("+", difference.today)):
            for action in actions:
                click.echo(f"   {mark} {event_words.words(action)}")
        if difference.error:
            click.echo(f"   ! {difference.error}")
    if (more := len(result.differences) - _SHOWN) > 0:
        click.echo(f"and {more:,} more; --json lists all")


def _figures(name: str, result: ReplayResult) -> dict[str, Any]:
    return {
        "run": name,
        "same": not result.differences,
        "events": result.events,
        "actions": result.actions,
        "seconds": result.seconds,
        "stopped": result.stopped or None,
        "differences": [_difference(difference) for difference in result.differences],
    }


def _difference(difference: ChangedDecision) -> dict[str, Any]:
    return {
        "event": difference.event.as_json(),
        "recorded": [entry_json(action) for action in difference.recorded],
        "today": [entry_json(action) for action in difference.today],
        "error": difference.error or None,
    }
