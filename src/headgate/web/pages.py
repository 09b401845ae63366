"""The pages: all that runs, a run, a job, two runs compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from headgate.client.client import Client
from headgate.client.explaining import RunComparison
from headgate.client.logs import JobLogs
from headgate.client.predicting import LossPrediction
from headgate.client.run import Run
from headgate.model.errors import HeadgateError, NotFoundError
from headgate.model.job_states import ENDED
from headgate.model.units import say_seconds
from headgate.recorded import at_stake, runs
from headgate.recorded.runs import RunSummary
from headgate.reports import compared, sections
from headgate.reports.at_stake import sentence
from headgate.reports.explained import explained
from headgate.reports.figures import (
    entitled_plot,
    job_colour,
    loss_plots,
    share_plots,
    throughput_plot,
)
from headgate.reports.frames import frames, payload
from headgate.reports.html import Contents, contents, shown_jobs
from headgate.reports.templates import Markup, render_in, script_json
from headgate.web import files
from headgate.web.access import Right

MOST_RUNS = 200
"""Past runs that the first page lists."""
_MOST_READINGS = 3000
"""Readings of each task that a page is made of: they show as much of a day as all would."""


def page(title: str, body: Markup, *, right: Right, kind: str, run: str = "", job: str = "") -> str:
    """A whole page around a body.

    Args:
        kind: Which page it is, for the script: `now`, `run`, `job` or `compare`.
        run: The run that it is of; empty: of none.
        job: And the job.
    """
    facts = {"kind": kind, "run": run, "job": job, "acts": right is Right.ACT}
    return render_in(
        "web",
        "frame.html",
        title=title,
        body=body,
        facts=script_json(facts),
        host=runs.host(),
        file=files.address,
    )


def now(right: Right) -> str:
    """The first page: what runs and waits, and past runs."""
    body = render_in("web", "now.html")
    return page("Headgate", body, right=right, kind="now")


def past_runs(client: Client) -> Markup:
    """The table of runs that have ended, the latest first."""
    ended = [run for run in reversed(client.runs()) if run.state != "running"]
    rows = [_row(run) for run in ended[:MOST_RUNS]]
    return render_in("web", "past.html", runs=rows, left=max(len(ended) - MOST_RUNS, 0))


def _row(run: RunSummary) -> dict[str, Any]:
    began = datetime.fromtimestamp(run.began).astimezone()
    return {
        "id": run.id,
        "state": run.state,
        "began": f"{began:%Y-%m-%d %H:%M}",
        "took": say_seconds(run.took) if run.took is not None else "",
        "seconds": run.took,
        "jobs": [job.name for job in run.jobs],
        "policy": run.policy,
        "command": run.command,
    }


def run(run: Run, right: Right) -> str:
    """The page of a run; its sections come after it."""
    summary = run.summary()
    body = render_in("web", "run.html", run=summary, live=summary.state == "running")
    return page(f"{run.id} – Headgate", body, right=right, kind="run", run=run.id)


def run_sections(run: Run) -> dict[str, Any]:
    """The sections of a run's page, what is drawn in them, and whether there will be newer ones."""
    began = time.monotonic()
    recording = run.recording(most=_MOST_READINGS)
    if recording.results:  # with what those that run are expected to end with
        recording = replace(recording, results=run.results())
    made = contents(recording)
    return _sections(made, runs.alive(run.path), time.monotonic() - began)


def courses(runs: Sequence[Run]) -> dict[str, Any]:
    """Shares above losses of live runs, as in their reports."""
    began = time.monotonic()
    shown, drawn = [], []
    for run in runs:
        recording = run.recording(most=_MOST_READINGS)
        few = replace(recording, jobs=shown_jobs(recording))
        plots = [
            replace(plot, key=f"{run.id}-{plot.key}")
            for plot in (entitled_plot(few), *loss_plots(few)[:1])
            if plot is not None
        ]
        if plots:
            shown.append((run.id, frames(plots, "stack")))
            drawn += plots
    body = render_in("web", "courses.html", courses=shown)
    made = Contents("", body, {"seconds": 0, "plots": payload(drawn)})
    return _sections(made, True, time.monotonic() - began)


def _sections(made: Contents, live: bool, took: float) -> dict[str, Any]:
    return {"html": made.body, "data": made.data, "live": live, "took": took}


def job(run: Run, name: str, right: Right) -> str:
    """The page of a job."""
    summary = next((job for job in run.summary().jobs if job.name == name), None)
    if summary is None:
        raise NotFoundError(f"run {run.id} has no job {name!r}")
    body = render_in(
        "web",
        "job.html",
        run=run.id,
        job=summary,
        live=summary.state not in ENDED and runs.alive(run.path),
        tasks=[path.stem for path in JobLogs(run.path, name, None).paths()],
    )
    return page(f"{name} – Headgate", body, right=right, kind="job", run=run.id, job=name)


def job_sections(run: Run, name: str) -> dict[str, Any]:
    """Of one job: what held it back, its loss with the predicted band, where its time went."""
    began = time.monotonic()
    recording = run.recording(_MOST_READINGS, name)
    recorded = recording.job(name)
    if recorded is None:
        raise NotFoundError(f"run {run.id} has no job {name!r}")
    accounts = explained(recording, name)
    alone = replace(recording, jobs=(recorded,))
    colour = job_colour(recording.jobs.index(recorded))[0]
    plots, prediction = [], _predicted(run, name)
    if prediction is not None:
        plots.append(prediction.plot(colour))
    plots += share_plots(alone)
    if (throughput := throughput_plot(alone, 0)) is not None:
        plots.append(throughput)
    stake, ended = at_stake.of_run(run.path).get(name), recorded.state in ENDED
    body = render_in(
        "web",
        "job_sections.html",
        at_stake=sentence(stake, not ended) if stake is not None else "",
        verdicts=sections.verdicts(recording, accounts),
        accounts=sections.accounts(recording.jobs, accounts),
        plots=frames(plots),
        decisions=sections.decisions(alone),
    )
    data = {"seconds": recording.seconds, "plots": payload(plots)}
    made = Contents(name, body, data)
    return _sections(made, runs.alive(run.path), time.monotonic() - began)


def _predicted(run: Run, job: str) -> LossPrediction | None:
    try:
        return run.predict(job)
    except HeadgateError:  # it has reported no loss yet
        return None


def comparison(pair: RunComparison, right: Right) -> str:
    """Two runs compared."""
    ids = pair.comparison.runs
    body = render_in("web", "compare.html", ids=ids, sections=compared.section(pair.comparison))
    title = "{} and {} – Headgate".format(*ids)
    return page(title, body, right=right, kind="compare")


def trouble(text: str, right: Right) -> str:
    """A page that says what is wrong."""
    return page("Headgate", render_in("web", "trouble.html", text=text), right=right, kind="none")
