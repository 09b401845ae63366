from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from headgate.forecast.job_tracker import JobTracker
from headgate.hub.state import run as live
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.hub.submission import Submission
from headgate.model.cluster import Node
from headgate.model.identifiers import JobId, TaskId
from headgate.model.jobs import Job
from headgate.model.progress import Progress
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.sweeps import Sweep
from headgate.recorded import runs
from headgate.recorded.reader import RunReader

NOT_PAUSED = Reason.of(ReasonKind.NOT_PAUSED, text="busy")


def made() -> LiveRun:
    submission = Submission((Job(name="a", run="true"),), {}, str(Path.cwd()), ("headgate",))
    return LiveRun(submission, (Node("here", 2, 2**30),), "none", time.monotonic(), print)


def test_whoever_watches_a_run_sees_the_losses_that_the_tracker_keeps() -> None:
    run, tracker = made(), JobTracker(0.0)
    for step in range(1, 4):
        progress = Progress(TaskId(f"{run.id}/a/worker-0"), step, loss=1.0 / step)
        tracker.report(float(step), progress.loss, progress)
    trackers = {JobId.of(run.id, "a"): tracker}
    [job] = run.snapshot("none", trackers.get)["jobs"]
    assert job["losses"] == [1.0, 1 / 2, 1 / 3]
    assert run.snapshot("none", lambda _: None)["jobs"][0]["losses"] == []
    run.close()


def test_what_the_jobs_of_a_sweep_say_alike_of_their_script_is_told_once() -> None:
    jobs = (*Sweep({"seed": ("0", "1")}).jobs(Job(name="s", run="true")), Job(name="b", run="true"))
    submission = Submission(jobs, {}, str(Path.cwd()), ("headgate",))
    told: list[tuple[str, str | None]] = []

    async def tell() -> None:
        run = LiveRun(submission, (Node("here", 2, 2**30),), "none", time.monotonic(), print)
        live_runs = LiveRuns(lambda: "none", lambda _: None)
        live_runs.listeners.append(lambda _run, _, reason, job: told.append((reason.kind, job)))
        for reason in (Reason.of(ReasonKind.STEPS_UNSEEN, frameworks=["torch"]), NOT_PAUSED):
            for name in run.jobs:
                live_runs.event(run, "note", reason, name)
        run.close()

    asyncio.run(tell())
    of_script = [("steps-unseen", "s-seed-0"), ("steps-unseen", "b")]
    assert told == [*of_script, *((NOT_PAUSED.kind, job.name) for job in jobs)]


def test_after_its_first_minutes_a_run_keeps_the_means_of_each_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live, "_EVERY_REPORT_SECONDS", 0.0)
    run = made()
    task = TaskId(f"{run.id}/a/worker-0")
    for step, clock in ((1, 0.0), (2, 0.4), (3, 1.1), (4, 1.2)):
        monkeypatch.setattr(LiveRun, "clock", lambda _, clock=clock: clock)
        run.record_progress(Progress(task, step=step, loss=float(step)))
    run.flush_progress(task)
    run.close()
    with RunReader(run.folder / runs.STORE) as reader:
        rows = [(row["step"], row["loss"], row["count"]) for row in reader.rows("progress")]
    assert rows == [(3, 2.0, 3), (4, 4.0, 1)]
