"""How the jobs of a run shared its machines, as a table and sentences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from headgate.diagnosis.fairness import (
    Dominance,
    JobSharing,
    MissingRate,
    RunSharing,
    shared_nodes,
    shares_of,
)
from headgate.diagnosis.fairness import sharing as found_of
from headgate.model.units import counted, say_percent
from headgate.recorded.recording import Recording
from headgate.reports.explained import MOST_IN_FULL
from headgate.reports.history import OtherRuns
from headgate.reports.templates import Markup, render
from headgate.reports.words import MISSING, listed

_LACKS: Mapping[MissingRate | None, str] = {
    MissingRate.OWN_STEPS: (
        "at least three reports of its steps, such as lines with `step N` or `epoch N`"
    ),
    MissingRate.ALONE: (
        "an earlier run alone on this machine: run the job once by itself, while programs outside "
        "Headgate use less than a tenth of the cores"
    ),
}
_MOST_ROWS = 6
"""Rows of very many jobs."""
_SLICE_MOST = 0.95
"""A share above this fraction of a job's nodes is no slice."""


def shared(run: Recording) -> RunSharing | None:
    """Each job's part compared with its share, from other runs of it; None: no two jobs ran at the
    same time.
    """
    first = found_of(run.jobs, run.nodes, run.seconds, {}, {})
    if first is None:
        return None
    others = OtherRuns(run)
    alone = {job.name: rate for job in run.jobs if (rate := others.alone(job)) is not None}
    slices = {}
    nodes = shared_nodes(run.jobs, run.nodes)
    cores = sum(node.cores or 0.0 for node in nodes) / max(len(nodes), 1)
    shares = shares_of(run.jobs, first.machines, run.seconds)
    for job in run.jobs:
        machines = shares[job.name]
        if (
            cores
            and machines <= _SLICE_MOST
            and (rate := others.alone(job, machines * cores)) is not None
        ):
            slices[job.name] = rate
    return found_of(run.jobs, run.nodes, run.seconds, alone, slices)


def as_json(sharing: RunSharing | None) -> dict[str, Any] | None:
    if sharing is None:
        return None
    jobs = [
        {**asdict(job), "lacks": _LACKS.get(job.lacks, ""), "lacks_kind": job.lacks}
        for job in sharing.jobs
    ]
    return {**asdict(sharing), "jobs": jobs}


def tell(sharing: RunSharing, console: Console, *, full: bool = False) -> None:
    """Print a row for each job, then sentences about all of them. Of very many jobs, rows of those
    that got least of their share, unless `full`.
    """
    rows = sharing.jobs
    if not full and len(rows) > MOST_IN_FULL:
        least = sorted(rows, key=lambda job: 1.0 if job.got is None else job.got)
        rows = tuple(least[:_MOST_ROWS])
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("Its share")
    known = any(job.got is not None for job in sharing.jobs)
    for name in ("Machines", "Got of it", "90 % band") if known else ("Machines",):
        table.add_column(name, justify="right")
    if known:
        table.add_column("Against")
    for job in rows:
        part = say_percent(job.got) if job.got is not None else MISSING
        got = (part, band(job), against(job)) if known else ()
        table.add_row(Text(job.job), f"{job.machines:.2g}", *got)
    console.print(table)
    if len(rows) < len(sharing.jobs):
        console.print(f"  and {len(sharing.jobs) - len(rows)} more jobs")
    for sentence in sentences(sharing):
        console.print(Text(sentence), soft_wrap=not console.is_terminal)


def section(run: Recording) -> Markup | None:
    """The same for the HTML report."""
    sharing = shared(run)
    if sharing is None:
        return None
    columns = (
        ("Job", "text", ""),
        ("Machines", "", "its share: m machines over the n jobs that ran at the same time"),
        ("Got of it", "", "steps that it made, over those that its share gives"),
        ("90 % band", "text", ""),
        ("Against", "text", "other runs of the same job alone"),
    )
    rows = [(job, band(job), against(job)) for job in sharing.jobs]
    return render("sharing.html", columns=columns, rows=rows, sentences=sentences(sharing))


def band(job: JobSharing) -> str:
    return (
        f"{say_percent(job.low)} to {say_percent(job.high)}"
        if job.low is not None and job.high is not None
        else ""
    )


def against(job: JobSharing) -> str:
    if job.against is None:
        return MISSING
    return f"{counted(job.runs, 'run')} {'alone' if job.against == 'alone' else 'on such a slice'}"


def sentences(sharing: RunSharing) -> list[str]:
    """Sentences about jobs that got less than their share, or dominated a scarce resource."""
    where = "one machine" if sharing.machines == 1 else f"{sharing.machines} machines"
    lines = [f"Up to {sharing.most_jobs} jobs at a time shared {where}."]
    short = [
        (job.got, f"{job.job} got {say_percent(job.got)} of what its share gives ({band(job)}).")
        for job in sharing.jobs
        if job.got is not None and job.high is not None and job.high < 1.0
    ]
    if len(short) > MOST_IN_FULL:
        left = len(short) - _MOST_ROWS
        short = [*sorted(short)[:_MOST_ROWS], (1.0, f"{left} more jobs got less than theirs, too.")]
    lines += [sentence for _, sentence in short]
    for kind, missing in _LACKS.items():
        if names := [job.job for job in sharing.jobs if job.lacks is kind]:
            lines.append(f"What {listed(names)} got of it is not known: it takes {missing}.")
    lines += [_dominates(dominate) for dominate in sharing.dominates]
    if not sharing.dominates:
        lines.append(
            "No job took more than an equal part of what others waited for, beyond the noise."
        )
    return lines


def _dominates(dominance: Dominance) -> str:
    resource_name = {
        "cores": "core time",
        "disk": "disk transfers",
        "network": "network transfers",
    }[dominance.resource]
    band = f"{say_percent(dominance.low)} to {say_percent(dominance.high)}"
    took = (
        f"{dominance.job} had {say_percent(dominance.part)} ({band}) of all jobs' {resource_name} "
        f"on {dominance.node}, where others waited for it"
    )
    return f"{took}; an equal part is {say_percent(dominance.equal)}."
