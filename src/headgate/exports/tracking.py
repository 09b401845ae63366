"""Write a run's jobs to a tracker of experiments: arguments and limits as parameters, losses and
metrics, what Headgate measured, and what held each job back most.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict

from headgate.diagnosis.account import Account
from headgate.exports.series import PREFIX, Series, SeriesPoint, series
from headgate.exports.trackers import TrackedJob, run_type
from headgate.exports.trackers.base import TrackedEnd, points_of
from headgate.model.errors import HeadgateError
from headgate.model.limits import Limits
from headgate.model.trackers import Destination, Tracker
from headgate.recorded.jobs import RecordedJob
from headgate.recorded.recording import Recording
from headgate.reports.explained import explained, verdict_as_json

_LIBRARIES = {
    Tracker.MLFLOW: "MLflow",
    Tracker.TENSORBOARD: "TensorBoard",
    Tracker.TRACKIO: "Trackio",
    Tracker.WANDB: "Weights & Biases",
}
_OUTCOMES = {"done": TrackedEnd.FINISHED, "failed": TrackedEnd.FAILED, "skipped": TrackedEnd.FAILED}


def export(run: Recording, destination: Destination) -> None:
    """Write a run's jobs.

    Raises:
        ImportError: The tracker's library is not installed.
        OSError: It cannot be written.
        HeadgateError: The tracker refuses it.
    """
    with _refused_by(destination.tracker), redirect_stdout(sys.stderr):
        open_run = run_type(destination.tracker)
        verdicts = {account.job: account for account in explained(run)}
        figures: dict[str, list[Series]] = defaultdict(list)
        for figure in series(run):
            figures[figure.job].append(figure)
        for job in run.jobs:
            account = verdicts.get(job.name)
            tracked = open_run(tracked_job(run, job), destination.output)
            lost = lost_seconds(run, account) if account is not None else ()
            tracked.add(points_of([*figures[job.name], *lost], run.began or 0.0))
            tracked.note(verdict_tags(account) if account is not None else {})
            tracked.end(outcome(job.state))


@contextmanager
def _refused_by(tracker: Tracker) -> Iterator[None]:
    """Say what a library refuses in one line.

    Raises:
        HeadgateError: It refused something.
    """
    try:
        yield
    except (ImportError, OSError):
        raise
    except Exception as error:  # each has classes of its own
        raise HeadgateError(f"{_LIBRARIES[tracker]} refuses it: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """What an error says first."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def tracked_job(run: Recording, job: RecordedJob) -> TrackedJob:
    """What a tracker is told of a job at first."""
    unlimited, limits = asdict(Limits()), asdict(job.spec.limits)
    given = {
        "run": run.id,
        "policy": run.description.policy,
        "arguments": job.arguments,
        "script": job.spec.script,
        **{name: limit for name, limit in limits.items() if limit != unlimited[name]},
    }
    parameters = {name: str(value) for name, value in given.items() if value not in (None, "", ())}
    began = (run.began or 0.0) + (job.started or job.submitted)
    return TrackedJob(run.id, job.name, began, parameters)


def outcome(state: str) -> TrackedEnd:
    """How a tracker calls the state of a job that has ended, or was left by its hub."""
    return _OUTCOMES.get(state, TrackedEnd.KILLED)


def lost_seconds(run: Recording, account: Account) -> Iterator[Series]:
    """The time that a job has lost so far, as its verdict tells it."""
    seconds = verdict_as_json(account)["seconds"]
    if seconds is not None:
        end = account.record.ended
        t = run.seconds if end is None else min(end, run.seconds)
        steps = account.record.progress.step
        step = next((int(step) for step in reversed(steps) if step == step), None)
        yield Series(account.job, f"{PREFIX}lost_seconds", (SeriesPoint(t, step, seconds),))


def verdict_tags(account: Account) -> Mapping[str, str]:
    """What held a job back most."""
    verdict = verdict_as_json(account)
    return {f"{PREFIX}verdict": verdict["kind"], f"{PREFIX}why": verdict["why"]}
