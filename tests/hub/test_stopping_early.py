"""Jobs of a sweep that cannot become its best are ended, and nothing else suffers from it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.hub.user import User

from headgate.forecast.job_tracker import JobTracker
from headgate.hub.parts.stopping_early import StoppingEarly
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.hub.submission import Submission
from headgate.model.actions import Action, MarkJob
from headgate.model.cluster import Node
from headgate.model.events import Event, StopRequested
from headgate.model.identifiers import JobId, TaskId
from headgate.model.jobs import Job
from headgate.model.progress import Progress
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.sweeps import StopEarly, Sweep
from headgate.recorded import runs

LEARNS = """
    import signal, sys, time
    floor = float(sys.argv[2])
    for step in range(1, 81):
        time.sleep(0.01)
        print(f"step {step}/80 loss {floor + 5 / (step + 3):.5f}", flush=True)
        if floor > 1 and step == 40:
            signal.pause()  # until it is ended
"""
JOBS = """
    at_once: 1
    jobs:
      - name: s
        script: learns.py
        sweep:
          grid: {floor: [0.1, 0.2, 0.3, 9]}
          stop_early: {rule: asha}
      - {name: after, run: echo yes, after: s}
"""


@pytest.mark.slow
def test_a_job_that_cannot_be_the_best_is_ended_and_its_followers_run(user: User) -> None:
    user.write("learns.py", LEARNS)
    user.write("jobs.yaml", JOBS)
    assert user.types("run", "jobs.yaml").code == 0
    summary = runs.summary(next((user.home / "runs").iterdir()))
    assert [job.state for job in summary.jobs] == ["done"] * 3 + ["stopped", "done"]
    assert summary.state == "done"
    ended = Reason.read(summary.jobs[3].why or {}).root
    assert ended.kind is ReasonKind.STOPPED_EARLY
    assert ended.facts["value"] > ended.facts["best"]


def test_the_controller_is_asked_to_end_a_job_with_a_checkpoint(tmp_path: Path) -> None:
    stated = StopEarly("predicted", "val_loss")
    jobs = Sweep({"seed": ("0", "1", "2", "9")}, stop_early=stated).jobs(Job(name="s", run="true"))
    alone = Job(name="alone", run="true")
    told: list[Event] = []

    async def live() -> None:
        submission = Submission((*jobs, alone), {}, str(tmp_path), ("headgate",))
        run = LiveRun(submission, (Node("here", 2, 2**30),), "none", time.monotonic(), print)
        live_runs = LiveRuns(lambda: "none", lambda _: None)
        live_runs.runs[run.id] = run
        trackers = {JobId.of(run.id, name): JobTracker(0.0) for name in run.jobs}
        part = StoppingEarly(live_runs, trackers.get, told.append)

        async def hear(name: str, step: int, actions: Sequence[Action] = ()) -> None:
            value = {"s-seed-9": 9.0, "alone": 99.0}.get(name, 1.0) + 1 / step
            metrics = {"val_loss": value}
            progress = Progress(
                TaskId(f"{run.id}/{name}/worker-0"), step, metrics=metrics, steps=40
            )
            trackers[progress.task.job].report(step, value, progress)
            part.hear(progress, actions)
            await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()})

        for name, job in run.jobs.items():
            job.state = "running"
            for step in range(1, 40):
                await hear(name, step)
            mark = MarkJob(JobId.of(run.id, name), "done", Reason(ReasonKind.FINISHED))
            await hear(name, 40, [mark])
            if name == "s-seed-2":  # this hub dies, and the next one goes on
                run.recorder.flush()
                part = StoppingEarly(live_runs, trackers.get, told.append)
                part.take_up(run)
        part.forget(run.id)
        part.close()
        run.close()

    asyncio.run(live())
    asked = told[0]
    assert isinstance(asked, StopRequested) and asked.job.name == "s-seed-9"
    assert not asked.kill and asked.reason is not None
    facts = asked.reason.facts
    assert (facts["rule"], facts["metric"], facts["compared"]) == ("predicted", "val_loss", 3)
    assert facts["value"] > 8 > facts["best"] > 1
    median, low, high = facts["predicted"]
    assert 8.5 < low < median < high < 9.5
    assert {event.job.name for event in told if isinstance(event, StopRequested)} == {"s-seed-9"}
