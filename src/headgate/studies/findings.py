"""Findings of a study from its measurements: figures of each cell, effects, and sharing among
jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from headgate.diagnosis.attribution import LEAST_SECONDS
from headgate.model.units import say_percent
from headgate.reports.words import counted
from headgate.studies.grid import MITIGATION
from headgate.studies.journal import Measurement
from headgate.studies.statistics import (
    LEAST_REPETITIONS,
    Change,
    Ratio,
    change,
    noise_floor,
    over_blocks,
    paired,
    say,
    say_ratio,
    unpaired,
)
from headgate.studies.studyfile import UNLIMITED

Metric = Literal["step", "elapsed", "cpu"]
"""Seconds of a sample or step in the warm window, elapsed seconds, and CPU seconds of a step."""
METRICS: Mapping[Metric, str] = {
    "step": "",
    "elapsed": "from start to end, ",
    "cpu": "in CPU time a step, ",
}
_Place = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...], bool]
_LEAST_LOST = 0.02
"""Fraction of time: a smaller loss to other jobs names no resource."""


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

    @property
    def title(self) -> str:
        """The comparison: `small solo, isolation container against process`."""
        settings = "".join(f", {axis} {value}" for axis, value in self.rest)
        where = f"{self.job}{'' if self.what == 'scenario' else f' {self.scenario}'}{settings}"
        return f"{where}, {self.what} {self.value} against {self.base}"

    @property
    def words(self) -> str:
        return say(self.ratio, self.floor)


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
        cause: Why one got more: its priority, or the resource with the largest loss to others;
            empty: small losses.
        verdicts: By job, its most frequent verdict in `headgate explain`.
    """

    values: tuple[tuple[str, str], ...]
    phi: Mapping[str, Ratio]
    total: Ratio
    dominance: Ratio
    most: str
    least: str
    floor: float
    cause: str
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
    notes: tuple[str, ...] = field(default=())

    def sentences(self) -> list[str]:
        """Findings in words: differences first, then what shows none."""
        effects = [effect for effect in self.effects if effect.metric == "step"]
        ranks = {"slower": 0, "faster": 0, "unsure": 1, "none": 2}
        lines = [
            f"{shown_effect.title}: {shown_effect.words}."
            for shown_effect in sorted(effects, key=lambda ranked: ranks[ranked.change])
        ]
        lines += [
            f"{effect.title}: {METRICS[effect.metric]}{effect.words}."
            for effect in self.effects
            if effect.metric != "step" and effect.change in ("slower", "faster")
        ]
        plain = {shared.without: shared for shared in self.sharing if shared.mitigation is None}
        for shared in self.sharing:
            mitigated = shared.mitigation is not None and shared.without in plain
            lines += _gained(shared, plain[shared.without]) if mitigated else _shared(shared)
        return lines


def findings(name: str, about: Mapping[str, Any], kept: Sequence[Measurement]) -> Findings:
    """Compute the findings of a study.

    Args:
        name: Name of the study.
        about: As `Journal.about`.
        kept: All measurements, oldest first; those on the machine of the last one count.
    """
    machine = kept[-1].machine if kept else about["machine"]
    of_machine = [measurement for measurement in kept if measurement.machine == machine]
    latest = {_place(measurement.cell): measurement.key for measurement in of_machine}
    valid = [
        measurement
        for measurement in of_machine
        if latest[_place(measurement.cell)] == measurement.key
    ]
    planned = {_place(cell_data): cell_data for cell_data in about["cells"]}
    attempts = _calmer(valid)
    cells = {
        place: _cell(place, place_figures, valid, attempts)
        for place, place_figures in planned.items()
    }
    floors = _Floors(cells)
    axes: Mapping[str, Sequence[str]] = about["axes"]
    effects = [effect for metric in METRICS for effect in _effects(cells, axes, floors, metric)]
    priorities: Mapping[str, float] = about.get("priorities", {})
    shared = [
        cell_sharing
        for cell in cells.values()
        if (cell_sharing := _sharing(cell, cells, floors, priorities)) is not None
    ]
    notes = list(_notes(about, machine, len(kept) - len(valid), cells.values()))
    return Findings(
        name,
        about,
        tuple(cells.values()),
        tuple(effects),
        tuple(shared),
        machine,
        len(kept) - len(valid),
        tuple(notes),
    )


def _place(cell: Mapping[str, Any]) -> _Place:
    values = tuple((axis, value) for axis, value in cell["values"])
    return cell["scenario"], tuple(cell["workloads"]), values, cell["is_repeat"]


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
    place: _Place,
    cell_data: Mapping[str, Any],
    valid: Sequence[Measurement],
    attempts: Mapping[int, int],
) -> StudyCell:
    own_measurements = [measurement for measurement in valid if _place(measurement.cell) == place]
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


class _Floors:
    """How much cells differ from themselves, by scenario, job and metric."""

    def __init__(self, cells: Mapping[_Place, StudyCell]) -> None:
        self._cells = cells

    def of(self, scenarios: Sequence[str], job: str, metric: Metric) -> float:
        """The largest over several scenarios; 0: no cell was measured twice."""
        repeats = []
        for again in self._cells.values():
            if again.is_repeat and again.scenario in scenarios and job in again.workloads:
                once = self._cells[again.scenario, again.workloads, again.values, False]
                repeats.append(paired(once.seconds(job, metric), again.seconds(job, metric)))
        return noise_floor([repeat for repeat in repeats if repeat is not None])


def _effects(
    cells: Mapping[_Place, StudyCell],
    axes: Mapping[str, Sequence[str]],
    floors: _Floors,
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
    cell: StudyCell, cells: Mapping[_Place, StudyCell], axes: Mapping[str, Sequence[str]]
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


def _sharing(
    cell: StudyCell,
    cells: Mapping[_Place, StudyCell],
    floors: _Floors,
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

    each_phi = {job: _of_blocks(partial(phi, job), blocks) for job in cell.workloads}
    most, least = (choose(each_phi, key=lambda job: each_phi[job].value) for choose in (max, min))
    return CellSharing(
        values=cell.values,
        phi=each_phi,
        total=_of_blocks(total, blocks),
        dominance=_of_blocks(lambda block: phi(most, block) / phi(least, block), blocks),
        most=most,
        least=least,
        floor=max(floors.of(("simultaneous", "solo"), job, "step") for job in cell.workloads),
        cause=_cause(cell, *(priorities.get(job, 1.0) for job in (most, least))),
        verdicts={job: _verdict(cell, job) for job in cell.workloads},
    )


def _of_blocks(figure: Callable[[int], float], blocks: Sequence[int]) -> Ratio:
    ratio = over_blocks(figure, blocks)
    assert ratio is not None
    return ratio


def _cause(cell: StudyCell, most: float, least: float) -> str:
    """Why one job got more than another: its priority, or the resource of their largest certain
    loss.
    """
    if most > least:
        return f"priority {most:g} against {least:g}"
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
    return worst[0][0] if worst and worst[0][1] >= _LEAST_LOST * elapsed else ""


def _verdict(cell: StudyCell, job: str) -> str:
    counter = Counter(figure["jobs"][job]["verdict"] for figure in cell.figures.values())
    return counter.most_common(1)[0][0] if counter else ""


def _gained(sharing: CellSharing, plain: CellSharing) -> Iterator[str]:
    """What a mitigation changed for the job that got least without it."""
    job, way = plain.least, sharing.mitigation or ""
    suffix = "" if way.startswith("policy") else " each"
    values = "".join(f", {axis} {value}" for axis, value in sharing.without)
    yield (
        f"With {way}{suffix}{values}, {job} got {say_ratio(sharing.phi[job])} of its due instead "
        f"of {say_ratio(plain.phi[job])}; S = {say_ratio(sharing.total)} instead of "
        f"{say_ratio(plain.total)}, "
        f"D = {say_ratio(sharing.dominance)} instead of {say_ratio(plain.dominance)}."
    )


def _shared(sharing: CellSharing) -> Iterator[str]:
    values = "".join(f", {axis} {value}" for axis, value in sharing.without)
    at_once = f"{' + '.join(sharing.phi)} at once{values}"
    total, dominance = (say_ratio(line) for line in (sharing.total, sharing.dominance))
    if not sharing.total.has_interval:
        yield (
            f"{at_once}: S = {total}, D = {dominance}; no finding with fewer than "
            f"{LEAST_REPETITIONS} repetitions."
        )
        return
    pays = {"slower": "running at once pays", "faster": "running at once costs"}
    pay = pays.get(
        change(sharing.total, sharing.floor),
        f"no difference from one after the other seen (floor {say_percent(sharing.floor)})",
    )
    yield f"{at_once}: S = {total}: {pay}."
    due = ", ".join(f"{job} {say_ratio(phi)}" for job, phi in sharing.phi.items())
    yield f"Of its due each got{values}: {due}."
    if sharing.dominates:
        cause = f", by {sharing.cause}" if sharing.cause else ""
        yield f"{sharing.most} dominates {sharing.least}{values}: D = {dominance}{cause}."
    else:
        yield f"No job dominates{values}: D = {dominance}, floor {say_percent(sharing.floor)}."


def _notes(
    about: Mapping[str, Any], machine: Mapping[str, str], apart: int, cells: Collection[StudyCell]
) -> Iterator[str]:
    """Notes on how it was measured."""
    changed = [
        f"{fact} {was} → {machine.get(fact, '')}"
        for fact, was in about["machine"].items()
        if machine.get(fact) != was
    ]
    if changed:
        yield f"This machine has changed since the study began: {'; '.join(changed)}."
    if apart:
        yield (
            f"{counted(apart, 'measurement')} kept apart: of another machine, or of scripts "
            "that have changed since."
        )
    disturbed = sum(cell.disturbed for cell in cells)
    if disturbed:
        count = sum(len(cell.figures) for cell in cells)
        yield (
            f"Others used more than a tenth of the cores during {disturbed} of {count} "
            "measurements that count."
        )
    lacking: dict[tuple[str, str], list[str]] = {}
    for cell in cells:
        if not cell.figures:
            lacking.setdefault((cell.state, cell.reason), []).append(cell.name)
    for (state, reason), names in lacking.items():
        more = f" and {counted(len(names) - 1, 'other cell')}" if len(names) > 1 else ""
        yield f"{names[0]}{more}: {state}: {reason}."


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
                _Floors({_key(c): c for c in side.cells}).of(
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


def _key(cell: StudyCell) -> _Place:
    return cell.scenario, cell.workloads, cell.values, cell.is_repeat
