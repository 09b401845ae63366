"""`headgate status`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from headgate.cli.live_view import gpu_cell, position, print_table, task_cells
from headgate.model.events import FAULTS
from headgate.model.identifiers import FIRST_WORKER, TaskOfRun
from headgate.model.units import say_bytes, say_seconds
from headgate.recorded import runs
from headgate.recorded.store import RunReader
from headgate.reports import run_verdicts

_MOST_ROWS = 100
"""Of jobs."""
_WARNINGS = 10
"""Most that are shown."""
_USED = ("cpu_cores", "memory_bytes", "gpu_busy", "gpu_memory_bytes", "net_in", "net_out")
_GRANTED = ("entitled_cores", "threads", "cpu_weight", "cpu_cap_cores", "gpu_fraction")


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(run: str | None, as_json: bool) -> None:
    """Show how the jobs of a run stand: the latest run, or the one you name.

    First what holds each job back, and what to do about it; of a long run, in its last hour. Then,
    for each job: its state and why, progress, share and why, and use. For a job of several tasks:
    the node of each task. At the end: the warnings of the run.

    Of a run of more than 96 jobs that goes on, only a few jobs are looked at for what held them
    back. The others have no `verdict` in the JSON until the run has ended. `headgate explain` tells
    of all.

    \b
    Example: headgate status
             headgate status 20261121-0930 --json
    """
    folder = runs.find(run)
    summary = runs.summary(folder)
    with RunReader(folder / runs.STORE) as reader:
        verified = {row["name"]: row.get("verified") for row in reader.rows("jobs")}
        shown = summary.jobs if as_json else _shown(summary.jobs)
        jobs = [{**asdict(job), **latest(reader, job.name)} for job in shown]
        warnings = reader.query(
            "SELECT t, job, task, text FROM events WHERE kind = 'warning' ORDER BY rowid"
        )
    held_back = run_verdicts.read(folder)
    if as_json:
        verdicts = held_back.verdicts
        trained = {name: json.loads(text) for name, text in verified.items() if text}
        jobs = [
            {**job, "verdict": verdicts.get(job["name"]), "verified": trained.get(job["name"])}
            for job in jobs
        ]
        indent = 2 if len(jobs) <= _MOST_ROWS else None
        click.echo(
            json.dumps({**asdict(summary), "jobs": jobs, "warnings": warnings}, indent=indent)
        )
        return
    if held_back.recent:
        click.echo("In its last hour (`headgate explain` tells of all of it):")
    for text, failed in held_back.lines:
        click.secho(text, fg="red" if failed else None)
    where = f" on host {summary.elsewhere}" if summary.elsewhere else ""
    click.echo(
        f"run {summary.id}: {summary.state}{where}, policy {summary.policy}, in {summary.path}"
    )
    on_gpus = any(job["gpus"] for job in jobs)
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
        running = job["state"] in ("running", "stopping")
        took = (
            f" {say_seconds(job['ended'] - job['started'])}"
            if job["ended"] and job["started"] is not None
            else ""
        )
        table.add_row(
            job["name"],
            job["state"] + took,
            position(job),
            "nan" if job["nan"] else "" if job["loss"] is None else f"{job['loss']:.4g}",
            f"{job['entitled_cores']:.2f} cores"
            if running and job["entitled_cores"] is not None
            else "",
            f"{job['cpu_cores']:.2f}" if running and job["cpu_cores"] is not None else "",
            say_bytes(job["memory_bytes"]) if running and job["memory_bytes"] is not None else "",
            *([gpu_cell(job) if running else ""] if on_gpus else []),
            Text(job["reason"]),
            style="red" if job["state"] in FAULTS else "",
        )
        for task in job["tasks"] if len(job["tasks"]) > 1 and running else ():
            table.add_row(*map(Text, task_cells(task, on_gpus)))
    print_table(table)
    if len(jobs) < len(summary.jobs):
        states = Counter(job.state for job in summary.jobs)
        left = len(summary.jobs) - len(jobs)
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        click.echo(f"... and {left} more of {len(summary.jobs)} jobs ({counts}); --json has all")
    decided = [
        job
        for job in jobs
        if job["state"] in ("running", "stopping") and job["decision"] is not None
    ]
    if decided:
        click.echo()
        print_table(_decisions(decided))
    _tell_verified({name: text for name, text in verified.items() if text})
    if warnings:
        click.echo()
        print_table(_warned(warnings))


def _tell_verified(verified: Mapping[str, str]) -> None:
    """Say whether the workers of jobs train what one does, given the JSON of each."""
    if verified:
        from headgate.verification import store  # which takes its time
        from headgate.verification.wording import sentence

        for name, verification in verified.items():
            click.echo(f"{name}: {sentence(store.parse(verification))}")


def _shown(jobs: Sequence[runs.JobSummary]) -> list[runs.JobSummary]:
    """The jobs that have a row, as they were handed in: of very many those that run and those that
    failed first.
    """
    if len(jobs) <= _MOST_ROWS:
        return list(jobs)
    first = sorted(
        jobs, key=lambda job: (job.state not in ("running", "stopping"), job.state not in FAULTS)
    )
    names = {job.name for job in first[:_MOST_ROWS]}
    return [job for job in jobs if job.name in names]


def _decisions(jobs: Iterable[dict[str, Any]]) -> Table:
    """What was decided last of each job, and why: a table of its own, since a reason is as long as
    a line of theirs.
    """
    table = Table("share of", "since", "weight", "cores", "why", box=None, pad_edge=False)
    for job in jobs:
        table.add_row(
            job["name"],
            say_seconds(job["decision"]["t"]),
            "" if job["cpu_weight"] is None else f"{job['cpu_weight']:.4g}",
            "" if job["entitled_cores"] is None else f"{job['entitled_cores']:.2f}",
            Text(job["decision"]["reason"]),
        )
    return table


def _warned(warnings: Sequence[dict[str, Any]]) -> Table:
    """The last warnings; the report has them all."""
    more = (
        f" ({len(warnings) - _WARNINGS} earlier ones are in the report)"
        if len(warnings) > _WARNINGS
        else ""
    )
    table = Table("warning of", "at", f"what{more}", box=None, pad_edge=False)
    for warning in warnings[-_WARNINGS:]:
        table.add_row(warning["job"] or "all", say_seconds(warning["t"]), Text(warning["text"]))
    return table


def latest(reader: RunReader, job: str) -> dict[str, Any]:
    """The last known progress, share and use of a job, and of each task of its last attempt; `nan`:
    its last loss was none (NaN or infinite); `decision`: when its share was last decided on, in
    seconds of the run, and why. Of several workers the steps are those of the first that runs and
    tells any, the loss is the mean of their last ones.
    """
    attempt = "SELECT max(attempt) FROM tasks WHERE job = ?"
    rows = list(reader.rows("tasks", f"job = ? AND attempt = ({attempt})", [job, job]))
    tasks = [
        _task(reader, row) for row in sorted(rows, key=lambda row: TaskOfRun(row["id"]).name.order)
    ]
    left = [task for task in tasks if task["state"] == "running"] or tasks
    names = [TaskOfRun.of(job, task["task"]) for task in left]
    every = [TaskOfRun.of(job, task["task"]) for task in tasks]
    workers = [task for task in names if task.name.is_worker]
    # an evaluator outlives them
    workers = workers or [task for task in every if task.name.is_worker]
    workers = workers or names or [TaskOfRun.of(job, FIRST_WORKER)]
    columns = ("step", "epoch", "epochs", "steps")
    steps = (_newest(reader, "progress", "task", worker, columns) for worker in workers)
    last = [
        last_loss for worker in workers if (last_loss := _last_loss(reader, worker)) is not None
    ]
    losses = [(loss, count) for loss, count, _ in last if loss is not None]
    return {
        **next((step for step in steps if set(step.values()) != {None}), dict.fromkeys(columns)),
        "loss": sum(loss * n for loss, n in losses) / sum(n for _, n in losses) if losses else None,
        "nan": bool(last) and any(nan for *_, nan in last),
        **{name: _sum(task[name] for task in left) for name in ("entitled_cores", "threads")},
        **{
            name: left[0][name] if left else None
            for name in ("cpu_weight", "cpu_cap_cores", "gpu_fraction")
        },
        **{
            name: _sum(task[name] for task in left)
            for name in ("cpu_cores", "memory_bytes", "gpu_memory_bytes")
        },
        "gpus": sorted({gpu for task in left for gpu in task["gpus"]}),
        "gpu_busy": max(
            (task["gpu_busy"] for task in left if task["gpu_busy"] is not None), default=None
        ),
        "decision": _decision(reader, names),
        "tasks": tasks,
    }


def _task(reader: RunReader, row: dict[str, Any]) -> dict[str, Any]:
    """What is known of a task: where it is, what it is granted and what it uses."""
    return {
        "task": TaskOfRun(row["id"]).name,
        "node": row["node"],
        "pid": row["pid"],
        "state": "running" if row["ended"] is None else "ended",
        **_share(reader, row["id"]),
        "gpus": json.loads(row.get("gpus") or "[]"),
        **_newest(reader, "usage", "target", row["id"], _USED),
    }


def _share(reader: RunReader, id: str) -> dict[str, Any]:
    """What a task is granted now."""
    rows = reader.query("SELECT * FROM shares WHERE task = ? ORDER BY rowid DESC LIMIT 1", [id])
    return {name: rows[0].get(name) if rows else None for name in _GRANTED}


def _newest(
    reader: RunReader, table: str, column: str, id: str, names: Sequence[str]
) -> dict[str, Any]:
    """The last known value of each of these columns, for one task."""
    # The newest rows have what was reported lately; a table of weeks is not searched for what never
    # was.
    rows = reader.query(
        f"SELECT * FROM {table} WHERE {column} = ? ORDER BY t DESC, rowid DESC LIMIT 100", [id]
    )
    return {
        name: next((row[name] for row in rows if row[name] is not None), None) for name in names
    }


def _decision(reader: RunReader, tasks: Sequence[str]) -> dict[str, Any] | None:
    """When the share of a job was last decided on, and why."""
    marks = ", ".join("?" * len(tasks))
    sql = (
        f"SELECT t, reason FROM shares WHERE task IN ({marks}) AND reason IS NOT NULL ORDER "
        "BY rowid DESC LIMIT 1"
    )
    return next(iter(reader.query(sql, tasks)), None)


def _last_loss(reader: RunReader, id: str) -> tuple[float | None, int, bool] | None:
    """The last loss that a task reported, of how many it is the mean, and whether it was none."""
    rows = reader.query(
        (
            "SELECT * FROM progress WHERE task = ? AND (loss IS NOT NULL OR nan) ORDER BY t "
            "DESC, rowid DESC LIMIT 1"
        ),
        [id],
    )
    return (
        (None if rows[0]["nan"] else rows[0]["loss"], rows[0]["count"] or 1, bool(rows[0]["nan"]))
        if rows
        else None
    )


def _sum(values: Iterable[Any]) -> Any:
    """The sum of what is known; None where nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
