"""What `headgate status` tells of a job, from what was recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.diagnosis.made_up import MadeUp, recording

from headgate.cli.status import command, latest
from headgate.recorded import runs
from headgate.recorded.store import Recorder, RunReader


def test_a_limit_that_was_lifted_is_none(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.sqlite")
    recorder.add("tasks", id="a/worker-0", job="a", attempt=1, started=1.0)
    limited = {"cpu_cap_cores": 1.0, "gpu_fraction": 0.5, "entitled_cores": 1.0, "threads": 1}
    recorder.add("shares", t=1.0, task="a/worker-0", cpu_weight=50.0, reason="two jobs", **limited)
    recorder.flush()
    with RunReader(tmp_path / "run.sqlite") as reader:
        assert {**latest(reader, "a"), **limited, "cpu_weight": 50.0} == latest(reader, "a")
        recorder.add(
            "shares",
            t=2.0,
            task="a/worker-0",
            cpu_weight=50.0,
            entitled_cores=2.0,
            threads=2,
            reason="alone",
        )
        recorder.close()
        found = latest(reader, "a")
    assert (found["cpu_cap_cores"], found["gpu_fraction"], found["entitled_cores"]) == (
        None,
        None,
        2.0,
    )
    assert found["tasks"][0]["cpu_cap_cores"] is None


@pytest.mark.parametrize("said", [r"\[/INST\]", r"\[abc]", "[/red]"])
def test_what_others_wrote_is_shown_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path))
    monkeypatch.setattr(runs, "alive", lambda _: True)
    (folder := runs.home() / "runs" / "20261121-0930").mkdir(parents=True)
    recorder = Recorder(folder / runs.STORE)
    recorder.add("jobs", name="a", position=0, state="running", reason=f"why {said}")
    for i in range(2):
        recorder.add(
            "tasks", id=f"a/worker-{i}", job="a", attempt=1, started=1.0, node=f"node {said}"
        )
    recorder.add("shares", t=1.0, task="a/worker-0", reason=f"share {said}")
    recorder.close()
    shown = CliRunner().invoke(command, catch_exceptions=False).stdout
    assert all(f"{what} {said}" in shown for what in ("why", "on node", "share"))


@pytest.mark.parametrize(("seconds", "told"), [(3500, False), (3700, True)])
def test_a_long_run_is_told_of_by_its_last_hour(home: Path, seconds: int, told: bool) -> None:
    folder = home / "runs" / "20260314-0900-ab12"
    folder.mkdir(parents=True)
    recording(
        folder / runs.STORE, {"a": MadeUp(ran=1.0, end=seconds), "b": MadeUp(ran=1.0, end=60)}
    )
    shown = CliRunner().invoke(command, catch_exceptions=False).stdout
    assert ("last hour" in shown.splitlines()[0]) is told
    jobs = json.loads(CliRunner().invoke(command, ["--json"], catch_exceptions=False).stdout)[
        "jobs"
    ]
    assert [job["verdict"] is None for job in jobs] == [False, told]
