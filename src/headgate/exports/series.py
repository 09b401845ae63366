"""The figures of a run as series of points, which every form is made from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from headgate.recorded.jobs import RecordedJob
from headgate.recorded.recording import Recording
from headgate.recorded.usage import Array
from headgate.sampling.columns import Column

_USED: tuple[Column, ...] = (
    *("cpu_cores", "memory_bytes", "disk_read", "disk_write", "net_in", "net_out"),
    *("gpu_busy", "gpu_memory_bytes", "psi_cpu", "psi_memory", "psi_io"),
)
PREFIX = "headgate/"
"""Begins the names of figures that Headgate measured, so that none is taken for a script's own."""


class SeriesPoint(NamedTuple):
    """A value at a time.

    Args:
        t: Seconds since the run began.
        step: The step, or else epoch, that the job had done by then; None: it has reported none.
        value: What it was.
    """

    t: float
    step: int | None
    value: float


@dataclass(frozen=True, slots=True)
class Series:
    """A figure of a job over time.

    Args:
        job: Its name.
        name: `loss`, a metric by its own name, or `headgate/cpu_cores`.
        points: In the order of time.
    """

    job: str
    name: str
    points: tuple[SeriesPoint, ...]


def series(run: Recording) -> Iterator[Series]:
    """All figures of a run: losses and metrics that jobs reported, then what they used and had."""
    for job in run.jobs:
        for name, times, values in _figures(job):
            steps = _steps_at(job, times)
            points = tuple(
                SeriesPoint(float(t), step, float(value))
                for t, step, value in zip(times, steps, values, strict=True)
                if math.isfinite(value)
            )
            if points:
                yield Series(job.name, name, points)


def _figures(job: RecordedJob) -> Iterator[tuple[str, Array, Array]]:
    """Name, times and values of each figure."""
    progress = job.progress
    yield "loss", progress.t, progress.loss
    yield "epoch", progress.t, progress.epoch
    for name, (times, values) in progress.metrics.items():
        yield name, times, values
    yield f"{PREFIX}entitled_cores", job.entitled.start, job.entitled.value
    for column in _USED:
        signal = job.signal(column)
        yield f"{PREFIX}{column}", signal.end, signal.value


def _steps_at(job: RecordedJob, times: Array) -> list[int | None]:
    """The last step, or else epoch, that a job had reported by each time; 0 before the first."""
    progress = job.progress
    counter = progress.step if any(map(math.isfinite, progress.step)) else progress.epoch
    known = [
        (float(t), int(step))
        for t, step in zip(progress.t, counter, strict=True)
        if math.isfinite(step)
    ]
    steps: list[int | None] = []
    at, last = 0, 0 if known else None
    for t in times:
        while at < len(known) and known[at][0] <= t:
            last = known[at][1]
            at += 1
        steps.append(last)
    return steps
