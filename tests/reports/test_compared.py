"""`headgate compare`, on runs of which every number is known."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from tests.diagnosis.made_up import MadeUp, recording, typed

from headgate.cli.compare import command
from headgate.diagnosis.findings import Difference
from headgate.diagnosis.step_times import UsualStep, of_reports, ratio
from headgate.model.errors import NotFoundError
from headgate.reports.compared import differences

CROWDED = {"a": MadeUp(ran=0.5, waited=0.5, steps=5.0), "b": MadeUp(ran=1.5)}
ALONE = {"a": MadeUp(ran=1.0, end=20, limits={"cores": 2})}


def made(home: Path, id: str, jobs: Mapping[str, MadeUp], **meta: str) -> None:
    """A finished run in the home, with what else is to be kept of it."""
    folder = home / "runs" / id
    for name in jobs:
        (folder / "jobs" / name).mkdir(parents=True)
    recording(folder / "run.sqlite", jobs)
    with sqlite3.connect(folder / "run.sqlite") as db:
        for key, value in {"id": id, **meta}.items():
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))


def told(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False).stdout
    )
    return found


def test_it_says_what_differs_and_where_the_time_went(home: Path) -> None:
    made(
        home,
        "20260314-0900-aaaa",
        CROWDED,
        git_commit="0123",
        packages=json.dumps({"python": ["torch==2.12"]}),
    )
    made(
        home,
        "20260315-0900-bbbb",
        ALONE,
        git_commit="4567",
        packages=json.dumps({"python": ["torch==2.13"]}),
    )
    found = told("aaaa", "bbbb")
    assert [tuple(each.values()) for each in found["differs"]] == [
        ("git commit", "0123", "4567"),
        ("torch", "2.12", "2.13"),
    ]
    assert found["only"] == [["b"], []]
    (job,) = found["jobs"]
    assert [tuple(each.values()) for each in job["differs"]] == [
        ("limits.cores", "", "2"),
        ("neighbours", "b", ""),
    ]
    time = {shift["part"]: shift for shift in job["time"]}
    assert time["elapsed"]["difference"] == pytest.approx(-20.0)
    assert time["neighbours"]["difference"] == pytest.approx(-20.0, rel=0.05)
    assert time["neighbours"]["low"] < -20.0 < time["neighbours"]["high"] < 0.0
    assert [part for part, shift in time.items() if shift["beyond_noise"]] == [
        "elapsed",
        "neighbours",
    ]
    assert job["steps_per_second"] == [pytest.approx(5.0), pytest.approx(10.0)]


def test_how_jobs_compute_is_compared(tmp_path: Path) -> None:
    run = recording(tmp_path / "run.sqlite", {"a": MadeUp(ran=1.0)})
    [job] = run.jobs
    cast = typed(job, {"profile": {"compiled": True, "autocast": "bfloat16"}})
    found = differences((run, job), (run, cast))
    assert Difference("computes", "", "compiled and autocast to bfloat16") in found


def test_a_run_against_itself_differs_in_nothing(home: Path) -> None:
    made(home, "20260314-0900-aaaa", CROWDED)
    found = told("aaaa", "aaaa")
    assert found["differs"] == [] and found["only"] == [[], []]
    for job in found["jobs"]:
        assert job["differs"] == []
        assert not any(shift["beyond_noise"] for shift in job["time"])


def test_one_job_is_compared_with_one_of_another_name(home: Path) -> None:
    made(home, "20260314-0900-aaaa", {"a": MadeUp(ran=1.0)})
    made(home, "20260315-0900-bbbb", {"c": MadeUp(ran=1.0)})
    assert [job["job"] for job in told("aaaa", "bbbb")["jobs"]] == ["a against c"]


def test_for_people_it_is_a_table_a_job(home: Path) -> None:
    made(home, "20260314-0900-aaaa", CROWDED)
    made(home, "20260315-0900-bbbb", ALONE)
    lines = (
        CliRunner().invoke(command, ["aaaa", "bbbb"], catch_exceptions=False).stdout.splitlines()
    )
    assert lines[0] == "20260314-0900-aaaa against 20260315-0900-bbbb"
    assert "  only in 20260314-0900-aaaa: b" in lines
    assert "  neighbours: b → –" in lines
    (row,) = (line for line in lines if line.startswith("  neighbours ") and "→" not in line)
    assert row.rstrip().endswith("beyond the noise")


def test_a_run_that_is_not_there_is_one_message(home: Path) -> None:
    made(home, "20260314-0900-aaaa", CROWDED)
    with pytest.raises(NotFoundError, match="no run 'nothing'"):
        told("aaaa", "nothing")


def test_large_rates_and_hardly_any_difference_are_told_as_people_write_them(home: Path) -> None:
    made(home, "20260314-0900-aaaa", {"a": MadeUp(ran=1.0, steps=1520.0)})
    made(home, "20260315-0900-bbbb", {"a": MadeUp(ran=1.0, steps=1520.0)})
    with sqlite3.connect(home / "runs" / "20260314-0900-aaaa" / "run.sqlite") as db:
        db.execute("UPDATE jobs SET ended = ended + 0.04")
    said = CliRunner().invoke(command, ["aaaa", "bbbb"], catch_exceptions=False).stdout
    assert "1,520/s" in said and "+0.0 s" in said and "-0.0 s" not in said


def test_values_have_their_units_and_differences_those_of_what_they_are_of(home: Path) -> None:
    first = {"cores": 0.1 + 0.2, "memory_bytes": 1 << 30}
    made(home, "20260314-0900-aaaa", {"a": MadeUp(ran=1.0, end=30, limits=first)})
    made(
        home,
        "20260315-0900-bbbb",
        {"a": MadeUp(ran=1.0, end=120, limits={"cores": 2.0, "memory_bytes": 3 << 29})},
    )
    [job] = told("aaaa", "bbbb")["jobs"]
    differs = {each["what"]: (each["first"], each["second"]) for each in job["differs"]}
    assert differs["limits.cores"] == ("0.3", "2")
    assert differs["limits.memory_bytes"] == ("1 GiB", "1.5 GiB")
    said = CliRunner().invoke(command, ["aaaa", "bbbb"], catch_exceptions=False).stdout
    [elapsed] = (line for line in said.splitlines() if line.startswith("  elapsed"))
    assert "2 min 0 s" in elapsed and "+1 min 30 s" in elapsed


@pytest.mark.parametrize(
    ("rate", "code", "says"),
    [
        (8.0, 1, "slower by more than 10 %: a: +25.0 % time a step (90 % band: +"),
        (10.0, 0, "not slower by more than 10 %: a: +0.0 % time a step"),
        (9.0, 10, "cannot be told whether it is slower by more than 10 %: a: +11.1 % time a step"),
    ],
)
@pytest.mark.parametrize("limit", ["10%", "0.1"])
def test_a_slower_run_fails_in_ci(
    home: Path, limit: str, rate: float, code: int, says: str
) -> None:
    made(home, "20260314-0900-aaaa", {"a": MadeUp(ran=1.0, steps=10.0)})
    made(home, "20260315-0900-bbbb", {"a": MadeUp(ran=1.0, steps=rate)})
    result = CliRunner().invoke(command, ["aaaa", "bbbb", "--fail-if-slower", limit])
    assert (result.exit_code, result.stdout.count("\n")) == (code, 1)
    assert result.stdout.startswith(says)
    result = CliRunner().invoke(command, ["aaaa", "bbbb", "--json", "--fail-if-slower", limit])
    judged = json.loads(result.stdout)["fail_if_slower"]
    assert (result.exit_code, judged["limit"]) == (code, 0.1)
    assert judged["why"].startswith(says)
    assert judged["jobs"] == {"a": judged["result"]}


def test_a_run_with_few_steps_cannot_be_told(home: Path) -> None:
    made(home, "20260314-0900-aaaa", {"a": MadeUp(ran=1.0, steps=10.0)})
    made(home, "20260315-0900-bbbb", {"a": MadeUp(ran=1.0, steps=0.4)})
    result = CliRunner().invoke(command, ["aaaa", "bbbb", "--fail-if-slower", "10%"])
    assert result.exit_code == 10 and "it takes 20 reported steps" in result.stdout
    made(home, "20260315-0901-cccc", {"b": MadeUp(ran=1.0), "c": MadeUp(ran=1.0)})
    result = CliRunner().invoke(command, ["aaaa", "cccc", "--fail-if-slower", "10%"])
    assert result.exit_code == 10 and "has the name" in result.stdout


@pytest.mark.parametrize("limit", ["ten", "-1%", "nan", ""])
def test_a_limit_that_is_no_part_is_refused(home: Path, limit: str) -> None:
    made(home, "20260314-0900-aaaa", {"a": MadeUp(ran=1.0)})
    result = CliRunner().invoke(command, ["aaaa", "aaaa", "--fail-if-slower", limit])
    assert result.exit_code == 2 and "such as 10% or 0.1" in result.stderr


def test_steps_of_other_sizes_are_compared_by_sample() -> None:
    small, large = UsualStep(0.1, 0.01, 32.0), UsualStep(0.22, 0.01, 64.0)
    times = ratio(small, large)
    assert times.per_sample and times.times == pytest.approx(1.1)


def test_the_pauses_of_a_run_do_not_make_its_steps_longer() -> None:
    t = np.arange(1.0, 41.0)
    paused = np.where(t > 20.0, t + 100.0, t)
    steps = [of_reports(at, 10.0 * t, np.full(40, np.nan)) for at in (t, paused)]
    assert steps[0] is not None and steps[1] is not None
    assert steps[1].seconds == pytest.approx(steps[0].seconds)
