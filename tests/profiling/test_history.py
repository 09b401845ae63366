"""What plans brought in runs that were, and in short runs made for it."""

from __future__ import annotations

import json

import pytest
from tests.hub.user import User
from tests.planning.jobs import profile

from headgate.jobs import Job
from headgate.profiling import store
from headgate.profiling.history import step_seconds
from headgate.telemetry import machine

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


def test_pauses_and_the_first_reports_do_not_count() -> None:
    steady = [(0.1 * i, 2 * i) for i in range(100)]
    assert step_seconds(steady) == pytest.approx(0.05)
    slow_start = [(5.0 - 1.0 / (i + 1), 2 * i) for i in range(5)]
    paused = [(5.0 + 0.1 * i + (30.0 if i > 60 else 0.0), 2 * (i + 5)) for i in range(100)]
    assert step_seconds([*slow_start, *paused]) == pytest.approx(0.05)
    begun_again = [(20.0 + 0.1 * i, 50 + 2 * i) for i in range(100)]
    assert step_seconds([*steady[:40], *begun_again]) == pytest.approx(0.05)


def test_too_few_reports_say_nothing() -> None:
    assert step_seconds([]) is None
    assert step_seconds([(1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4)]) is None
    assert step_seconds([(1.0, 7)] * 50) is None


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
    assert failed["reason"].startswith("failed: ") and "exit code 3" in failed["reason"]
