"""Two real trainings on two cores: each is tried on both for some seconds, and goes back to one."""

from __future__ import annotations

import json

import pytest
from tests.hub.user import User

from headgate.recorded.reader import RunReader
from headgate.testing import wait

TRAINS = """
    import sys
    import torch
    import headgate.torch as hg
    width, inner = int(sys.argv[1]), int(sys.argv[2])
    model = torch.nn.Linear(width, width)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    features = torch.randn(64, width)
    model, optimizer = hg.prepare(model, optimizer)
    threads = 0
    for epoch in hg.epochs(10**6):
        for _ in range(inner):
            loss = model(features).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            hg.report(loss=loss)
            if torch.get_num_threads() != threads:
                threads = torch.get_num_threads()
                print("threads now:", threads, flush=True)
"""
TRIAL = 5.0


@pytest.mark.long
def test_each_of_two_trainings_on_two_cores_is_tried_on_both_once_for_seconds(user: User) -> None:
    """One scales with its threads, the other is too small for two. The script really changes its
    threads.
    """
    user.write("train.py", TRAINS)
    user.write(
        "jobs.yaml",
        """
        jobs:
          - {name: scales, script: train.py, args: ["1500", "20"]}
          - {name: small, script: train.py, args: ["4", "2000"]}
        """,
    )
    run = str(user.json("run", "--detach", "jobs.yaml", "--policy", "headgate:rho=100")["run"])
    store = user.home / "runs" / run / "run.sqlite"

    def rows(table: str) -> list[dict[str, object]]:
        with RunReader(store) as reader:
            return list(reader.rows(table, order="t, rowid"))

    def ends() -> list[float]:
        """When trials were over: their job has one thread again."""
        back = []
        for trial in (event for event in rows("events") if event["kind"] == "trial"):
            later = (
                row
                for row in rows("shares")
                if row["task"] == f"{trial['job']}/worker-0" and row["threads"] == 1
            )
            back += [
                float(str(row["t"]))
                for row in later
                if float(str(row["t"])) > float(str(trial["t"]))
            ][:1]
        return back

    wait.until(lambda: len(ends()) == 2, 600, "both are tried and go back")
    trials = [event for event in rows("events") if event["kind"] == "trial"]
    assert {event["job"] for event in trials} == {"scales", "small"}
    for trial, end in zip(trials, ends(), strict=True):
        assert end - float(str(trial["t"])) <= TRIAL + 2.0
        other = "small" if trial["job"] == "scales" else "scales"
        assert f"which {other} lends it" in str(trial["text"])
        lines = user.types("logs", str(trial["job"])).stdout.splitlines()
        had = [line.rpartition(" ")[2] for line in lines if "threads now:" in line]
        assert had[:2] == ["1", "2"]
    user.types("stop", "--kill", "--run", run)
    for name in ("scales", "small"):
        user.sees_state(name, "killed", run=run)
    kept = [json.loads(path.read_text()) for path in (user.home / "profiles").glob("*.json")]
    assert len(kept) == 2
