"""`headgate logs`."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import click

from headgate.cli.options import Whole
from headgate.client.logs import JobLogs, LogPosition, last_lines
from headgate.engines.log import gone_before
from headgate.model.errors import NotFoundError, UsageError
from headgate.model.identifiers import TaskName, job_and_task
from headgate.model.units import say_bytes
from headgate.recorded import runs

_FOLLOW_SECONDS = 0.2


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
    printed = {}
    for log in chosen.paths():
        headings.show(log)
        printed[log] = _print_all(log) if tail is None else _print_last(log, tail)
    if follow:
        _follow(chosen, printed, headings)


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


def _print_all(log: Path) -> LogPosition:
    """Print what remains of a log, and say how much of it is gone."""
    if gone := gone_before(log):
        click.echo(f"the first {say_bytes(gone)} of this log are gone; it goes on with:", err=True)
    former = Path(f"{log}.1")
    if former.exists():
        _print(former)
    return _print(log)


def _print_last(log: Path, lines: int) -> LogPosition:
    last, place = last_lines(log, lines)
    sys.stdout.buffer.writelines(last)
    sys.stdout.flush()
    return place


def _print(path: Path, start: int = 0) -> LogPosition:
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(1 << 16):
            sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
        return LogPosition(os.fstat(file.fileno()).st_ino, file.tell())


def _follow(chosen: JobLogs, printed: dict[Path, LogPosition], headings: _Headings) -> None:
    while True:
        ended = chosen.ended()
        for path in chosen.paths():
            with suppress(FileNotFoundError):  # it is being begun anew
                place = printed.get(path)
                printed[path] = _print_on(path, place, headings)
        if ended:
            return
        time.sleep(_FOLLOW_SECONDS)


def _print_on(path: Path, place: LogPosition | None, headings: _Headings) -> LogPosition:
    """Print the lines added to a log since `place`."""
    status = path.stat()
    if place == LogPosition(status.st_ino, status.st_size):
        return place
    headings.show(path)
    if place is None:
        return _print(path)
    if status.st_ino == place.inode:
        return _print(path, start=place.bytes)
    former = Path(f"{path}.1")
    if former.stat().st_ino == place.inode:
        _print(former, start=place.bytes)
    return _print(path)
