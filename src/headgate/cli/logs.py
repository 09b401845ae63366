"""`headgate logs`."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import click

from headgate import runs
from headgate.errors import UsageError
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
    if as_json and (follow or tail is not None):
        raise UsageError("found --json with --follow or --tail; --json lists the log files, and stands alone")
    folder, name = runs.find_job(job, run)
    files = [Path(f"{path}{end}") for path in sorted((folder / "jobs" / name).glob("*.log")) for end in (".1", "")]
    files = [path for path in files if path.exists()]
    if as_json:
        click.echo(json.dumps([{"path": str(path), "bytes": path.stat().st_size} for path in files], indent=2))
        return
    printed = {path: _print(path, tail) for path in files if tail is None or path.suffix == ".log"}
    if follow:
        _follow(folder, name, printed)


class _Place(NamedTuple):
    """How far a log was printed: the file, which is renamed when it is full, and the bytes of it."""

    inode: int
    bytes: int


def _print(path: Path, tail: int | None = None, start: int = 0) -> _Place:
    with path.open("rb") as file:
        file.seek(start)
        if tail is not None:
            sys.stdout.buffer.writelines(deque(file, maxlen=tail))
        while chunk := file.read(1 << 16):
            sys.stdout.buffer.write(chunk)
        sys.stdout.flush()
        return _Place(os.fstat(file.fileno()).st_ino, file.tell())


def _follow(folder: Path, job: str, printed: dict[Path, _Place]) -> None:
    while True:
        ended = _ended(folder, job)
        for path in sorted((folder / "jobs" / job).glob("*.log")):
            with suppress(FileNotFoundError):  # it is being begun anew
                printed[path] = _print_on(path, printed.get(path))
        if ended:
            return
        time.sleep(_FOLLOW_SECONDS)


def _print_on(path: Path, place: _Place | None) -> _Place:
    """Print what has come to a log since it was printed up to `place`."""
    if place is None:
        return _print(path)
    if path.stat().st_ino == place.inode:
        return _print(path, start=place.bytes)
    former = Path(f"{path}.1")
    if former.stat().st_ino == place.inode:
        _print(former, start=place.bytes)
    return _print(path)


def _ended(folder: Path, job: str) -> bool:
    return any(entry.name == job and entry.state in ENDED for entry in runs.summary(folder).jobs)
