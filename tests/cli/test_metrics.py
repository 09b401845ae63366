from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from headgate.cli.metrics import command
from headgate.model.errors import NotFoundError, UsageError
from headgate.recorded.store import Recorder


@pytest.fixture(autouse=True)
def run(home: Path) -> Path:
    folder = home / "runs" / "20260314-0900-ab12"
    folder.mkdir(parents=True)
    recorder = Recorder(folder / "run.sqlite")
    recorder.add("meta", key="id", value=folder.name)
    recorder.add("meta", key="ended", value="20.0")
    for position, name in enumerate(["a", "b"]):
        task = f"{name}/worker-0"
        (folder / "jobs" / name).mkdir(parents=True)
        recorder.add(
            "jobs",
            name=name,
            position=position,
            state="done",
            submitted=0.0,
            started=0.0,
            ended=20.0,
            attempt=1,
        )
        recorder.add("tasks", id=task, job=name)
        for t in range(21):
            recorder.add(
                "usage",
                t=float(t),
                target=task,
                cpu_cores=None if not t else 1.0 if t <= 10 else 0.5,
            )
            recorder.add(
                "progress",
                t=float(t),
                task=task,
                step=t * 2,
                samples=t * 64,
                loss=20.0 - t,
                count=1,
            )
            # Early steps wait for half of their time, late ones not at all.
            recorder.add(
                "spans",
                t=float(t),
                task=task,
                step=t * 2,
                name="input",
                seconds=0.01 if t <= 10 else 0.0,
            )
            recorder.add("spans", t=float(t), task=task, step=t * 2, name="forward", seconds=0.01)
    for t in range(21):
        recorder.add(
            "usage",
            t=float(t),
            target="node:nimbus",
            cpu_cores=None if not t else 1.5,
            memory_bytes=2.0**30,
        )
    recorder.close()
    return folder


def told(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, ["--json", *arguments], catch_exceptions=False)
    parsed: dict[str, Any] = json.loads(result.stdout)
    return parsed


def test_tasks_come_first_then_nodes_with_latest_mean_and_highest() -> None:
    targets = {target["target"]: target for target in told()["targets"]}
    assert list(targets) == ["a/worker-0", "b/worker-0", "node:nimbus"]
    assert targets["a/worker-0"]["usage"]["cpu_cores"] == {"latest": 0.5, "mean": 0.75, "max": 1.0}
    assert targets["node:nimbus"]["usage"]["memory_bytes"]["latest"] == 2.0**30
    learned = targets["a/worker-0"]["learned"]
    assert (learned["loss"], learned["step"], learned["steps_per_second"]) == (0.0, 40, 2.0)
    assert targets["a/worker-0"]["division"]["input_fraction"] == pytest.approx(11 / 32)


def test_since_looks_only_at_the_end_of_the_run() -> None:
    (target,) = told("a", "--since", "8s")["targets"]
    assert target["usage"]["cpu_cores"] == {"latest": 0.5, "mean": 0.5, "max": 0.5}
    assert target["division"]["input_fraction"] == 0.0
    assert target["learned"]["losses"][0] == 8.0


def test_a_terminal_shows_the_course_of_the_loss_and_how_a_step_divides() -> None:
    plain = CliRunner().invoke(command, ["b"], catch_exceptions=False).stdout
    assert "b/worker-0" in plain
    assert "a/worker-0" not in plain
    assert "nimbus" not in plain
    assert "█" in plain
    assert "waits for input 34 % of a step of 15.2 ms (21 sampled)" in plain
    assert "forward" not in plain
    assert "forward" in CliRunner().invoke(command, ["b", "--spans"], catch_exceptions=False).stdout


def test_a_job_or_a_time_that_makes_no_sense_is_said() -> None:
    with pytest.raises(NotFoundError, match="no job 'c' in any run"):
        told("c")
    with pytest.raises(UsageError, match="--since is 'soon'"):
        told("--since", "soon")


def test_a_job_is_found_in_an_earlier_run_as_logs_finds_it(run: Path) -> None:
    later = run.with_name("20260315-0900-cd34")
    (later / "jobs" / "other").mkdir(parents=True)
    Recorder(later / "run.sqlite").close()
    for name in ("a", "20260314/a"):
        assert [target["target"] for target in told(name)["targets"]] == ["a/worker-0"]
