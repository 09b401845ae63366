"""What administrators do with `headgate arbiter`: with jobs of others, users, and the machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from headgate.arbiter.acts import ActKind
from headgate.cli.machine_view import amounts, line
from headgate.client.machine import SharedMachine, id_of, named
from headgate.model import units
from headgate.model.errors import UsageError
from headgate.model.sharing import Amounts

_JSON = click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
_JOBS = click.argument("jobs", nargs=-1, required=True, metavar="USER:JOB...")

_RUNS_ON = "runs and goes on; if it ends for another attempt, that waits until you release it"
_STOPPED = "is stopped by its hub"


def _of_jobs(
    kind: ActKind, jobs: tuple[str, ...], as_json: bool, done: str, if_it_runs: str
) -> None:
    """Give an order, and say what comes of it: for jobs that wait, and for those that run."""
    machine = SharedMachine()
    seen = machine.look()
    if not seen.may_order:
        raise UsageError(
            "only root, and members of the groups in `administrators` of the rules, may order that"
        )
    meant = [named(seen, job) for job in jobs]
    runs = {job: machine.order(kind, job) for job in meant}
    if as_json:
        rows = [
            {"user": job.hub.user, "job": id_of(job), "act": kind, "runs": runs[job]}
            for job in meant
        ]
        click.echo(json.dumps(rows, indent=2))
        return
    for job in meant:
        comes = if_it_runs if runs[job] else done
        click.echo(line(f"{job.hub.user}:{id_of(job)} {comes}"))


@click.command()
@_JOBS
@_JSON
def hold(jobs: tuple[str, ...], as_json: bool) -> None:
    """Do not let a waiting job start; one that runs goes on.

    Example: headgate arbiter hold ada:vae
    """
    _of_jobs(ActKind.HOLD, jobs, as_json, "does not start until you release it", _RUNS_ON)


@click.command()
@_JOBS
@_JSON
def release(jobs: tuple[str, ...], as_json: bool) -> None:
    """Leave a job to its turn again, that was held or let go first.

    Example: headgate arbiter release ada:vae
    """
    _of_jobs(ActKind.RELEASE, jobs, as_json, "starts in its turn", "runs; nothing holds it")


@click.command()
@_JOBS
@_JSON
def first(jobs: tuple[str, ...], as_json: bool) -> None:
    """Let a waiting job start before all others.

    Example: headgate arbiter first ada:vae
    """
    _of_jobs(ActKind.FIRST, jobs, as_json, "starts before all others", "runs already")


@click.command()
@_JOBS
@_JSON
def stop(jobs: tuple[str, ...], as_json: bool) -> None:
    """Have the hub of another user stop a job, with a checkpoint.

    Example: headgate arbiter stop ada:vae
    """
    _of_jobs(ActKind.STOP, jobs, as_json, _STOPPED, _STOPPED)


@click.command()
@_JSON
def drain(as_json: bool) -> None:
    """Let no job start any more, such as before the machine is shut down.

    Example: headgate arbiter drain
    """
    SharedMachine().drain(True)
    click.echo('{"drained": true}' if as_json else "jobs go on, and no other starts")


@click.command()
@_JSON
def undrain(as_json: bool) -> None:
    """Let jobs start again.

    Example: headgate arbiter undrain
    """
    SharedMachine().drain(False)
    click.echo('{"drained": false}' if as_json else "jobs start again")


@click.command()
@click.argument("user")
@click.argument("most", nargs=-1, required=True, metavar="NAME=VALUE...|none")
@_JSON
def limit(user: str, most: tuple[str, ...], as_json: bool) -> None:
    """Leave a user at most so many cores, so much memory, so many GPUs or jobs.

    It holds beside the rules, also after a restart, until you lift it with `none`. Nothing is taken
    from jobs that run.

    \b
    Example: headgate arbiter limit ada gpus=1 memory=64GiB
             headgate arbiter limit ada none
    """
    largest = None if most == ("none",) else _amounts(most)
    SharedMachine().limit(user, largest)
    if as_json:
        click.echo(json.dumps({"user": user, "largest": largest and _plain(largest)}))
    elif largest is None:
        click.echo(f"{user} may have what the rules say")
    else:
        click.echo(f"{user} may have at most {amounts(largest)}")


def _plain(largest: Amounts) -> dict[str, Any]:
    from headgate.model import records

    values: dict[str, Any] = records.plain(largest)
    return values


def _amounts(most: tuple[str, ...]) -> Amounts:
    """Amounts as the command line states them."""
    values: dict[str, Any] = {}
    for text in most:
        name, sign, value = text.partition("=")
        if not sign or name not in _READERS:
            names = ", ".join(_READERS)
            raise UsageError(f"found {text!r}; expected NAME=VALUE with one of {names}; or none")
        key, read = _READERS[name]
        try:
            values[key] = read(value)
        except ValueError as error:
            raise UsageError(f"found {text!r}; {error}") from None
    return Amounts(**values)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise ValueError("expected a whole number")
    return int(text)


def _cores(text: str) -> float:
    try:
        cores = float(text)
    except ValueError:
        cores = 0.0
    if not 0.0 < cores < 1e6:
        raise ValueError("expected a number of cores above 0, such as 1.5")
    return cores


_READERS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "cores": ("cores", _cores),
    "memory": ("memory_bytes", units.memory),
    "gpus": ("gpus", _count),
    "jobs": ("jobs", _count),
}
COMMANDS = (hold, release, first, stop, drain, undrain, limit)
