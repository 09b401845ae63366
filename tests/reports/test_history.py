"""How fast a job was alone, from runs that were recorded before."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.diagnosis.made_up import MadeUp, recording

from headgate.diagnosis.fairness import AloneRate
from headgate.diagnosis.verdicts import findings, verdict
from headgate.recorded import runs
from headgate.recorded.recording import Recording, read
from headgate.reports.explained import explained
from headgate.reports.findings import why
from headgate.reports.history import OtherRuns
from headgate.reports.remedies import next_step

SCRIPT = {
    "run": None,
    "script": "/home/me/train.py",
    "args": ["--epochs", "5"],
    "workdir": "/home/me",
}


def record(
    home: Path,
    hour: int,
    jobs: dict[str, MadeUp],
    spec: dict[str, Any] = SCRIPT,
    outside: float = 0.0,
) -> Recording:
    """A run that began at that hour; the specification is that of each of its jobs."""
    folder = home / "runs" / f"20260314-{hour:02}0000-000"
    folder.mkdir(parents=True)
    recording(folder / runs.STORE, jobs, outside=outside)
    with sqlite3.connect(folder / runs.STORE) as db:
        db.execute("UPDATE meta SET value = ? WHERE key = 'began'", (str(hour * 3600.0),))
        for key, value in spec.items():
            db.execute(
                f"UPDATE jobs SET spec = json_set(spec, '$.{key}', json(?))", (json.dumps(value),)
            )
    return read(folder / runs.STORE)


def before(run: Recording, cores: float | None = None) -> AloneRate | None:
    return OtherRuns(run).alone(run.jobs[0], cores)


@pytest.mark.parametrize("counter", ["step", "epoch"])
def test_earlier_runs_alone_tell_how_fast_it_was(home: Path, counter: str) -> None:
    record(home, 1, {"a": MadeUp(ran=1.0, steps=10.0, counter=counter)})
    one = before(record(home, 2, {"a": MadeUp(ran=1.0, steps=11.0, counter=counter)}))
    assert one is not None
    assert (one.runs, one.nodes) == (1, 1)
    assert one.steps_per_second == pytest.approx(10.0, rel=0.02)
    two = before(record(home, 3, {"a": MadeUp(ran=1.0), "b": MadeUp(ran=1.0)}))
    assert two is not None
    assert two.runs == 2
    assert two.steps_per_second == pytest.approx(10.5, rel=0.02)
    assert two.low < 10.0 < 11.0 < two.high


def test_what_a_job_lost_by_fewer_threads_is_told_once_it_has_run_alone_though_that_was_later(
    home: Path,
) -> None:
    job = MadeUp(ran=1.0, threads={0: 1})
    run = record(home, 1, {"a": job, "b": MadeUp(ran=1.0, threads={0: 2})})
    assert verdict(explained(run, "a")[0]).kind == "not-known"
    record(home, 2, {"a": MadeUp(ran=2.0, steps=16.0, threads={0: 2})})
    [account] = explained(run, "a")
    assert account.around.grant is not None
    assert account.around.grant.source == "runs-alone"
    assert account.around.grant.lost.low <= 40 * (1 - 10 / 16) <= account.around.grant.lost.high


def test_a_job_of_another_name_that_is_the_same_counts(home: Path) -> None:
    record(home, 1, {"trial": MadeUp(ran=1.0)})
    assert before(record(home, 2, {"a": MadeUp(ran=1.0)})) is not None


@pytest.mark.parametrize(
    ("jobs", "spec", "outside"),
    [
        ({"a": MadeUp(ran=1.0), "b": MadeUp(ran=1.0)}, SCRIPT, 0.0),
        ({"a": MadeUp(ran=1.0)}, SCRIPT | {"args": ["--epochs", "6"]}, 0.0),
        ({"a": MadeUp(ran=1.0)}, SCRIPT | {"workdir": "/elsewhere"}, 0.0),
        ({"a": MadeUp(ran=1.0)}, SCRIPT, 0.5),
        ({"a": MadeUp(ran=1.0, steps=0.0)}, SCRIPT, 0.0),
        ({"a": MadeUp(ran=1.0, limits={"cores": 1.0})}, SCRIPT, 0.0),
        ({"a": MadeUp(ran=1.0, end=3)}, SCRIPT, 0.0),
    ],
    ids=[
        "beside another",
        "other arguments",
        "elsewhere",
        "programs outside",
        "no steps",
        "another limit",
        "too short",
    ],
)
def test_other_jobs_and_runs_that_were_not_alone_tell_nothing(
    home: Path, jobs: dict[str, MadeUp], spec: dict[str, Any], outside: float
) -> None:
    record(home, 1, jobs, spec, outside)
    assert before(record(home, 2, {"a": MadeUp(ran=1.0)})) is None


def test_a_run_on_nodes_of_another_size_or_another_nic_tells_nothing(home: Path) -> None:
    record(home, 1, {"a": MadeUp(ran=1.0)})
    run = record(home, 2, {"a": MadeUp(ran=1.0)})
    assert before(run) is not None
    others: tuple[dict[str, Any], ...] = ({"cores": 1.0}, {"nic_bytes_per_second": 2.5e7})
    for other in others:
        assert before(replace(run, nodes=(replace(run.nodes[0], **other),))) is None


def test_a_run_on_a_slice_is_found_by_its_limit_of_cores(home: Path) -> None:
    record(home, 1, {"a": MadeUp(ran=1.0, steps=4.0, limits={"cores": 1.0})})
    run = record(home, 2, {"a": MadeUp(ran=1.0)})
    sliced = before(run, 1.02)
    assert sliced is not None and sliced.steps_per_second == pytest.approx(4.0, rel=0.02)
    assert before(run, 1.5) is None


def test_two_runs_at_the_same_time_were_not_alone_and_a_damaged_one_is_passed_over(
    home: Path,
) -> None:
    first = record(home, 1, {"a": MadeUp(ran=1.0)})
    record(home, 2, {"a": MadeUp(ran=1.0)})
    with sqlite3.connect(home / "runs" / "20260314-020000-000" / runs.STORE) as db:
        db.execute(
            "UPDATE meta SET value = ? WHERE key = 'began'", (repr(first.description.began),)
        )
    (home / "runs" / "20260314-030000-000").mkdir()
    (home / "runs" / "20260314-030000-000" / runs.STORE).write_bytes(b"no store")
    run = record(home, 4, {"a": MadeUp(ran=1.0)})
    assert before(run) is None


def test_a_job_slower_than_its_earlier_runs_is_told_by_how_much_and_what_differs(
    home: Path,
) -> None:
    record(home, 1, {"a": MadeUp(ran=1.0, steps=10.0)})
    record(home, 2, {"a": MadeUp(ran=1.0, steps=10.0)})
    run = record(home, 3, {"a": MadeUp(ran=1.0, steps=5.0)}, {**SCRIPT, "retries": 3})
    [account] = explained(run)
    told = verdict(account)
    assert told.kind == "slower-than-before"
    assert told.facts.times == pytest.approx(2.0)
    assert told.facts.runs == ("20260314-020000-000", "20260314-010000-000")
    assert told.cost.seconds == pytest.approx(20.0, abs=1.0)
    says = why(told, account)
    assert says.startswith("A step of a takes 100 % longer than in the last 2 runs of the same")
    assert "retries 0 → 3" in says
    assert "20260314-020000-000" in next_step(told, account)


def granted(home: Path, number: int, cores: float) -> Recording:
    """A run whose job was granted so many cores."""
    store = home / "runs" / f"20260314-{number:02}0000-000" / runs.STORE
    with sqlite3.connect(store) as db:
        db.execute("UPDATE shares SET entitled_cores = ?", (cores,))
    return read(store)


@pytest.mark.parametrize(("steps", "kind"), [(6.0, "healthy"), (3.0, "slower-than-before")])
def test_half_the_cores_explain_up_to_twice_the_time(home: Path, steps: float, kind: str) -> None:
    record(home, 1, {"a": MadeUp(ran=1.0, steps=10.0)})
    record(home, 2, {"a": MadeUp(ran=1.0, steps=steps)})
    granted(home, 1, 2.0)
    [account] = explained(granted(home, 2, 1.0))
    assert [finding.kind for finding in findings(account)] == [
        kind,
        *(["slower-than-before"] if kind == "healthy" else []),
    ]
    assert "cores granted 2.0 → 1.0" in why(findings(account)[-1], account)


@pytest.mark.parametrize(
    ("earlier", "spec"),
    [
        (MadeUp(ran=1.0, steps=5.2), SCRIPT),
        (MadeUp(ran=1.0, steps=2.0), SCRIPT),
        (MadeUp(ran=1.0, steps=10.0), SCRIPT | {"args": ["--epochs", "6"]}),
        (MadeUp(ran=1.0, steps=10.0, end=2), SCRIPT),
    ],
    ids=["hardly slower", "faster", "another script", "too few steps"],
)
def test_no_other_job_is_told_as_slower(home: Path, earlier: MadeUp, spec: dict[str, Any]) -> None:
    record(home, 1, {"a": earlier}, spec)
    run = record(home, 3, {"a": MadeUp(ran=1.0, steps=5.0)})
    record(home, 4, {"a": MadeUp(ran=1.0, steps=10.0)})  # a later one
    [account] = explained(run)
    assert account.around.slower is None
