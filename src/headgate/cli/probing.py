"""Short runs that measure candidate plans, for `headgate plan --probe`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from headgate.cli import standard_input
from headgate.client import submitting
from headgate.client.watching import RunSnapshot
from headgate.model.cluster import Cluster
from headgate.model.errors import HeadgateError
from headgate.model.job_states import state_in_words
from headgate.model.jobs import Job
from headgate.model.profiles import Profile
from headgate.model.units import say_percent, say_samples
from headgate.planning.choosing import in_words
from headgate.planning.correcting import Corrected
from headgate.profiling import history
from headgate.profiling.printed import ShownSteps
from headgate.recorded import runs
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import JobRow
from headgate.task.step_timing import BUSY

_TRIES = 3


def probe(
    corrected: Corrected,
    job: Job,
    cluster: Cluster,
    profile: Profile,
    where: Mapping[str, Any],
    count: int,
) -> None:
    """Measure the most promising plans, one after the other. Each has a run of its own, which is
    ended once its speed is known. A run that other programs disturbed is repeated, and left out if
    they go on.

    Args:
        corrected: The plans; gets each result.
        job: The job.
        cluster: Its nodes.
        profile: Its profile.
        where: Fields of a `Submission` that name the nodes.
        count: Number of plans to measure.

    Raises:
        HeadgateError: No hub can be started, or it refuses the job.
    """
    standard_input.refuse("--probe")
    for number in range(1, count + 1):
        plan = corrected.planner.ask()
        if plan is None:
            break
        for _ in range(_TRIES):
            store = _run(replace(job, plan=plan, at=0.0, after=None, retries=0), where)
            measured = list(history.of_run(store, profile, cluster))
            if not measured or measured[0].others <= BUSY:
                break
        else:
            others = say_percent(measured[0].others)
            used = f"others used {others} of its cores in each of {_TRIES} tries"
            click.echo(
                (
                    f"probe {number} of {count}: {in_words(plan)}: left out, {used}; try "
                    "when less runs"
                ),
                err=True,
            )
            break
        if measured:
            rate = measured[0].throughput
            corrected.tell(plan, rate)
            text = say_samples(rate)
        else:
            text = _reason(store)
            corrected.planner.fail(plan, text)
        click.echo(f"probe {number} of {count}: {in_words(plan)}: {text}", err=True)


def _run(job: Job, where: Mapping[str, Any]) -> Path:
    """Run a job until its speed is known. Returns the path of the run's store."""
    handed_in = submitting.submission([job], **where)
    with submitting.submitted(handed_in, None, kill=True) as watch:
        shown = ShownSteps(time.monotonic())
        stopped = False
        for news in watch.follow(1.0):
            step = None
            if isinstance(news, RunSnapshot):
                if news.has_ended:
                    break
                step = news.jobs[0].step
            if shown.enough(time.monotonic(), step) and not stopped:
                watch.stop(kill=True)
                stopped = True
    return watch.path / runs.STORE


def _reason(store: Path) -> str:
    """Why a probe gave no result."""
    try:
        with RunReader(store) as reader:
            [row] = reader.records(JobRow)
    except HeadgateError as error:
        return str(error)
    if row.state == "killed":
        return (
            "it reported no steps in time; it has to print them, or to use headgate.torch, "
            ".keras or .jax"
        )
    return (
        state_in_words(row.state, row.reason or "")
        if row.state != "done"
        else "it ended after too few steps to tell"
    )
