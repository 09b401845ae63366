from __future__ import annotations

import time
from pathlib import Path

import pytest

from headgate.hub.state import run as live
from headgate.hub.state.run import LiveRun
from headgate.hub.submission import Submission
from headgate.model.cluster import Node
from headgate.model.events import Progress
from headgate.model.identifiers import TaskId
from headgate.model.jobs import Job
from headgate.recorded import runs
from headgate.recorded.store import RunReader


def test_after_its_first_minutes_a_run_keeps_the_means_of_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "_EVERY_REPORT_SECONDS", 0.0)
    submission = Submission((Job(name="a", run="true"),), {}, str(Path.cwd()), ("headgate",))
    run = LiveRun(submission, (Node("here", 2, 2**30),), "none", time.monotonic(), print)
    task = TaskId(f"{run.id}/a/worker-0")
    for step, clock in ((1, 0.0), (2, 0.4), (3, 1.1), (4, 1.2)):
        monkeypatch.setattr(LiveRun, "clock", lambda _, clock=clock: clock)
        run.record_progress(Progress(task, step=step, loss=float(step)))
    run.flush_progress(task)
    run.close()
    with RunReader(run.folder / runs.STORE) as reader:
        rows = [(row["step"], row["loss"], row["count"]) for row in reader.rows("progress")]
    assert rows == [(3, 2.0, 3), (4, 4.0, 1)]
