"""Latest, mean and highest measurements by task and node, for `headgate metrics`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from headgate.model.errors import NotFoundError
from headgate.model.identifiers import FIRST_WORKER, TaskOfRun
from headgate.recorded.jobs import Usage
from headgate.recorded.recording import Recording
from headgate.recorded.steps import StepBreakdown
from headgate.recorded.tables import NODE
from headgate.recorded.usage import Signal, means, rate
from headgate.sampling.columns import COLUMNS, Column

_POINTS = 32


@dataclass(frozen=True, slots=True)
class Level:
    """Latest, time-weighted mean and highest value of a column, in its unit."""

    latest: float
    mean: float
    max: float


@dataclass(frozen=True, slots=True)
class Learned:
    """A job's progress in the observed time; None: unknown.

    Args:
        loss: Last loss reported.
        losses: Its course, in at most 32 means over equal stretches of time.
    """

    step: int | None
    steps_per_second: float | None
    samples_per_second: float | None
    loss: float | None
    losses: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MeasuredTarget:
    """Measurements of one target: a task's id, or `node:NAME`. A job's progress is with its first
    task.
    """

    target: str
    usage: Mapping[Column, Level]
    learned: Learned | None = None
    division: StepBreakdown | None = None


def measured(
    run: Recording, job: str | None = None, since: float | None = None
) -> list[MeasuredTarget]:
    """Measurements of each task, then of each node.

    Args:
        run: The run.
        job: Only this job's tasks, and no nodes.
        since: Only the last seconds of the run, as many as this; None: all.

    Raises:
        NotFoundError: The run has no such job.
    """
    if job is not None and run.job(job) is None:
        names = ", ".join(record.name for record in run.jobs) or "none"
        raise NotFoundError(f"run {run.id} has no job {job!r}; its jobs: {names}")
    start = max(run.seconds - since, 0.0) if since is not None else 0.0
    result = []
    for record in run.jobs:
        if job is not None and record.name != job:
            continue
        divisions = {task.id: task.division for task in record.tasks}
        seen = [target for target in run.tasks if target.job == record.name]
        targets = sorted({*divisions, *seen}, key=lambda task: task.name.order)
        targets = targets or [TaskOfRun.of(record.name, FIRST_WORKER)]
        for index, target in enumerate(targets):
            result.append(
                MeasuredTarget(
                    target,
                    _levels(run.tasks.get(target, {}), start, run.seconds),
                    _learned(run, record.name, start) if index == 0 else None,
                    divisions.get(target),
                )
            )
    if job is None:
        result += [
            MeasuredTarget(NODE + node.name, _levels(node.usage, start, run.seconds))
            for node in run.nodes
        ]
    return result


def _levels(usage: Usage, start: float, end: float) -> dict[Column, Level]:
    levels = {
        column: _level(usage[column].within(start, end)) for column in COLUMNS if column in usage
    }
    return {column: level for column, level in levels.items() if level is not None}


def _level(signal: Signal) -> Level | None:
    latest, mean, most = signal.last, signal.mean, signal.maximum
    return (
        Level(latest, mean, most)
        if latest is not None and mean is not None and most is not None
        else None
    )


def _learned(run: Recording, name: str, start: float) -> Learned | None:
    record = run.job(name)
    if record is None or not len(record.progress.t):
        return None
    progress = record.progress
    recent = progress.t >= start
    times, losses, steps = progress.t[recent], progress.loss[recent], progress.step[recent]
    known = losses[np.isfinite(losses)]
    counted = steps[np.isfinite(steps)]
    course: tuple[float, ...] = ()
    if len(known):
        edges = np.linspace(times[0], max(times[-1], times[0] + 1e-3), _POINTS + 1)
        course = tuple(
            float(v)
            for v in means(times, losses, progress.count[recent], edges).mean
            if np.isfinite(v)
        )
    return Learned(
        step=int(counted[-1]) if len(counted) else None,
        steps_per_second=rate(times, steps),
        samples_per_second=rate(times, progress.samples[recent]),
        loss=float(known[-1]) if len(known) else None,
        losses=course,
    )
