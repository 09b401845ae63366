"""`headgate status`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from headgate import runs
from headgate.cli.following import position, print_table
from headgate.telemetry.store import RunReader
from headgate.units import say_bytes, say_seconds


@click.command()
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(run: str | None, as_json: bool) -> None:
    """Show how the jobs of a run (the latest, when none is named) stand: state and reason, progress, share, use.

    \b
    Example: headgate status
             headgate status 20261121-0930 --json
    """
    folder = runs.find(run)
    summary = runs.summary(folder)
    with RunReader(folder / runs.STORE) as reader:
        jobs = [{**asdict(job), **latest(reader, job.name)} for job in summary.jobs]
    if as_json:
        click.echo(json.dumps({**asdict(summary), "jobs": jobs}, indent=2))
        return
    click.echo(f"run {summary.id}: {summary.state}, policy {summary.policy}, in {summary.path}")
    table = Table("job", "state", "progress", "loss", "share", "CPU", "memory", "why", box=None, pad_edge=False)
    for job in jobs:
        running = job["state"] in ("running", "stopping")
        took = f" {say_seconds(job['ended'] - job['started'])}" if job["ended"] and job["started"] is not None else ""
        table.add_row(
            job["name"],
            job["state"] + took,
            position(job),
            "nan" if job["nan"] else "" if job["loss"] is None else f"{job['loss']:.4g}",
            f"{job['entitled_cores']:.2f} cores" if running and job["entitled_cores"] is not None else "",
            f"{job['cpu_cores']:.2f}" if running and job["cpu_cores"] is not None else "",
            say_bytes(job["memory_bytes"]) if running and job["memory_bytes"] is not None else "",
            job["reason"].replace("[", r"\["),
        )
    print_table(table)


def latest(reader: RunReader, job: str) -> dict[str, Any]:
    """The last known progress, share and use of a job; `nan`: its last loss was none (NaN or infinite)."""
    tasks = f"{job}/*"
    found: dict[str, Any] = {}
    for table, column, names in (
        ("progress", "task", ("step", "epoch", "epochs", "loss")),
        ("shares", "task", ("entitled_cores", "threads", "cpu_weight", "cpu_cap_cores")),
        ("usage", "target", ("cpu_cores", "memory_bytes")),
    ):
        # The newest rows have what was reported lately; a table of weeks is not searched for what never was.
        rows = reader.query(f"SELECT * FROM {table} WHERE {column} GLOB ? ORDER BY rowid DESC LIMIT 100", [tasks])
        for name in names:
            found[name] = next((row[name] for row in rows if row[name] is not None), None)
    last = reader.query(
        "SELECT nan FROM progress WHERE task GLOB ? AND (loss IS NOT NULL OR nan) ORDER BY rowid DESC LIMIT 1", [tasks]
    )
    found["nan"] = bool(last and last[0]["nan"])
    if found["nan"]:
        found["loss"] = None
    return found
