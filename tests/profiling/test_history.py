"""What plans brought in runs that were, and in short runs made for it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from tests.hub.user import User
from tests.planning.jobs import profile

from headgate.model.cluster import Cluster, Node
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.records import text_of
from headgate.profiling import store
from headgate.profiling.history import of_run, past
from headgate.recorded.store import Recorder
from headgate.sampling import machine

STEP = 0.04
SCRIPT = f"""
    import time
    from headgate.task import Channel, TaskEnvironment

    environment = TaskEnvironment.claim()
    channel = Channel.open(environment, "plain", "1", 0)
    channel.wait_for(lambda: channel.welcome, 60)
    for step in range(1, 10_000):
        channel.wait_for(lambda: False, {STEP})
        channel.send({{"type": "progress", "step": step, "epoch": 0, "loss": 1.0, "count": 1}})
"""


@pytest.mark.parametrize(
    ("own", "whole", "cap", "others"),
    [
        (0.9, 1.98, None, 0.54),  # others have more than half of two cores, and none is idle
        (0.9, 1.5, None, 0.0),  # it could have had more
        (1.9, 1.98, None, 0.0),  # it has all there is
        (0.5, 1.98, 0.5, 0.0),  # it may have no more
    ],
)
def test_a_plan_that_others_were_in_the_way_of_is_told_and_no_past_one(
    own: float, whole: float, cap: float | None, others: float, tmp_path: Path
) -> None:
    node = Node("here", cores=2.0, memory_bytes=1 << 33)
    plan = Plan(
        strategy="single",
        workers=1,
        batch_per_worker=None,
        worker_nodes=("here",),
        cores_per_worker=cap,
    )
    seen = replace(profile(), source="run")
    path = tmp_path / "run" / "run.sqlite"
    path.parent.mkdir()
    recorder = Recorder(path)
    for key, value in (("mode", "run"), ("node", json.dumps([asdict(node)]))):
        recorder.add("meta", key=key, value=value)
    recorder.add(
        "jobs", name="a", state="done", plan=json.dumps(asdict(plan)), profile=text_of(seen)
    )
    recorder.add("events", t=0.0, job="a", kind="running")
    for second in range(30):
        recorder.add("progress", t=float(second), task="a/worker-0", step=10 * second)
        recorder.add("usage", t=float(second), target="a/worker-0", cpu_cores=own)
        recorder.add("usage", t=float(second), target="node:here", cpu_cores=whole)
    recorder.close(10.0)
    [measured] = of_run(path, profile(), Cluster((node,)))
    assert measured.throughput == pytest.approx(2560)
    assert measured.others == pytest.approx(others)
    assert past(profile(), Cluster((node,)), [path]) == ([measured] if not others else [])


@pytest.mark.long
def test_probes_measure_plans_in_short_runs_and_history_knows_of_them(user: User) -> None:
    user.write("learn.py", SCRIPT)
    of = Job(name="learn", script=str(user.folder / "learn.py"), workdir=str(user.folder))
    here = machine.detect(user.home / "node.json")
    store.save(user.home / "profiles", store.key(of, here), profile(batch=64))
    options = ("learn.py", "--cores", "0.1", "--top", "3")
    told = user.types("plan", *options, "--probe", "1", "--json")
    assert "probe 1 of 1: " in told.stderr
    [measured] = json.loads(told.stdout)["measured"]
    assert 0.3 < measured["throughput"] * STEP / 64 < 1.2
    [again] = user.json("plan", *options, "--history")["measured"]
    assert again == measured
    user.write("learn.py", "raise SystemExit(3)\n")
    store.save(user.home / "profiles", store.key(of, here), profile(batch=64))
    [failed] = user.json("plan", *options, "--probe", "1")["failed"]
    assert failed["reason"] == "failed, worker-0: exit code 3"
