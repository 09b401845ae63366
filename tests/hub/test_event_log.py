"""What a hub's controller was told and decided is on record, and today's does the same with it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import SECONDS, User

from headgate.hub import event_log
from headgate.hub.event_log import EventLog
from headgate.model import actions, events, progress
from headgate.model.identifiers import FIRST_WORKER, JobId
from headgate.recorded.events import LoggedEvent, read_controller, read_events, read_hub_log
from headgate.recorded.runs import STORE
from headgate.recorded.store import Recorder
from headgate.simulation.replay import replay
from headgate.testing import wait

LEARNS = """
    import os, sys, time
    for epoch in range(10**6):
        print(f"epoch {epoch} loss {1 / (epoch + 1)}", flush=True)
        time.sleep(0.02)
        if os.path.exists(sys.argv[1] if sys.argv[1:] else "go-" + os.path.basename(__file__)):
            break
"""
TWO_JOBS = """
    jobs:
      - {name: a, script: learns.py, args: [go-a]}
      - {name: b, script: learns.py, args: [go-b], priority: 2}
"""


def _learns(entry: dict[str, Any]) -> bool:
    return bool(entry.get("epoch"))


def _marks(log: Iterable[LoggedEvent], job: JobId) -> list[LoggedEvent]:
    """The entries that say how a job stands from then on."""
    return [entry for entry in log if entry.name == "MarkJob" and entry.job == job]


def _two_jobs_of_which_one_is_stopped(user: User) -> Path:
    """The folder of a run whose job `a` ended by itself, and `b` was stopped."""
    user.write("learns.py", LEARNS)
    user.write("jobs.yaml", TWO_JOBS)
    run = user.detaches("jobs.yaml")
    for job in ("a", "b"):
        user.sees_job(job, _learns, run)
    user.types("stop", "--run", run, "b")
    user.sees_state("b", "stopped", run=run)
    user.touch("go-a")
    user.types("attach", run, code=1)
    return user.home / "runs" / run


def _log(run: Path) -> list[LoggedEvent]:
    return list(read_events(run))


@pytest.mark.slow
def test_a_run_is_replayed_with_the_same_actions(user: User) -> None:
    run = _two_jobs_of_which_one_is_stopped(user)
    log = _log(run)
    assert [entry.id for entry in log] == list(range(1, len(log) + 1))
    assert isinstance(log[0].what, events.ControllerMade)
    result = replay(read_controller(run))
    assert (result.differences, result.stopped) == ((), "")
    assert result.actions == sum(entry.kind == "action" for entry in log) > 8
    # the controller has names in sets: their order must not count
    for seed in ("1", "2"):
        printed = user.types("replay", run.name, PYTHONHASHSEED=seed).stdout
        assert f"the same {result.actions} actions" in printed
    assert user.json("replay", run.name)["same"]


def test_a_log_says_what_led_to_what(user: User) -> None:
    run = _two_jobs_of_which_one_is_stopped(user)
    log = {entry.id: entry for entry in _log(run)}
    b = JobId.of(run.name, "b")
    at = _marks(log.values(), b)[-1]
    chain = []
    while at.cause is not None:
        at = log[at.cause]
        chain.append(at.name)
    assert chain == ["TaskExited", "StopTask", "StopRequested"]

    why = user.types("events", run.name, "--why", "b").stdout
    assert why.index("b: stopped by its user") < why.index("b: asked to end: by its user")
    links = user.json("events", run.name, "--why", "b")[0]
    assert [entry["name"] for entry in links] == ["MarkJob", *chain]
    reasons = [entry["value"]["reason"] for entry in links if "reason" in entry["value"]]
    assert [reason["kind"] for reason in reasons] == ["ended-as-asked", "stopped-by-user"]
    assert reasons[0]["facts"]["after"] == reasons[1]
    assert {entry["job"] for entry in user.json("events", run.name, "--job", "a")} == {"a"}
    assert "no job 'c'" in user.types("events", run.name, "--why", "c", code=5).message


@pytest.mark.slow
def test_a_log_of_a_killed_hub_is_whole(user: User) -> None:
    user.write("learns.py", LEARNS)
    run = user.home / "runs" / user.detaches("learns.py")
    user.sees_job("learns", _learns, run.name)
    wait.until(
        lambda: any(isinstance(entry.what, progress.Progress) for entry in _log(run)),
        SECONDS,
        "progress is on record",
    )
    (hub,) = user.traces.hubs()
    user.kills(hub)
    wait.until(lambda: not Path(f"/proc/{hub}").exists(), 60, "the hub has gone")
    result = replay(read_controller(run))
    assert result.differences == ()
    assert result.actions >= 4


@pytest.mark.slow
def test_two_runs_of_one_hub_are_replayed_together(user: User) -> None:
    runs = {}
    for name in ("first", "second"):
        user.write(f"{name}.py", LEARNS)
        runs[name] = user.detaches(f"{name}.py")
        user.sees_job(name, _learns, runs[name])
    for name, run in runs.items():
        user.touch(f"go-{name}.py")
        user.types("attach", run)
    first, second = runs.values()
    folder = user.home / "runs" / second
    assert {entry.run for entry in read_controller(folder).values()} == {first, second}
    whole = replay(read_controller(folder))
    assert (whole.differences, whole.stopped) == ((), "")
    # without the other's log it goes as far as it can
    os.unlink(user.home / "runs" / first / STORE)
    part = replay(read_controller(folder))
    assert part.differences == ()
    assert "a run that is gone" in part.stopped


def test_the_hub_keeps_what_belongs_to_no_run(user: User) -> None:
    user.write("learns.py", LEARNS)
    user.touch("go-learns.py")
    user.types("run", "learns.py")
    names = [entry.name for entry in read_hub_log(user.home / "hub")]
    assert {"ControllerMade", "NodeJoined", "RunForgotten"} <= {*names}
    assert "← node " in user.types("events", "--hub").stdout


def test_followed_events_end_with_the_run(user: User) -> None:
    user.write("learns.py", LEARNS)
    run = user.detaches("learns.py")
    follower = user.starts("events", run, "--follow")
    assert follower.stdout is not None
    seen = [next(follower.stdout)]
    while "started" not in seen[-1]:
        seen.append(next(follower.stdout))
    user.touch("go-learns.py")
    rest, _ = follower.communicate(timeout=120)
    assert follower.returncode == 0
    assert "finished" in rest


@pytest.mark.slow
def test_a_run_without_a_log_says_so_in_a_line(user: User) -> None:
    user.write("learns.py", LEARNS)
    user.touch("go-learns.py")
    user.types("run", "learns.py")
    (run,) = (user.home / "runs").iterdir()
    with closing(sqlite3.connect(run / STORE)) as db, db:
        db.execute("DROP TABLE log")
        db.execute("DELETE FROM meta WHERE key = 'controller'")
    for verb in ("events", "replay"):
        assert "has no event log" in user.types(verb, run.name, code=5).message


class _Run:
    """As much of a live run as a log needs."""

    def __init__(self, folder: Path, id: str) -> None:
        self.id, self.began = id, 100.0
        self.folder = folder / id
        self.folder.mkdir()
        self.recorder = Recorder(self.folder / STORE)


class _Logs:
    """The log of a hub with these runs, the first of them the oldest."""

    def __init__(self, folder: Path, *ids: str) -> None:
        self.runs: dict[str, Any] = {}
        live: Any = self
        self.log = EventLog(live, folder)
        self.log.controller_made(100.0, "headgate")
        for id in ids:
            self.runs[id] = _Run(folder, id)
            self.log.begin(self.runs[id])

    def names(self, id: str) -> list[str]:
        return [entry.name for entry in self.entries(id)]

    def entries(self, id: str) -> list[LoggedEvent]:
        """What the log of a run has, once that is written."""
        recorder: Recorder = self.runs[id].recorder
        assert recorder.flush()
        return list(read_events(self.runs[id].folder))


def _usage(number: int) -> events.Usage:
    return events.Usage(JobId.of("r", "a").task(FIRST_WORKER), float(number), 1.0)


def test_of_very_many_readings_those_stay_that_led_to_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log, "MOST_READINGS", 3)
    logs = _Logs(tmp_path, "r")
    for number in range(6):
        logs.log.record(101.0 + number, _usage(number), [])
    idle = actions.MarkIdle(_usage(0).task, True)
    logs.log.record(110.0, _usage(9), [idle])
    assert logs.names("r") == [
        "ControllerMade",
        *["Usage"] * 3,
        "ReadingsLeftOut",
        "Usage",
        "MarkIdle",
    ]
    entries = {entry.id: entry for entry in logs.entries("r")}
    assert entries[max(entries)].what == idle
    assert "leaves out readings" in replay(entries).stopped


def test_an_event_is_with_each_run_that_it_has_an_effect_on(tmp_path: Path) -> None:
    logs = _Logs(tmp_path, "r", "other")
    idle = actions.MarkIdle(JobId.of("other", "b").task(FIRST_WORKER), True)
    logs.log.record(101.0, _usage(1), [idle])
    logs.log.record(102.0, events.NodeLeft("away"), [])
    assert logs.names("r") == ["ControllerMade", "Usage", "NodeLeft"]  # the oldest has the node's
    assert logs.names("other") == ["ControllerMade", "Usage", "MarkIdle"]
    cause, effect = logs.entries("other")[1:]
    assert (effect.cause, effect.job, effect.t) == (cause.id, JobId.of("other", "b"), 1.0)


def test_the_log_of_a_hub_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_log, "HUB_LOG_BYTES", 2000)
    logs = _Logs(tmp_path)
    for number in range(100):
        logs.log.record(101.0, events.NodeLeft(f"node-{number}"), [])
    assert sum(path.stat().st_size for path in tmp_path.glob("events.jsonl*")) <= 4000
    nodes = [entry.what for entry in read_hub_log(tmp_path)]
    assert nodes[-1] == events.NodeLeft("node-99")
    assert len(nodes) > 5
