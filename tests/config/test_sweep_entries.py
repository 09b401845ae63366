"""`sweep:` of a job file: what is wrong is told in one message, and before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.config import jobfile
from headgate.model import records
from headgate.model.errors import InvalidFileError
from headgate.model.jobs import Job
from headgate.model.sweeps import StopEarly


def load(folder: Path, sweep: str, more: str = "") -> list[Job]:
    (folder / "train.py").touch()
    file = folder / "jobs.yaml"
    file.write_text(f"jobs:\n  - script: train.py\n    sweep: {sweep}\n{more}")
    return jobfile.load(str(file))


@pytest.mark.parametrize(
    ("sweep", "key", "told"),
    [
        ("{grid: {a: 0..999999999}}", "grid.a", "these are 1,000,000,000 values"),
        ("{grid: {a: 0..999, b: 0..999, c: 0..999}}", "most", "1,000,000,000 combinations"),
        ("{grid: {a: 0..9}, most: 9}", "most", "state `most: 10`"),
        ("{}", "grid", "a sweep of nothing"),
        ("{grid: {a: []}}", "grid.a", "at least one value"),
        ("{grid: {a: [1e-3, 0.001]}}", "grid.a", "0.001 is given twice"),
        ("{gird: {a: 1}}", "", "did you mean 'grid'?"),
        ("{grid: {a: 5..}}", "grid.a", "a range of whole numbers"),
        ("{grid: {a: 9..0}}", "grid.a", "expected 0..9"),
        ("{grid: {a: 0..9..0}}", "grid.a", "a range of whole numbers"),
        ("{grid: {a: 1..2}, exclude: [{a: 1}, {a: 2}]}", "exclude", "leaves out every"),
        ("{grid: {a: 1..2}, exclude: [{b: 1}]}", "exclude", "found 'b'"),
        ("{grid: {a: 1..2}, exclude: [{a: 3}]}", "exclude", "none of its values"),
        ("{zip: {a: 1..2, b: 1..3}}", "zip", "2 of a, 3 of b"),
        ("{list: [{a: 1}, {a: 1.0}]}", "list", "found a 1.0 twice"),
        ("{grid: {a: 1}, zip: {a: 2}}", "grid", "'a' in two places"),
        ("{grid: {a-b: 1}, as: environment}", "as", "'a-b'"),
        ("{grid: {--a: 1}}", "grid.--a", "a parameter's name"),
        ("{grid: {a: 1}, stop_early: {rule: best}}", "stop_early.rule", "'median'"),
        ("{grid: {a: 1}, stop_early: {keep: 0}}", "stop_early.keep", "1"),
        ("{grid: {a: 1}, stop_early: {metric: x}}", "stop_early", "metric: x, better: lower"),
    ],
)
def test_a_wrong_sweep_has_one_message(tmp_path: Path, sweep: str, key: str, told: str) -> None:
    with pytest.raises(InvalidFileError) as raised:
        load(tmp_path, sweep)
    [problem] = raised.value.problems
    assert problem.where == ".".join(filter(None, ("jobs[0].sweep", key)))
    assert problem.line == 3
    assert told in str(problem)


def test_what_comes_after_a_sweep_comes_after_all_its_jobs(tmp_path: Path) -> None:
    *swept, last = load(tmp_path, "{grid: {a: [010, yes]}}", "  - {run: echo, after: train}\n")
    assert [job.args for job in swept] == [("--a", "010"), ("--a", "yes")]
    assert last.forerunners == ("train-a-010", "train-a-yes")


def test_ten_thousand_jobs_are_read_from_a_few_lines(tmp_path: Path) -> None:
    jobs = load(tmp_path, "{grid: {lr: [0.1, 0.01], seed: 0..4999}}")
    assert len({job.name for job in jobs}) == 10_000


def test_a_job_that_is_named_as_one_of_a_sweep_is_told_of(tmp_path: Path) -> None:
    with pytest.raises(InvalidFileError, match="as a job of a sweep is called"):
        load(tmp_path, "{grid: {a: 1}}", "  - {run: echo, name: train-a-1}\n")


def test_each_job_has_the_rule_that_may_end_it(tmp_path: Path) -> None:
    stated = "{grid: {a: 1..2}, stop_early: {rule: asha, metric: val_acc, keep: 2}}"
    jobs = load(tmp_path, stated, "    progress: {metric: x, better: lower}\n")
    rules = [job.trial.stop_early for job in jobs if job.trial is not None]
    assert rules == [StopEarly("asha", "val_acc", 2)] * 2
    [job] = load(tmp_path, "{grid: {a: 1}, stop_early: {}}")
    assert job.trial is not None and job.trial.stop_early == StopEarly("predicted", None, 1)
    assert records.parse(Job, records.plain(job)) == job
