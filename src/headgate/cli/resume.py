"""`headgate resume`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from headgate import runs
from headgate.cli import options
from headgate.cli.layout import Layout, Where
from headgate.cli.running import submit
from headgate.engines.base import LOCAL, EngineSpec
from headgate.errors import UsageError
from headgate.events import Checkpoint
from headgate.hub import api
from headgate.hub.client import connect_or_start
from headgate.hub.run import JOB
from headgate.hub.submission import Submission
from headgate.telemetry.store import RunReader


@click.command()
@click.argument("run", required=False)
@click.option("--policy", metavar="NAME", help="What moves shares between the jobs.")
@options.layout
@click.option("-d", "--detach", is_flag=True, help="Return at once; watch with `headgate attach`.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(run: str | None, policy: str | None, detach: bool, as_json: bool, **where: Any) -> int:
    """Go on with the jobs of a run (the latest, when none is named) that are not done, each from its last checkpoint.

    A job without a checkpoint starts again. It is a new run, whose report names the former. Where and how the jobs ran
    they run again; a checkpoint of any strategy and any number of workers goes on under any other.

    \b
    Example: headgate resume
             headgate resume 20261121-0930
             headgate resume --strategy allreduce --workers 2
    """
    folder = runs.find(run)
    if runs.summary(folder).state == "interrupted":
        # What tasks of a hub that died just now still save is saved once another hub can start.
        connect_or_start().close()
    return submit(_laid_out(unfinished(folder), Layout(**where), folder), policy, detach, as_json)


def _laid_out(submission: Submission, said: Layout, folder: Path) -> Submission:
    """A submission with what the command line says of where and how."""
    if said.states_plan and len(submission.jobs) > 1:
        names = ", ".join(job.name for job in submission.jobs)
        raise UsageError(f"found a plan for several jobs ({names}); it can be said for one only")
    jobs = tuple(said.applied(job) for job in submission.jobs)
    return replace(submission, jobs=jobs, **said.place(_where(folder)).fields())


def _where(folder: Path) -> Where:
    """Where the jobs of a run ran."""
    meta = _meta(folder)
    only = tuple(filter(None, meta.get("only", "").split(",")))
    engine = EngineSpec(meta.get("engine", LOCAL.name), meta.get("address", ""), meta.get("shared_files") == "1")
    return Where(cluster=meta.get("cluster", ""), engine=engine, only=only)


def _meta(folder: Path) -> dict[str, str]:
    with RunReader(folder / runs.STORE) as reader:
        return reader.meta()


def unfinished(folder: Path) -> Submission:
    """The jobs of a run that are not done, and where to go on from.

    Raises:
        UsageError: It is running, or there is nothing left to do.
    """
    if runs.alive(folder):
        raise UsageError(f"run {folder.name} is running; watch it with: headgate attach {folder.name}")
    for other in runs.listing():
        if other.name > folder.name and runs.alive(other) and _meta(other).get("resumed_from") == folder.name:
            raise UsageError(f"run {folder.name} goes on already, as run {other.name}")
    left = [job.name for job in runs.summary(folder).jobs if job.state != "done"]
    if not left:
        raise UsageError(f"every job of run {folder.name} is done; there is nothing to go on with")
    with RunReader(folder / runs.STORE) as reader:
        specs = [JOB.validate_json(row["spec"]) for row in reader.rows("jobs", order="position") if row["name"] in left]
        resume = {name: found for name in left if (found := last_checkpoint(folder, reader, name)) is not None}
    return api.submission(specs, resume=resume, resumed_from=folder.name)


def last_checkpoint(folder: Path, reader: RunReader, job: str) -> Checkpoint | None:
    """A job's newest checkpoint that is still there: what a task saved when its hub had died is in the job's folder,
    and nobody was left to record it."""
    recorded = {
        row["path"]: Checkpoint(row["path"], row["step"], row["epoch"], row["position"])
        for row in reader.rows("checkpoints", "task GLOB ?", [f"{job}/*"])
        if Path(row["path"]).exists()
    }
    saved = (folder / "jobs" / job / "checkpoints").glob("step-*")
    newest = max(saved, key=lambda path: path.stat().st_mtime_ns, default=None)
    if newest is None:
        return next(reversed(recorded.values()), None)
    if (known := recorded.get(str(newest))) is not None:
        return known
    epochs = [row["epoch"] for row in reader.rows("progress", "task GLOB ? AND epoch IS NOT NULL", [f"{job}/*"])]
    return Checkpoint(str(newest), int(newest.stem.removeprefix("step-")), max(epochs, default=0), None)
