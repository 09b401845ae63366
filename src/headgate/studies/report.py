"""A study for people: tables and sentences on a terminal, one HTML page, and a CSV of all measurements."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.reports.explained import SPEED_COLUMNS
from headgate.reports.html import document
from headgate.reports.saving import save
from headgate.reports.templates import render
from headgate.reports.words import MISSING, counted, say, say_step_time
from headgate.studies.findings import Effect, Findings, StudyCell
from headgate.studies.journal import Measurement
from headgate.studies.statistics import LEAST_REPETITIONS, say_ratio

_WIDTH, _ROW = 640, 26  # pixels
_LEAST_SPAN = 0.05
"""Of the plot, to each side of 1."""
_SHOWN = 60
"""Effects that are drawn; the tables have all."""


@dataclass(frozen=True, slots=True)
class StudyTable:
    """A table as text: names of columns, and rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(study: Findings) -> list[StudyTable]:
    """All tables that a study has rows for."""
    found = [_cells(study), *_axes(study), _sharing(study), _bottlenecks(study), _cluster(study)]
    return [each for each in found if each.rows]


def tell(study: Findings, console: Console) -> None:
    """Print tables, findings, and what has to be known of them."""
    for each in tables(study):
        table = Table(box=None, pad_edge=False, header_style="dim", title=each.title, title_justify="left")
        for index, name in enumerate(each.columns):
            table.add_column(name, justify="right" if index else "left")
        for row in each.rows:
            table.add_row(*map(Text, row))
        console.print(table)
        console.print()
    for line in (*study.sentences(), *study.notes):
        console.print(Text(line), soft_wrap=True)


def as_json(study: Findings) -> dict[str, Any]:
    """What `headgate study --json` prints: keys are only ever added."""
    return {
        "study": study.name,
        "machine": dict(study.machine),
        "apart": study.apart,
        "cells": [asdict(cell) for cell in study.cells],
        "effects": [
            {**asdict(each), "change": each.change, "title": each.title, "words": each.words} for each in study.effects
        ],
        "sharing": [{**asdict(each), "dominates": each.dominates} for each in study.sharing],
        "findings": study.sentences(),
        "notes": list(study.notes),
    }


def write(study: Findings, folder: Path, kept: Sequence[Measurement]) -> Path:
    """Write the page and the CSV of a study into its folder; the page.

    Raises:
        StorageError: They cannot be written.
    """
    save(_csv(kept), folder / "cells.csv")
    drawn = [each for each in study.effects if each.metric == "step"][:_SHOWN]
    body = render(
        "study.html",
        study=study,
        told=_told(study),
        sentences=study.sentences(),
        tables=tables(study),
        plot=_plot(drawn) if drawn else None,
    )
    return save(
        document(f"{study.name} – Headgate", body, {"id": study.name, "seconds": 0, "plots": []}),
        folder / "report.html",
    )


def _told(study: Findings) -> str:
    machine = study.machine
    repetitions = study.about["repetitions"]
    few = "" if repetitions >= LEAST_REPETITIONS else ", too few for intervals"
    return (
        f"{counted(len(study.cells), 'cell')}, {counted(repetitions, 'repetition')}{few}, seed {study.about['seed']}; "
        f"{machine.get('CPU', '')}, {machine.get('CPUs', '')} CPUs, {machine.get('memory', '')}, "
        f"Linux {machine.get('kernel', '')}, Headgate {machine.get('Headgate', '')}"
    )


def _cells(study: Findings) -> StudyTable:
    rows = []
    for cell in study.cells:
        for job in cell.workloads:
            name = cell.name if len(cell.workloads) == 1 else f"{cell.name}: {job}"
            rows.append((name, *_figures(cell, job)))
    columns = ("Cell", "Measured", "Throughput", "Step", "CPU a step", "Start-up", "Elapsed")
    return StudyTable("Cells, means", columns, tuple(rows))


def _figures(cell: StudyCell, job: str) -> tuple[str, ...]:
    if not cell.figures:
        return (cell.state, *(MISSING,) * 5)
    step, cpu = (cell.mean(job, name) for name in ("step_seconds", "cpu_seconds_per_step"))
    return (
        str(len(cell.figures)),
        f"{say(cell.mean(job, 'rate'))} {' or '.join(sorted(cell.units(job)))}/s",
        *(say_step_time(each) if each is not None else MISSING for each in (step, cpu)),
        say(cell.mean(job, "startup"), "s"),
        say(cell.mean(job, "elapsed"), "s"),
    )


def _axes(study: Findings) -> Iterator[StudyTable]:
    """For each axis and scenario: its values down, workloads across; throughput, and time against the first value."""
    axes: Mapping[str, Sequence[str]] = study.about["axes"]
    for axis, values in axes.items():
        if len(values) < 2:
            continue
        cells = [c for c in study.cells if not c.is_repeat and c.scenario != "slice" and axis in dict(c.values)]
        for scenario in dict.fromkeys(cell.scenario for cell in cells):
            here = [cell for cell in cells if cell.scenario == scenario]
            heads = dict.fromkeys((job, _rest(cell, axis)) for cell in here for job in cell.workloads)
            rows = []
            for value in values:
                row = [value]
                for job, rest in heads:
                    [cell] = [
                        c for c in here if job in c.workloads and _rest(c, axis) == rest and (axis, value) in c.values
                    ]
                    row += [*_throughput(cell, job), *_relative(study.effects, cell, job, axis)]
                rows.append(tuple(row))
            columns = [axis]
            for job, rest in heads:
                named = ", ".join([job, *(f"{name} {value}" for name, value in rest)])
                columns += [f"{named}: rate", "elapsed", "time", "elapsed time"]
            yield StudyTable(f"{axis}, {scenario}; times against {values[0]}", tuple(columns), tuple(rows))


def _rest(cell: StudyCell, axis: str) -> tuple[tuple[str, str], ...]:
    return tuple(each for each in cell.values if each[0] != axis)


def _throughput(cell: StudyCell, job: str) -> tuple[str, str]:
    if not cell.figures:
        return cell.state, MISSING
    return f"{say(cell.mean(job, 'rate'))}/s", say(cell.mean(job, "elapsed"), "s")


def _relative(effects: Iterable[Effect], cell: StudyCell, job: str, axis: str) -> tuple[str, str]:
    mine = [e for e in effects if (e.job, e.scenario, e.what, e.rest) == (job, cell.scenario, axis, _rest(cell, axis))]
    found = {each.metric: say_ratio(each.ratio) for each in mine if (axis, each.value) in cell.values}
    return found.get("step", MISSING), found.get("elapsed", MISSING)


def _sharing(study: Findings) -> StudyTable:
    rows: list[tuple[str, ...]] = []
    for each in study.sharing:
        named = ", ".join(f"{axis} {value}" for axis, value in each.values) or "all jobs"
        for job, phi in each.phi.items():
            first = not rows or rows[-1][0] != named
            both = (say_ratio(each.total), say_ratio(each.dominance)) if first else ("", "")
            rows.append((named, job, say_ratio(phi), *both, each.verdicts[job], each.cause or MISSING))
    columns = ("At once", "Job", "φ", "S", "D", "Verdict", "By")
    return StudyTable(
        "Sharing: φ together over its part alone, S together over alone, D largest φ over smallest",
        columns,
        tuple(rows),
    )


def _bottlenecks(study: Findings) -> StudyTable:
    """What `headgate explain` says of each cell: the verdict, and what more of each resource would buy."""
    rows = []
    for cell in study.cells:
        if cell.is_repeat or not cell.figures:
            continue
        last = cell.figures[max(cell.figures)]
        for job in cell.workloads:
            verdicts = sorted({each["jobs"][job]["verdict"] for each in cell.figures.values()})
            named = f"{cell.name}: {job}" if len(cell.workloads) > 1 else cell.name
            more = last["jobs"][job]["more"]
            for resource, bought in more.items():
                cells = [f"{each['speedup']:.2f}" if each is not None else MISSING for each in bought.values()]
                rows.append((named, " or ".join(verdicts), resource.replace("+", " + "), *cells))
            if not more:
                rows.append((named, " or ".join(verdicts), MISSING, *(MISSING,) * len(SPEED_COLUMNS)))
    return StudyTable(
        "Bottleneck: speed with more of a resource", ("Cell", "Verdict", "Resource", *SPEED_COLUMNS), tuple(rows)
    )


def _cluster(study: Findings) -> StudyTable:
    """Use of each node in the warm windows of each cell: means, and the most."""
    rows = []
    for cell in study.cells:
        if cell.is_repeat or not cell.figures:
            continue
        for node in next(iter(cell.figures.values()))["nodes"]:
            told = [figures["nodes"][node] for figures in cell.figures.values() if node in figures["nodes"]]
            idle, fullest, memory, received, sent, read, written = (
                _both([each[name] for each in told])
                for name in ("idle", "cpu_fullest_core", "memory_bytes", "net_in", "net_out", "disk_read", "disk_write")
            )
            free = told[0]["memory"] - memory[1] if told[0]["memory"] and memory[1] is not None else None
            rows.append(
                (
                    f"{cell.name} on {node}",
                    say(idle[0], "%"),
                    say(fullest[1], "%"),
                    f"{say(memory[1], 'B')}, {say(free, 'B')} free",
                    *(f"{say(mean, 'B/s')}, {say(most, 'B/s')}" for mean, most in (received, sent, read, written)),
                )
            )
    columns = ("Node", "CPU idle", "Fullest core", "Memory", "Network in", "Network out", "Disk read", "Disk written")
    return StudyTable("Use of nodes while all were warm: mean, most", columns, tuple(rows))


def _both(told: Sequence[Sequence[float | None]]) -> tuple[float | None, float | None]:
    means = [float(each[0]) for each in told if each[0] is not None]
    most = [float(each[1]) for each in told if each[1] is not None]
    return (sum(means) / len(means) if means else None), max(most, default=None)


def _plot(effects: Sequence[Effect]) -> dict[str, Any]:
    """Where each effect, its interval and the noise floor stand in a drawing, in pixels on a logarithmic scale."""
    ends = [abs(math.log(end)) for each in effects for end in (each.ratio.low, each.ratio.high)]
    span = max([_LEAST_SPAN, *ends, *(math.log1p(each.floor) for each in effects)]) * 1.05

    def x(ratio: float) -> float:
        return round(_WIDTH / 2 * (1.0 + math.log(ratio) / span), 1)

    rows = [
        {
            "title": each.title,
            "words": each.words,
            "y": _ROW * index,
            "value": x(each.ratio.value),
            "low": x(each.ratio.low),
            "high": x(each.ratio.high),
            "floor": (x(1.0 / (1.0 + each.floor)), x(1.0 + each.floor)),
            "found": each.change in ("slower", "faster"),
        }
        for index, each in enumerate(effects)
    ]
    return {
        "rows": rows,
        "width": _WIDTH,
        "height": _ROW * len(rows),
        "row": _ROW,
        "middle": x(1.0),
        "most": math.exp(span),
    }


def _csv(kept: Sequence[Measurement]) -> str:
    """A line for each job of each measurement, those that failed among them."""
    text = io.StringIO()
    figures = (
        "unit",
        "rate",
        "step_seconds",
        "cpu_seconds_per_step",
        "startup",
        "elapsed",
        "memory_peak_bytes",
        "verdict",
    )
    head = ("cell", "key", "scenario", "values", "block", "attempt", "again", "state", "reason", "at")
    writer = csv.writer(text)
    writer.writerow((*head, "run", "disturbed", "foreign_cores", "stolen_cores", "job", *figures))
    for each in kept:
        cell = each.cell
        values = " ".join(f"{axis}={value}" for axis, value in cell["values"])
        row = (cell["name"], each.key, cell["scenario"], values, each.block, each.attempt, cell["is_repeat"])
        run = [each.figures.get(name, "") for name in ("run", "disturbed", "foreign_cores", "stolen_cores")]
        for job in cell["workloads"]:
            told = each.figures.get("jobs", {}).get(job, {})
            writer.writerow((*row, each.state, each.reason, each.at, *run, job, *(told.get(name) for name in figures)))
    return text.getvalue()
