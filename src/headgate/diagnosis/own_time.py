"""The time of a job that it lost to nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from headgate.diagnosis.attribution import TimeEstimate
from headgate.model.identifiers import TaskOfRun
from headgate.recorded.jobs import RecordedNode, RecordedTask
from headgate.sampling.columns import Column


class OwnTime(NamedTuple):
    """The time of its steps that a job lost to nobody.

    Args:
        seconds: The total.
        stretches: When it made steps.
        lost: Fraction of `stretches` that each task lost to others, 0 to 1.
        readers: Processes that read its input; None: unknown.
    """

    seconds: float
    compute: TimeEstimate
    input: TimeEstimate
    communication: TimeEstimate
    evaluation: TimeEstimate
    garbage: TimeEstimate
    stretches: Sequence[tuple[float, float]]
    lost: Mapping[TaskOfRun, float]
    readers: int | None = None


def mean_of(task: RecordedTask | RecordedNode, column: Column, time: OwnTime) -> float:
    """The mean of a reading during the job's steps."""
    return task.signal(column).during(time.stretches).mean or 0.0
