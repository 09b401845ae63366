"""How well the jobs of a study's cell shared the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from headgate.diagnosis.attribution import LEAST_SECONDS
from headgate.studies.cells import Floors, Place, StudyCell
from headgate.studies.grid import MITIGATION
from headgate.studies.statistics import Ratio, change, over_blocks
from headgate.studies.studyfile import UNLIMITED

_LEAST_LOST = 0.02
"""Fraction of time: a smaller loss to other jobs names no resource."""


class Priorities(NamedTuple):
    """Priorities of the jobs with the largest and the smallest φ."""

    most: float
    least: float


@dataclass(frozen=True, slots=True)
class CellSharing:
    """How jobs that ran at once shared the machines.

    Args:
        phi: By job, the rate together relative to that alone on its part of the cores; 1 is fair.
        total: S, the sum over jobs of the rate together relative to that alone on all cores; above
            1, sharing pays.
        dominance: D, the largest φ over the smallest; within the noise if the interval contains 1.
        most: The job with the largest φ.
        least: The job with the smallest.
        floor: How much the same jobs at once differ from themselves.
        cause: Why one got more: the priorities of both, or the resource with the largest loss to
            others; None: small losses.
        verdicts: By job, its most frequent verdict in `headgate explain`.
    """

    values: tuple[tuple[str, str], ...]
    phi: Mapping[str, Ratio]
    total: Ratio
    dominance: Ratio
    most: str
    least: str
    floor: float
    cause: Priorities | str | None
    verdicts: Mapping[str, str]

    @property
    def mitigation(self) -> str | None:
        """The measure for better sharing; None: none."""
        return next(
            (value for axis, value in self.values if axis == MITIGATION and value != UNLIMITED),
            None,
        )

    @property
    def without(self) -> tuple[tuple[str, str], ...]:
        """The values of the other axes."""
        return tuple(setting for setting in self.values if setting[0] != MITIGATION)

    @property
    def dominates(self) -> bool:
        """Whether one job dominates, beyond the noise."""
        return change(self.dominance, self.floor) == "slower"


def sharing(
    cell: StudyCell,
    cells: Mapping[Place, StudyCell],
    floors: Floors,
    priorities: Mapping[str, float],
) -> CellSharing | None:
    """Sharing among the jobs of a cell that ran at once; None: one of them was not measured
    alone.
    """
    if cell.scenario != "simultaneous" or cell.is_repeat:
        return None
    rates: dict[str, dict[str, dict[int, float]]] = {"together": {}, "alone": {}, "slice": {}}
    without = tuple(setting for setting in cell.values if setting[0] != MITIGATION)
    for job in cell.workloads:
        alone, sliced = (
            cells.get((scenario, (job,), without, False)) for scenario in ("solo", "slice")
        )
        if alone is None or sliced is None:
            return None
        for kind, cell_of_kind in (("together", cell), ("alone", alone), ("slice", sliced)):
            rates[kind][job] = {
                block: 1.0 / seconds for block, seconds in cell_of_kind.seconds(job, "step").items()
            }
    blocks = sorted(
        set.intersection(*(set(setting) for kind in rates.values() for setting in kind.values()))
    )
    if not blocks:
        return None
    together, alone_rates, slices = rates["together"], rates["alone"], rates["slice"]

    def phi(job: str, block: int) -> float:
        return together[job][block] / slices[job][block]

    def total(block: int) -> float:
        return sum(together[job][block] / alone_rates[job][block] for job in cell.workloads)

    phi_of_jobs = {job: _of_blocks(partial(phi, job), blocks) for job in cell.workloads}
    most, least = (
        choose(phi_of_jobs, key=lambda job: phi_of_jobs[job].value) for choose in (max, min)
    )
    return CellSharing(
        values=cell.values,
        phi=phi_of_jobs,
        total=_of_blocks(total, blocks),
        dominance=_of_blocks(lambda block: phi(most, block) / phi(least, block), blocks),
        most=most,
        least=least,
        floor=max(floors.of(("simultaneous", "solo"), job, "step") for job in cell.workloads),
        cause=_cause(cell, Priorities(priorities.get(most, 1.0), priorities.get(least, 1.0))),
        verdicts={job: _verdict(cell, job) for job in cell.workloads},
    )


def _of_blocks(figure: Callable[[int], float], blocks: Sequence[int]) -> Ratio:
    ratio = over_blocks(figure, blocks)
    assert ratio is not None
    return ratio


def _cause(cell: StudyCell, priorities: Priorities) -> Priorities | str | None:
    """Why one job got more than another: its priority, or the resource of their largest certain
    loss.
    """
    if priorities.most > priorities.least:
        return priorities
    lost: Counter[str] = Counter()
    elapsed = 0.0
    for figures in cell.figures.values():
        for job in figures["jobs"].values():
            elapsed += job["elapsed"]
            for lost_part in job["lost"]:
                if (
                    lost_part["to"] in cell.workloads
                    and lost_part.get("low", lost_part["seconds"]) > LEAST_SECONDS
                ):
                    lost[lost_part["resource"]] += lost_part["seconds"]
    worst = lost.most_common(1)
    return worst[0][0] if worst and worst[0][1] >= _LEAST_LOST * elapsed else None


def _verdict(cell: StudyCell, job: str) -> str:
    counter = Counter(figure["jobs"][job]["verdict"] for figure in cell.figures.values())
    return counter.most_common(1)[0][0] if counter else ""
