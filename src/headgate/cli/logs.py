"""`headgate logs`."""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from pathlib import Path

import click

from headgate import runs
from headgate.events import ENDED

_FOLLOW_SECONDS = 0.2


@click.command()
@click.argument("job")
@click.option("--run", help="Run of the job; the latest that has one of this name, when left out.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends.")
@click.option("-n", "--tail", type=click.IntRange(min=0), help="Only the last lines.")
@click.option("--json", "as_json", is_flag=True, help="Print the paths and sizes of the log files as JSON instead.")
def command(job: str, run: str | None, follow: bool, tail: int | None, as_json: bool) -> None:
    """Print what a job's tasks printed, both streams.

    \b
    Example: headgate logs cnn -f
             headgate logs 20261121-0930/cnn --tail 20
    """
    folder, name = runs.find_job(job, run)
    files = [Path(f"{path}{end}") for path in sorted((folder / "jobs" / name).glob("*.log")) for end in (".1", "")]
    files = [path for path in files if path.exists()]
    if as_json:
        click.echo(json.dumps([{"path": str(path), "bytes": path.stat().st_size} for path in files], indent=2))
        return
    for path in files:
        if tail is None:
            _print(path, 0)
        elif path.suffix == ".log":
            with path.open("rb") as file:
                sys.stdout.buffer.writelines(deque(file, maxlen=tail))
    sys.stdout.flush()
    if follow:
        _follow(folder, name, {path: path.stat().st_size for path in files if path.suffix == ".log"})


def _print(path: Path, start: int) -> int:
    with path.open("rb") as file:
        file.seek(start)
        while chunk := file.read(1 << 16):
            sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
        return file.tell()


def _follow(folder: Path, job: str, printed: dict[Path, int]) -> None:
    while True:
        ended = _ended(folder, job)
        for path in sorted((folder / "jobs" / job).glob("*.log")):
            size, before = path.stat().st_size, printed.get(path, 0)
            if size != before:
                # A log that is shorter than before was begun anew.
                printed[path] = _print(path, before if size > before else 0)
        if ended:
            return
        time.sleep(_FOLLOW_SECONDS)


def _ended(folder: Path, job: str) -> bool:
    return any(entry.name == job and entry.state in ENDED for entry in runs.summary(folder).jobs)
