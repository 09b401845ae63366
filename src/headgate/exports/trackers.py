"""Trackers of experiments, each by its own library: TensorBoard, MLflow, Weights & Biases, Trackio.

Each job becomes a run there, with its arguments and limits as parameters, its reported losses and
metrics, what Headgate measured, and what held it back most.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from headgate.exports.series import PREFIX, Series, SeriesPoint, series
from headgate.model.errors import HeadgateError
from headgate.model.events import FAULTS
from headgate.recorded.jobs import RecordedJob
from headgate.recorded.recording import Recording
from headgate.reports.explained import explained, verdict_as_json

PROJECT = "headgate"
_MOST_OF_A_BATCH = 500
"""MLflow takes at most 1,000 metrics at a time."""


def to_tensorboard(run: Recording, to: Path) -> Path:
    """Write event files into a folder, one subfolder a job.

    Raises:
        ImportError: tensorboard is not installed.
        OSError: They cannot be written.
    """
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for job, figures in _by_job(run):
        writer = EventFileWriter(str(to / job.name))
        for figure in figures:
            for index, point in enumerate(figure.points):
                value = Summary.Value(tag=figure.name, simple_value=point.value)
                step = point.step if point.step is not None else index
                at = (run.began or 0.0) + point.t
                writer.add_event(Event(wall_time=at, step=step, summary=Summary(value=[value])))
        writer.close()
    return to


@contextmanager
def _told_by(library: str) -> Iterator[None]:
    """Say what a library refuses in one line.

    Raises:
        HeadgateError: It refused something.
    """
    try:
        yield
    except (ImportError, OSError):
        raise
    except Exception as error:  # each has classes of its own
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise HeadgateError(f"{library} refuses it: {first}") from error


@_told_by("MLflow")
def to_mlflow(run: Recording, to: str) -> str:
    """Write to a tracking server or folder: its URI, empty: the one that MLflow is set to.

    Raises:
        ImportError: mlflow is not installed.
        HeadgateError: The server refuses it.
    """
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.tracking import MlflowClient

    client = MlflowClient(to or None)
    experiment = client.get_experiment_by_name(PROJECT)
    id = experiment.experiment_id if experiment else client.create_experiment(PROJECT)
    verdicts = _verdicts(run)
    for job, figures in _by_job(run):
        began = _milliseconds(run, job.started or job.submitted)
        made = client.create_run(id, began, run_name=f"{run.id}/{job.name}").info.run_id
        params = [Param(name, value) for name, value in _parameters(run, job).items()]
        tags = [RunTag(name, value) for name, value in _tags(verdicts.get(job.name)).items()]
        client.log_batch(made, params=params, tags=tags)
        metrics = [
            Metric(
                _mlflow_name(figure.name),
                point.value,
                _milliseconds(run, point.t),
                _step(point, index),
            )
            for figure in figures
            for index, point in enumerate(figure.points)
        ]
        for start in range(0, len(metrics), _MOST_OF_A_BATCH):
            client.log_batch(made, metrics=metrics[start : start + _MOST_OF_A_BATCH])
        status = "FAILED" if job.state in FAULTS else "FINISHED"
        client.set_terminated(made, status, _milliseconds(run, job.ended or run.seconds))
    return to


@_told_by("Weights & Biases")
def to_wandb(run: Recording, to: str) -> str:
    """Write to a project of Weights & Biases; empty: `headgate`.

    With `WANDB_MODE=offline` it stays on this machine.

    Raises:
        ImportError: wandb is not installed.
    """
    import wandb

    verdicts = _verdicts(run)
    for job, figures in _by_job(run):
        with wandb.init(
            project=to or PROJECT,
            group=run.id,
            name=job.name,
            config=_parameters(run, job),
            reinit="finish_previous",
        ) as tracked:
            tracked.define_metric("seconds")
            tracked.define_metric("*", step_metric="seconds")
            for t, values in _by_time(figures):
                tracked.log({"seconds": t, **values})
            tracked.summary.update(_tags(verdicts.get(job.name)))
    return to or PROJECT


@_told_by("Trackio")
def to_trackio(run: Recording, to: str) -> str:
    """Write to a project of Trackio; empty: `headgate`.

    Raises:
        ImportError: trackio is not installed.
    """
    import trackio

    for job, figures in _by_job(run):
        name = f"{run.id}/{job.name}"
        trackio.init(project=to or PROJECT, name=name, config=_parameters(run, job), embed=False)
        for t, values in _by_time(figures):
            trackio.log({"seconds": t, **values})
        trackio.finish()
    return to or PROJECT


def _mlflow_name(name: str) -> str:
    """A name as MLflow takes it."""
    return re.sub(r"[^\w\-. /:]", "_", name, flags=re.ASCII)


def _by_job(run: Recording) -> Iterator[tuple[RecordedJob, list[Series]]]:
    by_job: dict[str, list[Series]] = defaultdict(list)
    for figure in series(run):
        by_job[figure.job].append(figure)
    for job in run.jobs:
        yield job, by_job[job.name]


def _by_time(figures: list[Series]) -> Iterator[tuple[float, dict[str, float]]]:
    """What was measured at each time."""
    at: dict[float, dict[str, float]] = defaultdict(dict)
    for figure in figures:
        for point in figure.points:
            at[round(point.t, 3)][figure.name] = point.value
    yield from sorted(at.items())


def _step(point: SeriesPoint, index: int) -> int:
    return point.step if point.step is not None else index


def _milliseconds(run: Recording, t: float) -> int:
    return round(((run.began or 0.0) + t) * 1000)


def _parameters(run: Recording, job: RecordedJob) -> dict[str, str]:
    """What a job was given."""
    given = {
        "run": run.id,
        "policy": run.description.policy,
        "arguments": job.arguments,
        "script": job.spec.script,
        **asdict(job.spec.limits),
    }
    return {name: str(value) for name, value in given.items() if value not in (None, "", ())}


def _verdicts(run: Recording) -> Mapping[str, dict[str, Any]]:
    return {account.job: verdict_as_json(account) for account in explained(run)}


def _tags(verdict: Mapping[str, Any] | None) -> dict[str, str]:
    """What held a job back most."""
    if verdict is None:
        return {}
    facts = {"verdict": verdict["kind"], "why": verdict["why"], "lost_seconds": verdict["seconds"]}
    return {f"{PREFIX}{name}": str(value) for name, value in facts.items() if value is not None}
