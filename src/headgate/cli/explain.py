"""`headgate explain`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from headgate import runs
from headgate.cli.following import wide_console
from headgate.errors import NotFoundError


@click.command("explain")
@click.argument("run", required=False)
@click.argument("job", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(run: str | None, job: str | None, as_json: bool) -> None:
    """Say what held each job back, where its time went, which neighbour it lost how much of it to, and what more of
    each resource would buy.

    RUN is a run's id or part of it; by default the latest. A job's name alone means the latest run with that job. You
    can explain a run that still goes on.

    \b
    Example: headgate explain
             headgate explain cnn
             headgate explain 20260314 cnn
             headgate explain --json
    """
    from headgate.reports import explained
    from headgate.reports.recording import read
    from headgate.telemetry.store import told_as_damage

    folder, job = _meant(run, job)
    store = folder / runs.STORE
    recording = read(store)
    if job is not None and recording.job(job) is None:
        names = ", ".join(each.name for each in recording.jobs)
        raise NotFoundError(f"run {folder.name} has no job {job!r}; it has {names}")
    with told_as_damage(store):
        found = explained.explained(recording, job)
        if as_json:
            click.echo(json.dumps(explained.as_json(folder.name, found), indent=2))
        else:
            explained.tell(found, wide_console())


def _meant(run: str | None, job: str | None) -> tuple[Path, str | None]:
    """The folder of the run and the job; one name alone is a job's where any run has a job of that name."""
    if run is None or job is not None:
        return runs.find(run), job
    try:
        return runs.find_job(run)
    except NotFoundError:
        pass
    try:
        return runs.find(run), None
    except NotFoundError:
        raise NotFoundError(f"no run and no job {run!r}; `headgate ps` lists the runs there are") from None
