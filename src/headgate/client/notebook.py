"""What notebooks show: tables, and the drawings of reports.

A drawing is a page in a frame of its own, as a report is: cells do not disturb each other, and
nothing is fetched. Where a notebook is not trusted, the frame is left out and the table stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING

from headgate.model.units import say_bytes, say_seconds
from headgate.recorded.runs import RunSummary
from headgate.recorded.status import JobStatus, RunStatus

if TYPE_CHECKING:
    from headgate.diagnosis.account import Account
    from headgate.recorded.recording import Recording
    from headgate.reports.compared import Comparison
    from headgate.reports.figures import Plot
    from headgate.reports.templates import Markup

_HEADINGS = ("job", "state", "took", "step", "loss", "share", "CPU", "memory", "why")
_MOST_ROWS = 50


def runs_table(runs: Sequence[RunSummary]) -> str:
    """The latest runs as HTML, the latest first."""
    rows = [
        (
            run.id,
            run.state,
            f"{datetime.fromtimestamp(run.began).astimezone():%Y-%m-%d %H:%M}",
            say_seconds(run.took) if run.took is not None else "",
            ", ".join(job.name for job in run.jobs[:4]) + (" …" if len(run.jobs) > 4 else ""),
        )
        for run in reversed(runs[-_MOST_ROWS:])
    ]
    caption = f"{len(runs)} run{'' if len(runs) == 1 else 's'}"
    return _table(caption, ("run", "state", "began", "took", "jobs"), rows)


def table(run: RunStatus) -> str:
    """The state of a run's jobs as HTML; columns that are empty for all jobs are left out."""
    left = len(run.jobs) - _MOST_ROWS
    more = f"; {left} more jobs" if left > 0 else ""
    caption = f"run {run.id}: {run.state}, policy {run.policy}{more}"
    return _table(caption, _HEADINGS, [_row(job) for job in run.jobs[:_MOST_ROWS]])


def course(recording: Recording, prediction: Plot | None = None) -> str:
    """What held the jobs of a run back, and their shares above their losses.

    Args:
        recording: The run.
        prediction: Of its only job; None: it has several, or reported no loss.
    """
    from headgate.reports import figures, html, sections
    from headgate.reports.explained import explained

    run = replace(recording, jobs=html.shown_jobs(recording))
    entitled = figures.entitled_plot(run)
    losses = figures.loss_plots(run)[:1] if prediction is None else [prediction]
    plots = [*([entitled] if entitled is not None else ()), *losses]
    verdicts = sections.verdicts(run, explained(run))
    return _frame(f"Run {run.id}", [verdicts], plots, run.seconds)


def explanation(recording: Recording, accounts: Sequence[Account]) -> str:
    """What held jobs of a run back, and where their time went."""
    from headgate.reports import sections

    parts = [sections.verdicts(recording, accounts), sections.accounts(recording.jobs, accounts)]
    return _frame(f"What held jobs of run {recording.id} back", parts, [], recording.seconds)


def comparison(pair: Comparison) -> str:
    """Two runs compared."""
    from headgate.reports import compared

    return _frame("{} against {}".format(*pair.runs), [compared.section(pair)], [], 0.0)


def drawn(title: str, plot: Plot) -> str:
    """A plot alone."""
    return _frame(title, [], [plot], 0.0)


def _frame(
    title: str, parts: Sequence[Markup | None], plots: Sequence[Plot], seconds: float
) -> str:
    """A page in a frame; its script makes the frame as high as what it shows."""
    from headgate.reports import html
    from headgate.reports.frames import frames, payload
    from headgate.reports.templates import Markup

    shown = [part for part in (*parts, frames(plots, "stack")) if part is not None]
    data = {"seconds": seconds, "plots": payload(plots)}
    page = html.document(title, Markup("").join(shown), data)
    return in_frame(title, page)


def in_frame(title: str, page: str) -> str:
    """A whole page as a part of another."""
    style = "width: 100%; height: 40em; max-height: 60em; border: 0"
    return f'<iframe title="{escape(title)}" srcdoc="{escape(str(page))}" style="{style}"></iframe>'


def _table(caption: str, headings: Sequence[str], of_rows: Sequence[tuple[str, ...]]) -> str:
    columns = [column for column in zip(headings, *of_rows) if any(column[1:])]
    head, *rows = zip(*columns) if columns else [()]
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    head_row = f"<tr>{_cells('th', head)}</tr>"
    return f"<table><caption>{escape(caption)}</caption>{head_row}{body}</table>"


def _cells(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)


def _row(job: JobStatus) -> tuple[str, ...]:
    took = (
        say_seconds(job.ended - job.started)
        if job.started is not None and job.ended is not None
        else ""
    )
    return (
        job.name,
        job.state,
        took,
        _number(job.step, "d"),
        "nan" if job.nan else _number(job.loss, ".4g"),
        _number(job.entitled_cores, ".2f", " cores"),
        _number(job.cpu_cores, ".2f"),
        say_bytes(job.memory_bytes) if job.memory_bytes is not None else "",
        job.reason,
    )


def _number(value: float | None, form: str, unit: str = "") -> str:
    return f"{value:{form}}{unit}" if value is not None else ""
