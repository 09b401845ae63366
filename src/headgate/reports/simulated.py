"""Results of a simulation: figures of each policy side by side, and distributions of completion
times.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table
from rich.text import Text

from headgate.model.units import counted
from headgate.recorded.usage import Array, TimeBuckets, settings
from headgate.reports.figures import BUCKETS, Line, Plot, job_colour
from headgate.reports.frames import frames, payload
from headgate.reports.html import document
from headgate.reports.saving import save
from headgate.reports.templates import render
from headgate.reports.words import say
from headgate.simulation import Figures, Outcome, Trace
from headgate.simulation.results import completions, presence
from headgate.simulation.user_figures import DivisionFigures
from headgate.simulation.user_hubs import Division

_COLUMNS = (  # name, field of Figures, unit, meaning
    ("mean", "mean", "s", "completion time: the mean over the jobs"),
    ("median", "median", "s", "completion time: half of the jobs took no longer"),
    ("p95", "p95", "s", "completion time: 95 % of the jobs took no longer"),
    ("p99", "p99", "s", "completion time: 99 % of the jobs took no longer"),
    ("makespan", "makespan", "s", "from the first arrival to the last end"),
    (
        "max ρ",
        "max_rho",
        "",
        (
            "largest finish-time fairness: completion time over the time alone on an equal part "
            "of the cluster"
        ),
    ),
    (
        "used",
        "utilisation",
        "%",
        "part of the GPUs in use until the makespan; of the cores where no job has GPUs",
    ),
    ("restarts", "restarts", "", "times that a job was stopped for another"),
)
_AS_LIVE = (
    "whether a live hub decides the same way: none stops a job that has whole GPUs for another"
)

_DIVISIONS = {
    Division.SLICES: "equal slices",
    Division.NONE: "no arbiter",
    Division.ARBITER: "the arbiter",
    Division.TAKING_BACK: "take_back: shares",
    Division.TOGETHER: "users: together",
}
_MANY = 1_000
"""With more jobs than this, the slowest hundredth is left out, which would fill most of the
plot.
"""


def table(results: Sequence[Figures]) -> Table:
    """A terminal table with a row of figures for each policy."""
    made = Table(box=None, pad_edge=False, header_style="dim")
    made.add_column("policy", no_wrap=True)
    for name, _, _, _ in _COLUMNS:
        made.add_column(name, justify="right", no_wrap=True)
    made.add_column("as live", no_wrap=True)
    for result in results:
        values = (say(getattr(result, field), unit) for _, field, unit, _ in _COLUMNS)
        made.add_row(Text(result.policy), *values, _as_live(result))
    return made


def table_of_users(results: Sequence[DivisionFigures]) -> Table:
    """A terminal table with a row for each way in which users share a machine."""
    made = Table(box=None, pad_edge=False, header_style="dim")
    made.add_column("users share by", no_wrap=True)
    for name in ("mean", "p95", "makespan", "used", "over slices", "worst user"):
        made.add_column(name, justify="right", no_wrap=True)
    slices = results[0].figures
    for result in results:
        own, worst = result.figures, result.worst
        made.add_row(
            _DIVISIONS[result.division],
            say(own.mean, "s"),
            say(own.p95, "s"),
            say(own.makespan, "s"),
            say(own.utilisation, "%"),
            say(own.mean / slices.mean if slices.mean else None),
            Text(f"{say(worst.over_slices)} ({worst.user})"),
        )
    return made


def _as_live(figures: Figures) -> str:
    return "yes" if figures.as_live else "no: only simulated"


def write(trace: Trace, outcomes: Sequence[Outcome], results: Sequence[Figures], to: Path) -> Path:
    """Write the page of a simulation.

    Raises:
        StorageError: It cannot be written.
    """
    return save(page(trace, outcomes, results), to)


def page(trace: Trace, outcomes: Sequence[Outcome], results: Sequence[Figures]) -> str:
    """The whole page."""
    plots = [_distribution(outcomes, results), _present(outcomes), _used(outcomes)]
    unit = "GPUs" if trace.on_gpus else "cores"
    heading_text = (
        f"{counted(len(trace.jobs), 'job')} of {trace.name} on {say(outcomes[0].capacity)} "
        f"{unit}, simulated."
    )
    seconds = max((result.makespan for result in results), default=0.0)
    body = render(
        "simulation.html",
        trace=trace,
        told=(heading_text, *trace.notes),
        results=results,
        columns=(
            ("policy", "text", ""),
            *((name, "", why) for name, _, _, why in _COLUMNS),
            ("as live", "text", _AS_LIVE),
        ),
        as_live=_as_live,
        fields=[(field, unit) for _, field, unit, _ in _COLUMNS],
        plots=frames(plots),
    )
    return document(
        f"{trace.name} – Headgate",
        body,
        {"id": trace.name, "seconds": seconds, "plots": payload(plots)},
    )


def _line(
    index: int,
    label: str,
    values: Array,
    *summary: tuple[str, float | None],
    unit: str | None = None,
) -> Line:
    colour, dash = job_colour(index)
    return Line(label, colour, TimeBuckets(values, values, values), summary, dash, unit=unit)


def _distribution(outcomes: Sequence[Outcome], results: Sequence[Figures]) -> Plot:
    """The fraction of jobs done within a time; with many jobs, up to 99 % under every policy."""
    most = [
        result.p99 if result.done > _MANY else float(completions(outcome).max(initial=0.0))
        for outcome, result in zip(outcomes, results, strict=True)
    ]
    edges = np.linspace(0.0, max([*most, 1e-3]), BUCKETS + 1)
    lines = []
    for index, (outcome, result) in enumerate(zip(outcomes, results, strict=True)):
        times = np.sort(completions(outcome))
        within = np.searchsorted(times, edges[1:], side="right") / max(len(outcome.jobs), 1)
        lines.append(
            _line(
                index, result.policy, within, ("mean", result.mean), ("p99", result.p99), unit="s"
            )
        )
    note = "Across: completion time" + (
        ", up to the largest 99th percentile."
        if max(result.done for result in results) > _MANY
        else "."
    )
    return Plot("completion", "Jobs done within", "%", edges, lines, note, top=1.0)


def _present(outcomes: Sequence[Outcome]) -> Plot:
    """The number of waiting and running jobs over time."""
    edges = _times(outcomes)
    lines = []
    for index, outcome in enumerate(outcomes):
        done = [job for job in outcome.jobs if job.ended is not None]
        times, present = presence(
            np.array([job.job.submitted for job in done]),
            np.array([job.ended for job in done], dtype=float),
        )
        signal = settings(times, present.astype(float), float(edges[-1]))
        lines.append(
            _line(index, outcome.policy, signal.buckets(edges).mean, ("max", signal.maximum))
        )
    return Plot("present", "Jobs waiting or running", "jobs", edges, lines)


def _used(outcomes: Sequence[Outcome]) -> Plot:
    """The busy fraction of the cluster over time."""
    edges = _times(outcomes)
    lines = []
    for index, outcome in enumerate(outcomes):
        columns = np.array(outcome.busy).T
        signal = settings(columns[0], columns[1] / outcome.capacity, float(edges[-1]))
        lines.append(_line(index, outcome.policy, signal.buckets(edges).mean))
    return Plot("used", "Part of the cluster that is used", "%", edges, lines, top=1.0)


def _times(outcomes: Sequence[Outcome]) -> Array:
    ends = [job.ended for outcome in outcomes for job in outcome.jobs if job.ended is not None]
    return np.linspace(0.0, max([*ends, 1e-3]), BUCKETS + 1)
