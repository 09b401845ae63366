"""Findings of a study from its measurements: figures of each cell, effects, and sharing among
jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headgate.studies.cell_sharing import CellSharing, sharing
from headgate.studies.cells import METRICS, Floors, Metric, Place, StudyCell, place_of
from headgate.studies.journal import Measurement
from headgate.studies.statistics import Change, Ratio, change, paired, unpaired


@dataclass(frozen=True, slots=True)
class Effect:
    """One cell relative to another that differs in one thing.

    Args:
        job: The workload whose times are compared.
        what: The thing: an axis, or `scenario`.
        value: Its value in the cell.
        base: Its value in the other.
        rest: The common values.
        floor: How much the baseline cell differs from itself.
    """

    job: str
    scenario: str
    what: str
    value: str
    base: str
    rest: tuple[tuple[str, str], ...]
    metric: Metric
    ratio: Ratio
    floor: float

    @property
    def change(self) -> Change:
        return change(self.ratio, self.floor)


@dataclass(frozen=True, slots=True)
class Findings:
    """All findings of a study.

    Args:
        apart: Measurements that do not count: from another machine, or of cells whose content
            changed since.
    """

    name: str
    about: Mapping[str, Any]
    cells: tuple[StudyCell, ...]
    effects: tuple[Effect, ...]
    sharing: tuple[CellSharing, ...]
    machine: Mapping[str, str]
    apart: int


def findings(name: str, about: Mapping[str, Any], kept: Sequence[Measurement]) -> Findings:
    """Compute the findings of a study.

    Args:
        name: Name of the study.
        about: As `Journal.about`.
        kept: All measurements, oldest first; those on the machine of the last one count.
    """
    machine = kept[-1].machine if kept else about["machine"]
    of_machine = [measurement for measurement in kept if measurement.machine == machine]
    latest = {place_of(measurement.cell): measurement.key for measurement in of_machine}
    valid = [
        measurement
        for measurement in of_machine
        if latest[place_of(measurement.cell)] == measurement.key
    ]
    planned = {place_of(cell_data): cell_data for cell_data in about["cells"]}
    attempts = _calmer(valid)
    cells = {
        place: _cell(place, place_figures, valid, attempts)
        for place, place_figures in planned.items()
    }
    floors = Floors(cells)
    axes: Mapping[str, Sequence[str]] = about["axes"]
    effects = [effect for metric in METRICS for effect in _effects(cells, axes, floors, metric)]
    priorities: Mapping[str, float] = about.get("priorities", {})
    shared = [
        cell_sharing
        for cell in cells.values()
        if (cell_sharing := sharing(cell, cells, floors, priorities)) is not None
    ]
    return Findings(
        name,
        about,
        tuple(cells.values()),
        tuple(effects),
        tuple(shared),
        machine,
        len(kept) - len(valid),
    )


def _calmer(valid: Sequence[Measurement]) -> dict[int, int]:
    """The attempt that counts for each block: the one with fewer disturbed cells, once it is
    complete.
    """
    minutes: dict[int, int] = {}
    for block in {measurement.block for measurement in valid}:
        good = [
            measurement
            for measurement in valid
            if measurement.block == block and measurement.state == "measured"
        ]
        done = Counter(measurement.attempt for measurement in good)
        disturbed = Counter(
            measurement.attempt for measurement in good if measurement.figures["disturbed"]
        )
        minutes[block] = int(done[1] >= done[0] and disturbed[1] < disturbed[0])
    return minutes


def _cell(
    place: Place,
    cell_data: Mapping[str, Any],
    valid: Sequence[Measurement],
    attempts: Mapping[int, int],
) -> StudyCell:
    own_measurements = [measurement for measurement in valid if place_of(measurement.cell) == place]
    good = [
        measurement
        for measurement in own_measurements
        if measurement.state == "measured" and measurement.attempt == attempts[measurement.block]
    ]
    chosen = {measurement.block: measurement.figures for measurement in good}
    state, reason = ("measured", "") if chosen else ("not measured", "its turn has not come")
    if own_measurements and not chosen:
        state, reason = own_measurements[-1].state, own_measurements[-1].reason
    disturbed = sum(bool(figures["disturbed"]) for figures in chosen.values())
    return StudyCell(
        cell_data["name"], *place, chosen, state, reason, len(own_measurements), disturbed
    )


def _effects(
    cells: Mapping[Place, StudyCell],
    axes: Mapping[str, Sequence[str]],
    floors: Floors,
    metric: Metric,
) -> Iterator[Effect]:
    for cell in cells.values():
        if cell.is_repeat or cell.scenario == "slice":
            continue
        for job in cell.workloads:
            for axis, base, value, other in _bases(cell, cells, axes):
                alike = metric != "step" or cell.units(job) == other.units(job)
                both = [
                    side.seconds(job, metric) if alike else side.batch_seconds(job)
                    for side in (other, cell)
                ]
                if (ratio := paired(*both)) is not None:
                    floor = floors.of((cell.scenario, other.scenario), job, metric)
                    other_settings = tuple(setting for setting in cell.values if setting[0] != axis)
                    yield Effect(
                        job, cell.scenario, axis, value, base, other_settings, metric, ratio, floor
                    )


def _bases(
    cell: StudyCell, cells: Mapping[Place, StudyCell], axes: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str, str, StudyCell]]:
    """What distinguishes a cell from its baselines: the thing, the baseline's value, its own value,
    and the baseline.
    """
    for axis, value in cell.values:
        base = axes[axis][0]
        values = tuple(
            (name, base if name == axis else setting_value) for name, setting_value in cell.values
        )
        if (
            base != value
            and (other := cells.get((cell.scenario, cell.workloads, values, False))) is not None
        ):
            yield axis, base, value, other
    if cell.scenario in ("shared", "distributed"):
        values = tuple(setting for setting in cell.values if setting[0] != "strategy")
        if (other := cells.get(("solo", cell.workloads, values, False))) is not None:
            yield "scenario", "solo", cell.scenario, other


def between(first: Findings, second: Findings) -> tuple[list[tuple[str, Ratio, float]], list[str]]:
    """Cells common to two studies, with the second over the first and the larger floor; and names
    of cells in one only.
    """
    first_cells, second_cells = (
        {cell.name: cell for cell in side.cells if cell.figures} for side in (first, second)
    )
    lines = []
    for name in (our for our in first_cells if our in second_cells):
        for job in first_cells[name].workloads:
            ratio = unpaired(
                *(
                    list(effect[name].seconds(job, "step").values())
                    for effect in (first_cells, second_cells)
                )
            )
            floor = max(
                Floors({_key(c): c for c in side.cells}).of(
                    (first_cells[name].scenario,), job, "step"
                )
                for side in (first, second)
            )
            if ratio is not None and not first_cells[name].is_repeat:
                lines.append(
                    (
                        name if len(first_cells[name].workloads) == 1 else f"{job} in {name}",
                        ratio,
                        floor,
                    )
                )
    return lines, sorted(first_cells.keys() ^ second_cells.keys())


def _key(cell: StudyCell) -> Place:
    return cell.scenario, cell.workloads, cell.values, cell.is_repeat
