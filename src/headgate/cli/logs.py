"""`headgate logs`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from headgate.cli.options import Whole
from headgate.client.logs import JobLogs
from headgate.engines.log import gone_before
from headgate.model.errors import NotFoundError, UsageError
from headgate.model.identifiers import TaskName, job_and_task
from headgate.model.units import say_bytes
from headgate.recorded import runs


@click.command()
@click.argument("job", metavar="[RUN/]JOB[/TASK]")
@click.option(
    "--all", "every", is_flag=True, help="Print the logs of all its tasks, each under its name."
)
@click.option(
    "--run",
    help="Run of the job, by its id or part of it. Default: the latest with a job of this name.",
)
@click.option("-f", "--follow", is_flag=True, help="Go on printing until the job ends.")
@click.option(
    "-n", "--tail", metavar="N", type=Whole(min=0), help="Print only the last N lines: -n 20."
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print the paths and sizes of the log files as JSON instead.",
)
def command(
    job: str, every: bool, run: str | None, follow: bool, tail: int | None, as_json: bool
) -> None:
    """Print the output of a job's first worker, or of the task you name: standard output and
    errors. Of a job made of roles it is the first task of the role that the job ends with.

    \b
    Example: headgate logs cnn --follow
             headgate logs 20261121-0930/cnn --tail 20
             headgate logs cnn/worker-1
    """
    if as_json and (follow or tail is not None):
        raise UsageError(
            "found --json with --follow or --tail; --json lists the log files, and stands alone"
        )
    folder, name, task = _find(job, run)
    if every and task is not None:
        raise UsageError(f"found --all with a task, {task}; give one of them")
    everyone = JobLogs(folder, name, None)
    chosen = everyone if every or (as_json and task is None) else JobLogs.of(folder, name, task)
    if as_json:
        entries = [{**asdict(file), "path": str(file.path)} for file in chosen.files()]
        click.echo(json.dumps(entries, indent=2))
        return
    headings = _Headings(every and len(everyone.paths()) > 1)
    begun = set[Path]()
    for log, piece in chosen.output(tail, follow):
        headings.show(log)
        if tail is None and log not in begun and (gone := gone_before(log)):
            text = f"the first {say_bytes(gone)} of this log are gone; it goes on with:"
            click.echo(text, err=True)
        begun.add(log)
        sys.stdout.buffer.write(piece)
        sys.stdout.flush()


def _find(text: str, run: str | None) -> tuple[Path, str, TaskName | None]:
    """The folder of the run, the job and the task named by `[RUN/]JOB[/TASK]`."""
    job, task = job_and_task(text)
    if task is not None:
        try:
            return *runs.find_job(job, run), task
        except NotFoundError:  # a job may be called so itself
            pass
    return *runs.find_job(text, run), None


class _Headings:
    """Prints a heading with the log of the next lines if it differs from the last one."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._last = ""

    def show(self, path: Path) -> None:
        task = path.name.removesuffix(".1").removesuffix(".log")
        if self._wanted and task != self._last:
            click.echo(f"==> {task} <==")
        self._last = task
