"""How jobs shared the machines, as it is told."""

from __future__ import annotations

import io
from dataclasses import replace

from rich.console import Console

from headgate.diagnosis.fairness import JobSharing, RunSharing
from headgate.reports import sharing

NOT_ALONE = JobSharing("a", 0.5, None, None, None, None, 0, "an earlier run alone")
KNOWN = JobSharing("c", 0.5, 0.8, 0.7, 0.9, "alone", 3, "")


def told(*jobs: JobSharing) -> list[str]:
    out = io.StringIO()
    sharing.tell(RunSharing(1, len(jobs), jobs, ()), Console(file=out, width=100))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_what_lacks_for_a_figure_is_told_once_for_all_jobs_that_lack_it() -> None:
    lines = told(NOT_ALONE, replace(NOT_ALONE, job="b"))
    assert lines[:3] == ["Its share  Machines", "a               0.5", "b               0.5"]
    assert lines[4] == "What a and b got of it is not known: it takes an earlier run alone."


def test_beside_a_job_with_a_figure_one_without_has_a_dash() -> None:
    header, first, second, *_ = told(NOT_ALONE, KNOWN)
    assert header.split("  ")[-1].strip() == "Against"
    assert first.split() == ["a", "0.5", "–", "–"]
    assert second.split() == ["c", "0.5", "80%", "70%", "to", "90%", "3", "runs", "alone"]
