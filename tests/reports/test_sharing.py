"""How jobs shared the machines, as it is told."""

from __future__ import annotations

import io
import re
from dataclasses import replace

from rich.console import Console

from headgate.diagnosis.fairness import JobSharing, MissingRate, RunSharing
from headgate.reports import sharing

NOT_ALONE = JobSharing("a", 0.5, None, None, None, None, 0, MissingRate.ALONE)
KNOWN = JobSharing("c", 0.5, 0.8, 0.7, 0.9, "alone", 3, None)


def told(*jobs: JobSharing) -> list[str]:
    out = io.StringIO()
    sharing.tell(RunSharing(1, len(jobs), jobs, ()), Console(file=out, width=100))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def cells(row: str) -> list[str]:
    return re.split(" {2,}", row)


def test_what_lacks_for_a_figure_is_told_once_for_all_jobs_that_lack_it() -> None:
    lines = told(NOT_ALONE, replace(NOT_ALONE, job="b"))
    assert lines[:3] == ["Its share  Machines", "a               0.5", "b               0.5"]
    lacking = "What a and b got of it is not known: it takes an earlier run alone on this machine"
    assert lines[4].startswith(lacking)
    assert not any(line.startswith("What b") for line in lines)


def test_json_says_what_lacks_as_a_kind_too() -> None:
    printed = sharing.as_json(RunSharing(1, 2, (NOT_ALONE, KNOWN), ()))
    assert printed is not None
    lacking, known = printed["jobs"]
    assert lacking["lacks_kind"] == "alone" and lacking["lacks"].startswith("an earlier run")
    assert (known["lacks_kind"], known["lacks"]) == (None, "")


def test_beside_a_job_with_a_figure_one_without_has_a_dash() -> None:
    header, first, second, *_ = told(NOT_ALONE, KNOWN)
    assert header.split("  ")[-1].strip() == "Against"
    assert cells(first) == ["a", "0.5", "–", "–"]
    assert cells(second) == ["c", "0.5", "80 %", "70 % to 90 %", "3 runs alone"]


def test_of_very_many_jobs_those_are_told_that_got_least_of_their_share() -> None:
    jobs = [replace(KNOWN, job=f"j{i}", got=0.5 + i / 1000, high=0.9) for i in range(40)]
    lines = told(*jobs)
    assert [cells(line)[0] for line in lines[1:7]] == [f"j{i}" for i in range(6)]
    assert lines[7] == "  and 34 more jobs"
    assert [line.split(" ")[0] for line in lines[9:15]] == [f"j{i}" for i in range(6)]
    assert lines[15] == "34 more jobs got less than theirs, too."
