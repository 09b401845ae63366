"""`headgate status`."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from headgate.arbiter.seen import SeenMachine
from headgate.cli import machine_view
from headgate.cli.live_view import gpu_cells, position, print_table, task_cells
from headgate.client.client import Client
from headgate.client.machine import SharedMachine, machine_as_json
from headgate.client.run import Run
from headgate.model.job_states import ENDED, FAULTS
from headgate.model.units import counted, say_bytes, say_seconds
from headgate.recorded import runs, status
from headgate.recorded.at_stake import AtStake
from headgate.recorded.results import sweeps_of
from headgate.reports import run_verdicts
from headgate.reports.at_stake import sentence

_MOST_ROWS = 100
"""Most rows of jobs."""
_RUNNING = ("running", "paused", "stopping")
_WARNINGS = 10
"""Most warnings that are shown."""
_UNWRITTEN_SECONDS = 30.0
"""A run with jobs whose store was not written for so long is told of; readings come each second."""


@click.command()
@click.argument("run", required=False)
@click.option(
    "--all",
    "unfolds",
    is_flag=True,
    help="Show the machine: jobs of all its users. Of a run: each job of a sweep.",
)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(run: str | None, unfolds: bool, as_json: bool) -> None:
    """Show how the jobs of a run stand: the latest run, or the one you name.

    First what holds each job back, and what to do about it; of a long run, in its last hour. Then,
    for each job: its state and why, progress, share and why, and use. For a job of several tasks:
    the node of each task. At the end: the warnings of the run.

    A sweep has one line, and a row for each of its jobs that runs. `headgate results` compares
    them.

    Of a run of more than 96 jobs that goes on, only a few jobs are looked at for what held them
    back. The others have no `verdict` in the JSON until the run has ended. `headgate explain` tells
    of all.

    On a machine that users share, `--all` shows their jobs: what each has, who is before yours,
    and when yours is expected to start. Of others' jobs it shows neither arguments nor paths.

    \b
    Example: headgate status
             headgate status --all
             headgate status 20261121-0930 --json
    """
    machine = SharedMachine() if unfolds and run is None else None
    if machine is not None and machine.has_arbiter:
        _show_machine(machine.look(), as_json)
        return
    watched = Client().find(run)
    if as_json:
        click.echo(_as_json(watched))
        return
    sweeps = {} if unfolds else sweeps_of(watched.path)
    stands = status.read(watched.path, lambda jobs: _shown(_unfolded(jobs, sweeps)))
    held_back, every = run_verdicts.read(watched.path), runs.summary(watched.path).jobs
    jobs = stands.jobs
    if held_back.recent:
        click.echo("In its last hour (`headgate explain` tells of all of it):")
    for text, failed in held_back.lines:
        click.secho(text, fg="red" if failed else None)
    where = f" on host {stands.elsewhere}" if stands.elsewhere else ""
    click.echo(f"run {stands.id}: {stands.state}{where}, policy {stands.policy}, in {stands.path}")
    is_read = any(job.state == "running" for job in every) and not stands.elsewhere
    if is_read and (seconds := _unwritten_seconds(watched.path)) > _UNWRITTEN_SECONDS:
        click.secho(
            f"nothing could be written there for {say_seconds(seconds)}: this is how its jobs "
            "stood before. They went on, and may have ended since",
            fg="yellow",
        )
    for sweep in dict.fromkeys(sweeps.values()):
        of_sweep = [job for job in every if sweeps.get(job.name) == sweep]
        click.echo(f"sweep {sweep}: {counted(len(of_sweep), 'job')}, {_states(of_sweep)}")
    on_gpus = any(job.gpus for job in jobs)
    headings = (
        "job",
        "state",
        "progress",
        "loss",
        "share",
        "CPU",
        "memory",
        *(["GPU"] if on_gpus else []),
        "why",
    )
    table = Table(*headings, box=None, pad_edge=False)
    for job in jobs:
        gave_back = job.state == "paused" and all(task.state != "running" for task in job.tasks)
        running = job.state in _RUNNING and not gave_back
        took = (
            f" {say_seconds(job.ended - job.started)}"
            if job.ended and job.started is not None
            else ""
        )
        table.add_row(
            job.name,
            job.state + took,
            position(job),
            _loss(job),
            f"{job.entitled_cores:.2f} cores" if running and job.entitled_cores is not None else "",
            f"{job.cpu_cores:.2f}" if running and job.cpu_cores is not None else "",
            say_bytes(job.memory_bytes) if running and job.memory_bytes is not None else "",
            *gpu_cells(job, running, on_gpus),
            Text(job.reason),
            style="red" if job.state in FAULTS else "",
        )
        for task in job.tasks if len(job.tasks) > 1 and running else ():
            table.add_row(*map(Text, task_cells(task, on_gpus)))
    if jobs:
        print_table(table)
    for job in jobs:
        if job.at_stake is not None:
            click.echo(sentence(AtStake(**job.at_stake), job.state not in ENDED))
    if len(jobs) < (count := len(_unfolded(every, sweeps))):
        counts = _states(_unfolded(every, sweeps))
        click.echo(f"... and {count - len(jobs)} more of {count} jobs ({counts}); --json has all")
    decided = [
        (job, job.decision) for job in jobs if job.state in _RUNNING and job.decision is not None
    ]
    if decided:
        click.echo()
        print_table(_decisions(decided))
    _tell_verified({job.name: job.verified for job in stands.jobs if job.verified})
    if stands.warnings:
        click.echo()
        print_table(_warned(stands.warnings))


def _as_json(watched: Run, machine: SeenMachine | None = None) -> str:
    stands = watched.status()
    indent = 2 if len(stands.jobs) <= _MOST_ROWS else None
    added = {} if machine is None else {"machine": machine_as_json(machine)}
    return json.dumps(asdict(stands) | added, indent=indent)


def _unwritten_seconds(run: Path) -> float:
    """Since when nothing was written to the store of a run."""
    files = (run / runs.STORE, run / f"{runs.STORE}-wal")
    return time.time() - max(file.stat().st_mtime for file in files if file.exists())


def _show_machine(machine: SeenMachine, as_json: bool) -> None:
    """Show the machine; as JSON beside the latest run of this user, if there is one."""
    if not as_json:
        machine_view.show(machine)
    elif runs.listing():
        click.echo(_as_json(Client().find(None), machine))
    else:
        click.echo(json.dumps({"machine": machine_as_json(machine)}, indent=2))


def _tell_verified(verified: Mapping[str, Mapping[str, Any]]) -> None:
    """Print whether the workers of jobs train what one does."""
    if verified:
        from headgate.model.records import parse
        from headgate.verification import wording
        from headgate.verification.verdict import Verification

        for name, verification in verified.items():
            click.echo(f"{name}: {wording.sentence(parse(Verification, verification))}")


def _unfolded(jobs: Sequence[runs.JobSummary], sweeps: Mapping[str, str]) -> list[runs.JobSummary]:
    """The jobs that have rows of their own: of a sweep, those that run."""
    return [job for job in jobs if job.name not in sweeps or job.state in _RUNNING]


def _states(jobs: Iterable[runs.JobSummary]) -> str:
    states = Counter(job.state for job in jobs)
    return ", ".join(f"{number:,} {state}" for state, number in states.items())


def _shown(jobs: Sequence[runs.JobSummary]) -> list[runs.JobSummary]:
    """The jobs that get a row, in order of submission. If there are too many, running and failed
    ones come first.
    """
    if len(jobs) <= _MOST_ROWS:
        return list(jobs)
    first = sorted(jobs, key=lambda job: (job.state not in _RUNNING, job.state not in FAULTS))
    names = {job.name for job in first[:_MOST_ROWS]}
    return [job for job in jobs if job.name in names]


def _decisions(jobs: Iterable[tuple[status.JobStatus, Mapping[str, Any]]]) -> Table:
    """The latest decision about each job, and its reason. It is a table of its own, because a
    reason is as long as a line.
    """
    table = Table("share of", "since", "weight", "cores", "why", box=None, pad_edge=False)
    for job, decision in jobs:
        table.add_row(
            job.name,
            say_seconds(decision["t"]),
            "" if job.cpu_weight is None else f"{job.cpu_weight:.4g}",
            "" if job.entitled_cores is None else f"{job.entitled_cores:.2f}",
            Text(decision["reason"]),
        )
    return table


def _warned(warnings: Sequence[Mapping[str, Any]]) -> Table:
    """The last warnings. The report has all of them."""
    more = (
        f" ({len(warnings) - _WARNINGS} earlier ones are in the report)"
        if len(warnings) > _WARNINGS
        else ""
    )
    table = Table("warning of", "at", f"what{more}", box=None, pad_edge=False)
    for warning in warnings[-_WARNINGS:]:
        table.add_row(warning["job"] or "all", say_seconds(warning["t"]), Text(warning["text"]))
    return table


def _loss(job: status.JobStatus) -> str:
    if job.nan:
        return "nan"
    return "" if job.loss is None else f"{job.loss:.4g}"
