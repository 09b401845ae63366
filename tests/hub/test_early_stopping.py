"""What a script tells of its own early stopping becomes the rule that its job is predicted by."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.hub.user import User
from tests.planning import jobs as planned

from headgate.analysis.forecast import Question
from headgate.events import Progress
from headgate.hub.attempt import Attempt
from headgate.hub.job import LiveJob
from headgate.hub.replanning import Replanning
from headgate.jobs import Job, ProgressRule
from headgate.plans import Plan
from headgate.telemetry.patterns import ProgressReader
from headgate.telemetry.store import RunReader
from headgate.testing import wait

SCRIPT = """
    from headgate.task import Channel, TaskEnvironment

    environment = TaskEnvironment.claim()
    channel = Channel.open(environment, "plain", "1", 0)
    channel.send({"type": "stopping", "patience": 3, "min_delta": 0.1, "monitor": "loss"})
    channel.send({"type": "progress", "step": 1, "loss": 1.0})
    channel.wait_for(lambda: channel.stopping, 300)
    channel.send({"type": "stopping", "patience": None})
    channel.flush(5)
"""


@pytest.mark.parametrize(("monitor", "least"), [("loss", 0.1), ("val_loss", 0.1), ("val_accuracy", 0.0)])
def test_its_least_gain_counts_where_it_is_of_the_scale_of_the_job_s_metric(monitor: str, least: float) -> None:
    job = LiveJob(Job(name="a", script="a.py", progress=ProgressRule(goal=0.5)), 0, 0.0)
    job.stops_after(3, 0.1, monitor)
    assert job.spec.progress.stopping == (3, least)
    job.stops_after(None)
    assert job.spec.progress == ProgressRule(goal=0.5)


@pytest.mark.parametrize(
    ("rule", "stopping"),
    [
        (ProgressRule(patience=9), (9, 0.0)),
        (ProgressRule(patience=9, min_delta=0.2), (9, 0.2)),
        (ProgressRule(min_delta=0.2), (3, 0.2)),
    ],
)
def test_what_the_user_wrote_counts_instead(rule: ProgressRule, stopping: tuple[int, float]) -> None:
    job = LiveJob(Job(name="a", script="a.py", progress=rule), 0, 0.0)
    job.stops_after(3, 0.1, "loss")
    assert job.spec.progress.stopping == stopping
    job.stops_after(None)
    assert job.spec.progress == rule


def test_a_script_that_no_longer_ends_by_itself_says_so(user: User) -> None:
    user.write("learn.py", SCRIPT)
    run = user.detaches("learn.py")

    def told() -> object:
        with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
            [row] = reader.rows("jobs")
            return json.loads(row["spec"])["progress"]["told"]

    user.sees_job("learn", lambda job: job["step"] == 1, run, "it has told its patience")
    wait.until(lambda: told() == [3, 0.1], 30, "its patience is in the store")
    user.types("stop", f"{run}/learn")
    user.sees_state("learn", "stopped", run=run)
    wait.until(lambda: told() is None, 30, "it has none any more")


def test_a_restart_is_weighed_by_it_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = LiveJob(Job(name="a", script="a.py"), 0, 0.0, state="running")
    live.profile = json.dumps(asdict(planned.profile()))
    live.current = Attempt("r/a", 1, Plan(strategy="single", workers=1, batch_per_worker=None), False, lambda *_: None)
    live.current.start("worker-0", "a0", "127.0.0.1", ProgressReader(ProgressRule()), False)
    live.current.connect("worker-0", "keras")
    cluster = planned.cluster(planned.nodes("a", 2, cores=2))
    run = SimpleNamespace(submission=SimpleNamespace(mode="run", environment={}, cluster=""))
    live_runs, nodes = SimpleNamespace(find=lambda _: (run, live)), SimpleNamespace(cluster=lambda _: cluster)
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, thread_time=lambda: 0.0)
    monkeypatch.setattr("headgate.hub.replanning.time", clock)

    async def weigh() -> Question:
        nonlocal now
        loop = asyncio.get_running_loop()
        asked: asyncio.Future[Question] = loop.create_future()
        monkeypatch.setattr(
            "headgate.hub.replanning.answer", lambda question: loop.call_soon_threadsafe(asked.set_result, question)
        )
        choosing = SimpleNamespace(used=lambda *_: Counter())
        parts = cast("Any", (live_runs, nodes, None, choosing, cluster.nodes[0], lambda _: None))
        replanning = Replanning(tmp_path, *parts)
        for second in range(4):
            now = float(second)
            if second == 1:
                live.stops_after(3, 0.1, "loss")
            report = Progress("r/a/worker-0", 100 * (second + 1), 1 + second, loss=1 / (second + 1), epochs=99)
            replanning.hear(report, ())
        return await asyncio.wait_for(asked, 60)

    assert asyncio.run(weigh()).rest == (300.0, 0.1)
