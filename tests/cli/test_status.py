"""What `headgate status` tells of a job, from what was recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.diagnosis.made_up import MadeUp, recording

from headgate.cli.status import command
from headgate.recorded import runs
from headgate.recorded.store import Recorder


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
    assert "nothing could be written there" not in shown
    os.utime(folder / runs.STORE, (0, 0))
    shown = CliRunner().invoke(command, catch_exceptions=False).stdout
    assert "nothing could be written there" in shown, "as on a disk that is read-only by now"


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
