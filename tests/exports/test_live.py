"""Trackers that get the figures of jobs while these run, read by the trackers' own readers."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import SECONDS, User

from headgate.exports import live
from headgate.recorded import runs
from headgate.recorded.recording import read
from headgate.testing import wait

WAITS = """
import os, time
for epoch in range(1, 4):
    print(f"epoch {epoch} loss {1 / epoch}", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
"""
OWN = """
import os, time, mlflow
os.makedirs("runs/own")
open(f"runs/own/events.out.tfevents.1.host.{os.getpid()}.0", "w").close()
with mlflow.start_run(run_name="mine"):
    mlflow.log_metric("loss", 0.25, step=1)
    print("epoch 1 loss 0.25", flush=True)
    while not os.path.exists("go"):
        time.sleep(0.05)
"""
LOSSES = [pytest.approx(1 / epoch) for epoch in range(1, 4)]


@pytest.fixture
def tracking(user: User, monkeypatch: pytest.MonkeyPatch) -> User:
    """A user whose MLflow keeps runs in the folder `flow`."""
    user.variables |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_TRACKING_URI": "flow"}
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return user


def scalars(folder: Path, tag: str) -> list[float]:
    """What TensorBoard reads of a metric."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not any(folder.glob("*.headgate")):
        return []
    reader = EventAccumulator(str(folder))
    reader.Reload()
    return [event.value for event in reader.Scalars(tag)] if tag in reader.Tags()["scalars"] else []


def mlflow_runs(user: User) -> list[Any]:
    from mlflow.tracking import MlflowClient

    if not (user.folder / "flow").exists():
        return []
    client = MlflowClient(str(user.folder / "flow"))
    every = [experiment.experiment_id for experiment in client.search_experiments()]
    return list(client.search_runs(every))


def losses(user: User, run: str) -> list[float]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(str(user.folder / "flow"))
    return [metric.value for metric in client.get_metric_history(run, "loss")]


def test_figures_arrive_while_a_job_runs_and_go_on_after_a_resume(user: User) -> None:
    user.write("train.py", WAITS)
    user.write("jobs.yaml", "track: tensorboard=board\njobs: [{name: a, script: train.py}]")
    run = user.detaches("jobs.yaml")
    board = user.folder / "board" / "a"
    wait.until(lambda: scalars(board, "loss") == LOSSES, SECONDS, "losses are on the board")
    wait.until(lambda: scalars(board, "headgate/cpu_cores"), SECONDS, "figures are there, too")
    for hub in user.traces.hubs():
        user.kills(hub)
    wait.until(lambda: not runs.alive(user.home / "runs" / run), SECONDS, "the run has no hub")
    user.touch("go")
    user.types("resume", run, "--from-scratch")
    wait.until(lambda: scalars(board, "loss") == [*LOSSES, *LOSSES], SECONDS, "they go on")


def test_headgates_figures_join_the_runs_that_a_script_has_open(tracking: User) -> None:
    user = tracking
    user.write("own.py", OWN)
    user.detaches("--track", "mlflow", "--track", "tensorboard", "own.py")
    wait.until(
        lambda: scalars(user.folder / "runs" / "own", "headgate/cpu_cores"),
        SECONDS,
        "figures are beside the script's",
    )
    user.touch("go")
    user.sees_state("own", "done")
    [made] = wait.until(
        lambda: [made for made in mlflow_runs(user) if "headgate/verdict" in made.data.tags],
        SECONDS,
        "the verdict is known",
    )
    assert (made.info.run_name, made.info.status) == ("mine", "FINISHED")
    assert losses(user, made.info.run_id) == [0.25]
    assert "headgate/cpu_cores" in made.data.metrics
    assert [path.name for path in (user.folder / "runs").iterdir()] == ["own"]


def test_a_tracker_that_fails_is_told_of_once_and_gets_it_all_later(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked = store.with_name("board")
    blocked.touch()
    (store.parent / "jobs" / "a").mkdir(parents=True)
    spec = {"name": "a", "run": "true", "track": [f"tensorboard={blocked}"]}
    with closing(sqlite3.connect(store)) as rows:
        rows.execute("UPDATE jobs SET spec = ? WHERE name = 'a'", [json.dumps(spec)])
        rows.commit()
    monkeypatch.setattr(live, "_AGAIN_SECONDS", (0.01, 0.02))
    monkeypatch.setattr(live, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(live, "_REST", 0.0)
    reads, ends = os.pipe()
    notices, tells = os.pipe()

    def follow() -> None:
        with closing(os.fdopen(tells)):
            live.Following(store.parent, ["a"], tells).follow()

    with os.fdopen(reads) as stdin, os.fdopen(notices) as told:
        monkeypatch.setattr(sys, "stdin", stdin)
        following = threading.Thread(target=follow, daemon=True)
        following.start()
        assert "Not a directory" in json.loads(told.readline())["error"]
        blocked.unlink()
        assert json.loads(told.readline())["error"] is None
        os.close(ends)
        assert told.read() == ""
    known = [float(loss) for loss in read(store).jobs[0].progress.loss]
    assert scalars(blocked / "a", "loss") == pytest.approx(known)


def test_a_tracker_that_is_not_installed_is_refused_before_the_start(user: User) -> None:
    message = user.types("run", "--track", "trackio", "--", "true", code=3).message
    assert message == (
        "job 'true': `track: trackio`, in Headgate's own Python, needs a package that is not "
        "installed: pip install 'trackio'"
    )
    wrong = user.types("run", "--track", "mlfow", "--", "true", code=2).message
    assert "found 'mlfow'; expected one of mlflow, tensorboard, trackio, wandb" in wrong
