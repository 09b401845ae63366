"""Tables for notebooks."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from headgate.model.units import say_bytes, say_seconds
from headgate.recorded.status import JobStatus, RunStatus

_HEADINGS = ("job", "state", "took", "step", "loss", "share", "CPU", "memory", "why")


def table(run: RunStatus) -> str:
    """An HTML table of the state of each job of a run."""
    caption = f"run {run.id}: {run.state}, policy {run.policy}"
    rows = "".join(f"<tr>{_cells('td', _row(job))}</tr>" for job in run.jobs)
    head = f"<tr>{_cells('th', _HEADINGS)}</tr>"
    return f"<table><caption>{escape(caption)}</caption>{head}{rows}</table>"


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
