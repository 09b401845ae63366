"""`headgate study`."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headgate.cli.live_view import wide_console
from headgate.model.errors import HeadgateError, NotFoundError

if TYPE_CHECKING:
    from headgate.studies.findings import Findings
    from headgate.studies.grid import Cell, PlannedTime
    from headgate.studies.journal import Journal
    from headgate.studies.studyfile import Study


class _OfFile(click.Group):
    """Takes a file where no command below it is named: `headgate study FILE` is `headgate study run
    FILE`.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = next((word for word in args if not word.startswith("-")), None)
        if first is not None and first not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_OfFile, subcommand_metavar="FILE [OPTIONS] | COMMAND [ARGS]...")
def command() -> None:
    """Measure a study: what a grid of experiments costs, repeated, with intervals and a noise
    floor.

    FILE says which workloads run, in which scenarios, and what is varied. It may also be the name
    of a study that comes with Headgate: `simultaneous`, `isolation`, `sparse` or `spark`. `headgate
    study FILE` takes the options of `headgate study run`. Every command takes --json.

    \b
    Example: headgate study simultaneous
             headgate study simultaneous --print > mine.yaml
             headgate study shared.yaml
             headgate study shared.yaml --dry-run
             headgate study shared.yaml --resume
             headgate study show shared
             headgate study compare shared-20260314 shared-20260315
    """


@command.command("run")
@click.argument("file")
@click.option(
    "--dry-run", is_flag=True, help="Print the cells and the planned time, and run nothing."
)
@click.option(
    "--quick",
    is_flag=True,
    help="Repeat each cell twice, and no block again: no intervals, no findings.",
)
@click.option(
    "--resume",
    is_flag=True,
    help="Go on with the latest study of that name; what failed is run again.",
)
@click.option(
    "--print", "as_text", is_flag=True, help="Print the file itself, to begin one of your own."
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def run(file: str, dry_run: bool, quick: bool, resume: bool, as_text: bool, as_json: bool) -> int:
    """Run a study, and say what came of it.

    FILE is a file, or the name of a study that comes with Headgate.

    Each cell is an ordinary run, once in each block. Ctrl-C or SIGTERM ends the run under way and
    keeps what was measured. --resume goes on, also after a kill -9. If others disturb a block, it
    is done again, and both are kept.

    \b
    Example: headgate study shared.yaml
             headgate study run shared.yaml --quick
             headgate study shared.yaml --dry-run --json
             headgate study shared.yaml --resume

    \b
    Exit codes: 0   every cell is measured, or this machine cannot measure it
                1   a cell failed
                2   bad input, or more time is planned than `budget` allows
                130 interrupted
    """
    from headgate.planning.interference import STORED
    from headgate.recorded import runs
    from headgate.studies import grid, journal, pair_table, running, studyfile

    path = studyfile.path_of(file)
    study = studyfile.load(path)
    if as_text:
        click.echo(Path(path).read_text(encoding="utf-8"), nl=False)
        return 0
    before = journal.of_name(study.title)
    repetitions = min(study.repetitions, grid.QUICK_REPETITIONS) if quick else study.repetitions
    planned = grid.planned_time(study, repetitions, _earlier_seconds(before))
    if dry_run:
        _show_plan(study, planned, as_json)
        return 0
    click.echo(f"planned: {planned}", err=True)
    grid.check_budget(study, planned)
    about: dict[str, Any] = {
        "seed": study.seed,
        "repetitions": repetitions,
        "axes": {axis: list(values) for axis, values in grid.axes(study).items()},
        "priorities": {workload.job.name: workload.job.priority for workload in study.workloads},
        "cells": [{**asdict(cell), "name": cell.name} for cell in planned.cells],
        "published": [comparison.model_dump() for comparison in study.published],
    }
    if resume:
        if not before:
            raise NotFoundError(
                f"there is no study {study.title!r} to go on with; leave out --resume"
            )
        kept = before[-1]
    else:
        kept = journal.create(study.title, path, about)
    with kept:
        if resume:
            kept.describe({**kept.about, **about})
            _say_machine(kept)
        click.echo(f"study {kept.folder.name} in {kept.folder}", err=True)
        # As Ctrl-C: programs started for a cell end with it.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            running.StudyRun(
                study, kept, planned, not quick, lambda line: click.echo(line, err=True)
            ).run()
        except KeyboardInterrupt:
            count = len(kept.measurements())
            click.echo(
                f"measurements kept: {count}; go on with: headgate study {file} --resume", err=True
            )
            return 130
        conclusion = _conclude(kept, as_json)
        table = runs.home() / STORED
        if count := pair_table.keep(conclusion, table):
            click.echo(f"what pairs cost each other (measured: {count}): {table}", err=True)
    return int(any(cell.state == "failed" for cell in conclusion.cells))


@command.command()
@click.argument("study", required=False)
@click.option("--markdown", is_flag=True, help="Print as a page in Markdown.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def show(study: str | None, markdown: bool, as_json: bool) -> None:
    """Show what a study has come to, and write its page again.

    STUDY is a study's name or part of it; by default the latest. You can look at one that still
    runs.

    \b
    Example: headgate study show
             headgate study show shared-20260314
             headgate study show --json
             headgate study show shared --markdown > shared.md
    """
    from headgate.studies import journal, report

    kept = journal.find(study)
    if markdown:
        click.echo(report.as_markdown(_findings(kept)), nl=False)
    else:
        _conclude(kept, as_json)


@command.command()
@click.argument("first")
@click.argument("second")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def compare(first: str, second: str, as_json: bool) -> None:
    """Say which cells of two studies differ: the second against the first.

    FIRST and SECOND are names of studies, or parts of them.

    \b
    Example: headgate study compare shared-20260314 shared-20260315
             headgate study compare shared-20260314 shared-20260315 --json
    """
    from headgate.studies import journal
    from headgate.studies.findings import between
    from headgate.studies.statistics import change, say

    ours, other_findings = (_findings(journal.find(name)) for name in (first, second))
    differences, only = between(ours, other_findings)
    if as_json:
        rows = [
            {"cell": cell, **asdict(ratio), "floor": floor, "change": change(ratio, floor)}
            for cell, ratio, floor in differences
        ]
        click.echo(
            json.dumps(
                {"studies": [ours.name, other_findings.name], "cells": rows, "only": only}, indent=2
            )
        )
        return
    click.echo(f"{other_findings.name} against {ours.name}")
    for cell, ratio, floor in differences:
        click.echo(f"  {cell}: {say(ratio, floor)}")
    for cell in only:
        click.echo(f"  {cell}: only one of the studies has it")


def _earlier_seconds(before: list[Journal]) -> dict[str, float]:
    """Seconds of a run by workload, measured by earlier studies of that name."""
    from headgate.studies import journal

    took: dict[str, list[float]] = {}
    machine = journal.machine()
    for measurement in before[-1].measurements() if before else ():
        if measurement.state == "measured" and measurement.machine == machine:
            for name in measurement.cell["workloads"]:
                took.setdefault(name, []).append(
                    measurement.figures["took"] / len(measurement.cell["workloads"])
                )
    return {name: sum(seconds) / len(seconds) for name, seconds in took.items()}


def _show_plan(study: Study, planned: PlannedTime, as_json: bool) -> None:
    if as_json:
        cells = [{**asdict(cell), "name": cell.name, **_key(study, cell)} for cell in planned.cells]
        data = {
            "study": study.title,
            "seconds": planned.total,
            "repetitions": planned.repetitions,
            "cells": cells,
        }
        click.echo(json.dumps(data, indent=2))
        return
    for cell in planned.cells:
        click.echo(cell.name)
    click.echo(f"planned: {planned}")


def _key(study: Study, cell: Cell) -> dict[str, str]:
    from headgate.studies.grid import cell_run

    try:
        return {"key": cell_run(study, cell).key}
    except HeadgateError as error:
        return {"lacks": str(error)}


def _say_machine(kept: Journal) -> None:
    """Print how the machine has changed since a study began."""
    from headgate.studies import journal

    was, present_machine = kept.about["machine"], journal.machine()
    changed = [
        f"{name} {was.get(name)} → {value}"
        for name, value in present_machine.items()
        if was.get(name) != value
    ]
    if changed:
        apart = sum(measurement.machine != present_machine for measurement in kept.measurements())
        click.echo(
            f"this machine has changed: {'; '.join(changed)}; measurements kept apart: {apart}",
            err=True,
        )


def _findings(kept: Journal) -> Findings:
    from headgate.recorded.reader import told_as_damage
    from headgate.studies.findings import findings

    with told_as_damage(kept.folder / "results.jsonl"):
        return findings(kept.folder.name, kept.about, kept.measurements())


def _conclude(kept: Journal, as_json: bool) -> Findings:
    """Write the page of a study, and print its result."""
    from headgate.studies import report

    findings = _findings(kept)
    page: Path = report.write(findings, kept.folder, kept.measurements())
    if as_json:
        click.echo(json.dumps({**report.as_json(findings), "report": str(page)}, indent=2))
    else:
        report.tell(findings, wide_console())
        click.echo(f"Report: {page}")
    return findings
