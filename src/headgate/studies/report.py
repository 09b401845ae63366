"""Reports of a study: tables and sentences on a terminal, an HTML page, and a CSV of all
measurements.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.model.units import counted
from headgate.reports.html import document
from headgate.reports.saving import save
from headgate.reports.templates import render
from headgate.studies import words
from headgate.studies.findings import Effect, Findings
from headgate.studies.journal import Measurement
from headgate.studies.published import comparisons
from headgate.studies.statistics import LEAST_REPETITIONS
from headgate.studies.tables import tables

_WIDTH, _ROW, _LABELS = 560, 20, 440  # pixels
_LEAST_SPAN = 0.05
"""Least span of the plot on each side of 1."""
_TICKS = (1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
_SHOWN = 60
"""Most effects drawn; the tables have all."""


def tell(study: Findings, console: Console) -> None:
    """Print findings, notes, and the tables."""
    for line in (*words.sentences(study), *words.notes(study)):
        console.print(Text(line), soft_wrap=True)
    console.print()
    for one_table in tables(study):
        table = Table(
            box=None,
            pad_edge=False,
            header_style="dim",
            title=one_table.title,
            title_justify="left",
        )
        for index, name in enumerate(one_table.columns):
            table.add_column(name, justify="right" if index else "left")
        for row in one_table.rows:
            table.add_row(*map(Text, row))
        console.print(table)
        console.print()


def as_json(study: Findings) -> dict[str, Any]:
    """The output of `headgate study --json`; keys are only ever added."""
    return {
        "study": study.name,
        "machine": dict(study.machine),
        "apart": study.apart,
        "cells": [asdict(cell) for cell in study.cells],
        "effects": [
            {
                **asdict(effect),
                "change": effect.change,
                "title": words.title(effect),
                "words": words.comparison(effect),
            }
            for effect in study.effects
        ],
        "sharing": [
            {
                **asdict(shared),
                "cause": words.cause_in_words(shared.cause),
                "dominates": shared.dominates,
            }
            for shared in study.sharing
        ],
        "published": [asdict(comparison) for comparison in comparisons(study)],
        "findings": words.sentences(study),
        "notes": list(words.notes(study)),
    }


def as_markdown(study: Findings) -> str:
    """A page for a repository or an issue: findings first, then the tables."""
    lines = [f"# {study.about['name']}", "", _conditions(study), ""]
    lines += [f"- {sentence}" for sentence in (*words.sentences(study), *words.notes(study))]
    for table in tables(study):
        rows = [table.columns, ["---"] * len(table.columns), *table.rows]
        lines += [
            "",
            f"## {table.title}",
            "",
            *("| " + " | ".join(map(_escaped, row)) + " |" for row in rows),
        ]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def write(study: Findings, folder: Path, kept: Sequence[Measurement]) -> Path:
    """Write the page and the CSV of a study into its folder. Returns the page's path.

    Raises:
        StorageError: They cannot be written.
    """
    save(_csv(kept), folder / "cells.csv")
    drawn = [effect for effect in study.effects if effect.metric == "step"][:_SHOWN]
    body = render(
        "study.html",
        study=study,
        conditions=_conditions(study),
        sentences=words.sentences(study),
        notes=words.notes(study),
        tables=tables(study),
        plot=_plot(drawn) if drawn else None,
    )
    return save(
        document(f"{study.name} – Headgate", body, {"id": study.name, "seconds": 0, "plots": []}),
        folder / "report.html",
    )


def _conditions(study: Findings) -> str:
    machine = study.machine
    repetitions = study.about["repetitions"]
    few = "" if repetitions >= LEAST_REPETITIONS else ", too few for intervals"
    return (
        f"{counted(len(study.cells), 'cell')}, {counted(repetitions, 'repetition')}{few}, seed "
        f"{study.about['seed']}; "
        f"{machine.get('CPU', '')}, {machine.get('CPUs', '')} CPUs, {machine.get('memory', '')}, "
        f"Linux {machine.get('kernel', '')}, Headgate {machine.get('Headgate', '')}"
    )


def _plot(effects: Sequence[Effect]) -> dict[str, Any]:
    """Positions of each effect, its interval and the noise floor in a drawing, in pixels on a
    logarithmic scale.
    """
    ends = [
        abs(math.log(end)) for effect in effects for end in (effect.ratio.low, effect.ratio.high)
    ]
    span = max([_LEAST_SPAN, *ends, *(math.log1p(effect.floor) for effect in effects)]) * 1.05

    def x(ratio: float) -> float:
        return round(_LABELS + _WIDTH / 2 * (1.0 + math.log(ratio) / span), 1)

    rows = [
        {
            "title": words.title(effect),
            "words": words.comparison(effect),
            "y": _ROW * index,
            "value": x(effect.ratio.value),
            "low": x(effect.ratio.low),
            "high": x(effect.ratio.high),
            "floor": (x(1.0 / (1.0 + effect.floor)), x(1.0 + effect.floor)),
            "found": effect.change in ("slower", "faster"),
        }
        for index, effect in enumerate(effects)
    ]
    unit = max(tick for tick in _TICKS if math.log(tick) <= span)
    return {
        "ticks": [(x(ratio), f"{ratio:.3g}") for ratio in (1.0 / unit, 1.0, unit)],
        "rows": rows,
        "width": _LABELS + _WIDTH,
        "height": _ROW * len(rows),
        "row": _ROW,
        "middle": x(1.0),
    }


def _csv(kept: Sequence[Measurement]) -> str:
    """A line for each job of each measurement, including failed ones."""
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
    head = (
        "cell",
        "key",
        "scenario",
        "values",
        "block",
        "attempt",
        "again",
        "state",
        "reason",
        "at",
    )
    writer = csv.writer(text)
    writer.writerow((*head, "run", "disturbed", "foreign_cores", "stolen_cores", "job", *figures))
    for measurement in kept:
        cell = measurement.cell
        values = " ".join(f"{axis}={value}" for axis, value in cell["values"])
        row = (
            cell["name"],
            measurement.key,
            cell["scenario"],
            values,
            measurement.block,
            measurement.attempt,
            cell["is_repeat"],
        )
        run = [
            measurement.figures.get(name, "")
            for name in ("run", "disturbed", "foreign_cores", "stolen_cores")
        ]
        for job in cell["workloads"]:
            job_figures = measurement.figures.get("jobs", {}).get(job, {})
            writer.writerow(
                (
                    *row,
                    measurement.state,
                    measurement.reason,
                    measurement.at,
                    *run,
                    job,
                    *(job_figures.get(name) for name in figures),
                )
            )
    return text.getvalue()
