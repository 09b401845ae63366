"""The interface of a tracker's runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple

from headgate.exports.series import Series

PROJECT = "headgate"
"""Project or experiment, unless another is named."""


class TrackedEnd(Enum):
    """How a job ended."""

    FINISHED = auto()
    FAILED = auto()
    KILLED = auto()


@dataclass(frozen=True, slots=True)
class TrackedJob:
    """A job that is written to a tracker.

    Args:
        run: Id of its run.
        name: Its name.
        began: When its figures begin, in seconds since the epoch.
        parameters: What it was given, by name.
    """

    run: str
    name: str
    began: float
    parameters: Mapping[str, str]


class MetricPoint(NamedTuple):
    """A value of a metric.

    Args:
        name: The metric.
        at: Seconds since the epoch.
        step: The step that the job had done by then; 0: none.
    """

    name: str
    at: float
    step: int
    value: float


def points_of(figures: Iterable[Series], began: float) -> list[MetricPoint]:
    """The points of all figures of a run that began at a second of the epoch. Without steps, whole
    seconds stand for them.
    """
    return [
        MetricPoint(
            figure.name,
            began + point.t,
            point.step if point.step is not None else int(point.t),
            point.value,
        )
        for figure in figures
        for point in figure.points
    ]


def by_time(
    points: Iterable[MetricPoint], began: float
) -> list[tuple[float, float, dict[str, float]]]:
    """Points that belong together: seconds since the epoch and since `began`, values by metric."""
    values: dict[float, dict[str, float]] = defaultdict(dict)
    for point in points:
        values[round(point.at, 3)][point.name] = point.value
    return [(at, round(at - began, 3), metrics) for at, metrics in sorted(values.items())]


class TrackerRun(ABC):
    """A job's run in a tracker.

    Whatever the library raises passes through.

    Args:
        job: The job.
        output: Folder, URI or project; empty: the tracker's usual one.
        id: The run to go on with; None: a new one.
    """

    @abstractmethod
    def __init__(self, job: TrackedJob, output: str, id: str | None = None) -> None: ...

    @property
    @abstractmethod
    def id(self) -> str:
        """The name by which it is opened again."""

    @abstractmethod
    def add(self, points: list[MetricPoint]) -> None:
        """Write points, each once, in any order."""

    @abstractmethod
    def note(self, tags: Mapping[str, str]) -> None:
        """Write the job's verdict, in place of an earlier one."""

    @abstractmethod
    def end(self, outcome: TrackedEnd | None) -> None:
        """Write what is left and close it; None: its state is left as it is."""

    @classmethod
    def of_script(
        cls, job: TrackedJob, output: str, since: float, pids: frozenset[int]
    ) -> str | None:
        """The run that the job's script has open; None: it has none, or it cannot be known.

        Args:
            output: Folder, URI or project; empty: the tracker's usual one.
            since: Start of the attempt, in seconds since the epoch.
            pids: Processes of the job on this machine.
        """
        return None
