"""The cells of a study: the runs of one combination of settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headgate.studies.statistics import noise_floor, paired

Metric = Literal["step", "elapsed", "cpu"]
"""Seconds of a sample or step in the warm window, elapsed seconds, and CPU seconds of a step."""
METRICS: Mapping[Metric, str] = {
    "step": "",
    "elapsed": "from start to end, ",
    "cpu": "in CPU time a step, ",
}
Place = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...], bool]


@dataclass(frozen=True, slots=True)
class StudyCell:
    """A cell of a study with its measurements.

    Args:
        figures: By block, as `measuring.measured`; of a repeated block the calmer measurement.
        reason: Why a cell has no figures.
        tries: Number of measurements, including those of disturbed blocks.
        disturbed: Number of disturbed blocks among those that count.
    """

    name: str
    scenario: str
    workloads: tuple[str, ...]
    values: tuple[tuple[str, str], ...]
    is_repeat: bool
    figures: Mapping[int, Mapping[str, Any]]
    state: str
    reason: str
    tries: int
    disturbed: int

    def seconds(self, job: str, metric: Metric) -> dict[int, float]:
        """A figure of a job by block, without blocks that lack it."""
        seconds_by_run: dict[int, float] = {}
        for block, figures in self.figures.items():
            job_figures = figures["jobs"][job]
            value = 1.0 / job_figures["rate"] if metric == "step" else job_figures["elapsed"]
            value = job_figures["cpu_seconds_per_step"] if metric == "cpu" else value
            if value:
                seconds_by_run[block] = float(value)
        return seconds_by_run

    def batch_seconds(self, job: str) -> dict[int, float]:
        """Seconds of a batch by block, from steps, or from samples with a known batch size."""
        seconds_by_run: dict[int, float] = {}
        for block, figures in self.figures.items():
            job_figures = figures["jobs"][job]
            size = {"steps": 1.0, "samples": job_figures.get("batch")}.get(job_figures["unit"])
            if size:
                seconds_by_run[block] = float(size) / job_figures["rate"]
        return seconds_by_run

    def units(self, job: str) -> set[str]:
        """Units of its rates: samples, steps or epochs."""
        return {figures["jobs"][job]["unit"] for figures in self.figures.values()}

    def mean(self, job: str, name: str) -> float | None:
        """The mean of a figure of a job over blocks."""
        values = [figure["jobs"][job].get(name) for figure in self.figures.values()]
        known = [float(value) for value in values if value is not None]
        return sum(known) / len(known) if known else None


def place_of(cell: Mapping[str, Any]) -> Place:
    values = tuple((axis, value) for axis, value in cell["values"])
    return cell["scenario"], tuple(cell["workloads"]), values, cell["is_repeat"]


class Floors:
    """How much cells differ from themselves, by scenario, job and metric."""

    def __init__(self, cells: Mapping[Place, StudyCell]) -> None:
        self._cells = cells

    def of(self, scenarios: Sequence[str], job: str, metric: Metric) -> float:
        """The largest over several scenarios; 0: no cell was measured twice."""
        repeats = []
        for again in self._cells.values():
            if again.is_repeat and again.scenario in scenarios and job in again.workloads:
                once = self._cells[again.scenario, again.workloads, again.values, False]
                repeats.append(paired(once.seconds(job, metric), again.seconds(job, metric)))
        return noise_floor([repeat for repeat in repeats if repeat is not None])
