"""`headgate results` compares what was recorded of jobs, and `status` folds their sweep."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.hub.user import User

from headgate.cli import results, status, stop
from headgate.client.running_jobs import JobEnd
from headgate.model.jobs import Job
from headgate.model.progress_rule import ProgressRule
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.records import text_of
from headgate.model.sweeps import SweepTrial
from headgate.recorded import runs
from headgate.recorded.store import Recorder

TRAINS = """
    import argparse
    options = argparse.ArgumentParser()
    options.add_argument("--lr", type=float)
    options.add_argument("--seed", type=int)
    options = options.parse_args()
    for step in range(1, 6):
        loss = (2 + options.seed) / (1 + options.lr * step)
        print(f"step {step}/5 loss: {loss:.4f} val_acc: {1 / (1 + loss):.4f}", flush=True)
"""


EARLY = Reason.of(ReasonKind.STOPPED_EARLY, metric="val_err", predicted=[0.4, 0.3, 0.5])


@pytest.fixture
def run(home: Path) -> Path:
    """Three jobs of a sweep, of which `b` runs, and one of none that a rule ended early."""
    (folder := home / "runs" / "20260314-0900-ab12").mkdir(parents=True)
    recorder = Recorder(folder / runs.STORE)
    recorder.add("meta", key="began", value="1773478800.0")
    recorder.add("meta", key="ended", value="60.0")
    losses = {"a": [3.0, 1.0, 2.0], "b": [2.5, 1.5], "c": [], "d": [4.0]}
    for position, (name, course) in enumerate(losses.items()):
        trial = SweepTrial("s", {"lr": 0.1 * (3 - position), "opt": "sgd"}) if name != "d" else None
        rule = ProgressRule("val_err", better="lower")
        job = Job(name=name, run="true", trial=trial, progress=rule)
        recorder.add(
            "jobs",
            name=name,
            position=position,
            spec=text_of(job),
            state={"b": "running", "c": "waiting", "d": "stopped"}.get(name, "done"),
            why=text_of(EARLY) if name == "d" else None,
            started=None if name == "c" else 1.0,
            ended=21.0 if name in "ad" else None,
        )
        for at, loss in enumerate(course):
            metrics = json.dumps({"val_err": loss / 10, "acc": 1 - loss / 10, "lines": at})
            task = f"{name}/worker-0"
            recorder.add("progress", t=float(at), task=task, step=at, loss=loss, metrics=metrics)
    recorder.add("progress", t=9.0, task="d/worker-0", step=9, nan=1)
    recorder.close()
    return folder


def says(command: Any, *words: str) -> str:
    return str(CliRunner().invoke(command, words, catch_exceptions=False).stdout)


@pytest.mark.parametrize(
    ("by", "order"),
    [
        ((), "abdc"),
        (("--sort", "acc"), "abdc"),
        (("--sort", "lr"), "cbad"),
        (("--sort", "job"), "abcd"),
    ],
)
def test_the_best_comes_first(run: Path, by: tuple[str, ...], order: str) -> None:
    rows = json.loads(says(results.command, *by, "--json"))["jobs"]
    assert "".join(row["name"] for row in rows) == order


def test_last_and_best_go_by_the_direction_of_each_metric(run: Path) -> None:
    first, *_, last = json.loads(says(results.command, "--json"))["jobs"]
    assert first["metrics"]["loss"] == {"last": 2.0, "best": 1.0, "better": "lower"}
    assert first["metrics"]["acc"] == {"last": 0.8, "best": 0.9, "better": "higher"}
    assert first["metrics"]["lines"] == {"last": 2.0, "best": None, "better": None}
    assert (first["seconds"], first["metric"], first["nan"]) == (20.0, "val_err", False)
    assert (last["metrics"], last["seconds"]) == ({}, None)


def test_csv_has_a_column_for_each_parameter_and_metric(run: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(says(results.command, "--csv"))))
    assert [row["val_err.best"] for row in rows] == ["0.1", "0.15", "0.4", ""]
    assert (rows[0]["opt"], rows[0]["loss.last"], rows[2]["opt"]) == ("sgd", "2.0", "")


def test_a_job_that_a_rule_ended_keeps_its_last_prediction(run: Path) -> None:
    rows = {row["name"]: row for row in json.loads(says(results.command, "--json"))["jobs"]}
    assert rows["d"]["predicted"] == {"median": 0.4, "low": 0.3, "high": 0.5}
    assert rows["a"]["predicted"] is None
    assert "0.4 (0.3 to 0.5)" in says(results.command)


def test_only_the_first_of_many_are_shown(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_MOST_SHOWN", 2)
    assert "... and 2 more of 4 jobs; --all shows them" in says(results.command)
    assert "... and" not in says(results.command, "--all")


def test_jobs_that_were_stopped_before_they_started_are_one_line() -> None:
    waited = {f"s-{number}": JobEnd("stopped", "by its user", None) for number in range(9)}
    ends = {"ran": JobEnd("stopped", "by its user", {"answer": "ended"}), **waited}
    assert [who for who, _ in stop._folded(ends)] == ["ran", "s-0 and 8 others"]
    assert len(list(stop._folded(dict(list(ends.items())[:4])))) == 4


def test_a_loss_that_is_none_is_said(run: Path) -> None:
    assert "nan" in says(results.command, "--sort", "loss")


def test_an_unknown_column_is_told_of_with_those_that_there_are(run: Path) -> None:
    error = CliRunner().invoke(results.command, ["--sort", "val_er"]).exception
    assert str(error) == "found no column 'val_er'; did you mean 'val_err'?"


def test_status_folds_a_sweep(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "alive", lambda _: True)
    shown = says(status.command)
    assert "sweep s: 3 jobs, 1 done, 1 running, 1 waiting" in shown
    assert [line.split()[0] for line in shown.splitlines()[-2:]] == ["b", "d"]
    unfolded = says(status.command, "--all")
    assert "sweep s" not in unfolded
    assert [line.split()[0] for line in unfolded.splitlines()[-4:]] == list("abcd")
    trials = [job["trial"] for job in json.loads(says(status.command, "--json"))["jobs"]]
    assert trials[0]["sweep"] == "s" and trials[3] is None


def test_a_sweep_is_run_and_its_results_are_compared(user: User) -> None:
    user.write("train.py", TRAINS)
    user.types("run", "train.py", "--sweep", "lr=1e-1,1", "--sweep", "seed=0..1")
    rows = json.loads(user.types("results", "--sort", "val_acc", "--json").stdout)["jobs"]
    assert rows[0]["name"] == "train-lr-1-seed-0"
    assert [row["parameters"] for row in rows] == [
        {"lr": 1, "seed": 0},
        {"lr": 1, "seed": 1},
        {"lr": 0.1, "seed": 0},
        {"lr": 0.1, "seed": 1},
    ]
    assert rows[0]["metrics"]["val_acc"]["best"] == pytest.approx(0.75)


@pytest.mark.parametrize(
    ("swept", "told"),
    [
        (["lr"], "expected a parameter's name"),
        (["lr="], "a value is empty"),
        (["lr=1", "lr=2"], "--sweep lr twice"),
        (["lr=1,1.0"], "1.0 is given twice"),
        (["a=0..999", "b=0..999", "c=0..999"], "1,000,000,000 combinations"),
    ],
)
def test_a_wrong_sweep_starts_nothing(user: User, swept: list[str], told: str) -> None:
    user.write("train.py", "")
    words = [word for text in swept for word in ("--sweep", text)]
    refused = user.types("run", "train.py", *words, "--dry-run", code=2)
    assert told in refused.stderr and len(refused.stderr.splitlines()) == 1
