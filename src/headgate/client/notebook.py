"""Tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from headgate.model.units import say_bytes, say_seconds
from headgate.recorded.status import JobStatus, RunStatus

_HEADINGS = ("job", "state", "took", "step", "loss", "share", "CPU", "memory", "why")


def table(run: RunStatus) -> str:
    """The state of a run's jobs as HTML; columns that are empty for all jobs are left out."""
    caption = f"run {run.id}: {run.state}, policy {run.policy}"
    columns = [column for column in zip(_HEADINGS, *map(_row, run.jobs)) if any(column[1:])]
    head, *rows = zip(*columns)
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
