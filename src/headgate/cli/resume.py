"""`headgate resume`."""

from __future__ import annotations

from pathlib import Path

import click

from headgate import runs
from headgate.cli.run import submit
from headgate.errors import UsageError
from headgate.events import Checkpoint
from headgate.hub import api
from headgate.hub.run import JOB, Submission
from headgate.telemetry.store import RunReader


@click.command()
@click.argument("run", required=False)
@click.option("--policy", metavar="NAME", help="What moves shares between the jobs.")
@click.option("-d", "--detach", is_flag=True, help="Return at once; watch with `headgate attach`.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(run: str | None, policy: str | None, detach: bool, as_json: bool) -> int:
    """Go on with the jobs of a run (the latest, when none is named) that are not done, each from its last checkpoint.

    A job without a checkpoint starts again. It is a new run, whose report names the former.

    \b
    Example: headgate resume
             headgate resume 20261121-0930
    """
    return submit(unfinished(runs.find(run)), policy, detach, as_json)


def unfinished(folder: Path) -> Submission:
    """The jobs of a run that are not done, and where to go on from.

    Raises:
        UsageError: It is running, or there is nothing left to do.
    """
    if runs.alive(folder):
        raise UsageError(f"run {folder.name} is running; watch it with: headgate attach {folder.name}")
    left = [job.name for job in runs.summary(folder).jobs if job.state != "done"]
    if not left:
        raise UsageError(f"every job of run {folder.name} is done; there is nothing to go on with")
    with RunReader(folder / runs.STORE) as reader:
        specs = [JOB.validate_json(row["spec"]) for row in reader.rows("jobs", order="position") if row["name"] in left]
        resume: dict[str, Checkpoint] = {}
        for row in reader.rows("checkpoints"):
            job = row["task"].split("/")[0]
            if job in left and Path(row["path"]).is_file():
                resume[job] = Checkpoint(row["path"], row["step"], row["epoch"], row["position"])
    return api.submission(specs, resume=resume, resumed_from=folder.name)
