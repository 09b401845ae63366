"""Policies that go by what is left of a job are told it while jobs run."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.hub.user import User

from headgate.telemetry.store import RunReader
from headgate.testing import wait

EPOCHS = """
    import sys, time
    epochs = int(sys.argv[1])
    for epoch in range(1, epochs + 1):
        for step in range(10):
            until = time.process_time() + 0.005
            while time.process_time() < until:
                pass
            number = 10 * (epoch - 1) + step + 1
            print(f"epoch {epoch}/{epochs} step {number} loss {1 + 5 / number:.5f}", flush=True)
"""


def test_who_is_predicted_to_have_less_left_goes_first(user: User) -> None:
    policy = "srpt:floor=0.06"
    user.write("train.py", EPOCHS)
    user.write("short.yaml", "jobs: [{name: short, script: train.py, args: ['3000']}]")
    user.write("long.yaml", "jobs: [{name: long, script: train.py, args: ['100000']}]")
    first = str(user.json("run", "--detach", "short.yaml", "--policy", policy)["run"])
    wait.until(lambda: told(user, first) > 5.0, 60, "enough is told to go by")
    second = str(user.json("run", "--detach", "long.yaml")["run"])
    wait.until(lambda: weight(user, first) > 2 * weight(user, second), 60, "who has less left goes first")
    wait.until(lambda: predicted(user, first) and predicted(user, second), 60, "what is left of each is told")
    stands = user.sees_job("short", lambda job: "core-seconds left" in job["decision"]["reason"], first, "is told why")
    assert stands["reason"] == "started"
    last = user.types("status", first).stdout.splitlines()[-1].rstrip()
    assert last.startswith("short ") and last.endswith(tuple(row["reason"] for row in shares(user, first)))
    assert f"policy {policy}, 2 runs going on" in user.types("doctor").stdout
    assert user.types("run", "long.yaml", "--policy", "srpt:floor=0.1", code=2).message.startswith("jobs run under")
    for run, job in ((first, "short"), (second, "long")):
        user.types("stop", "--kill", f"{run}/{job}")
        user.sees_state(job, "killed", run=run)


@pytest.mark.long
def test_a_job_is_expected_to_take_what_it_took_before_and_one_of_other_arguments_what_those_of_its_script_did(
    user: User,
) -> None:
    user.write("train.py", EPOCHS)
    user.write("jobs.yaml", "jobs: [{name: again, script: train.py, args: ['60']}]")
    user.write("other.yaml", "jobs: [{name: other, script: train.py, args: ['50']}]")
    reasons = []
    for file, job in (("jobs.yaml", "again"), ("jobs.yaml", "again"), ("other.yaml", "other")):
        run = str(user.json("run", "--detach", file, "--policy", "srpt")["run"])
        user.sees_state(job, "done", run=run)
        reasons.append([row["reason"] for row in shares(user, run)])
    assert reasons[0][0] == "shortest: nothing predicted yet, 0 core-seconds had"
    assert all(" core-seconds left (" in told[0] for told in reasons[1:])


def told(user: User, run: str) -> float:
    """When a job last told its progress, in seconds of its run."""
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        return max((row["t"] for row in reader.rows("progress")), default=0.0)


def shares(user: User, run: str) -> list[dict[str, Any]]:
    with RunReader(user.home / "runs" / run / "run.sqlite") as reader:
        return list(reader.rows("shares"))


def predicted(user: User, run: str) -> bool:
    return any(" core-seconds left (" in row["reason"] for row in shares(user, run))


def weight(user: User, run: str) -> float:
    """The latest that a job has; one that has none yet has the most."""
    given = shares(user, run)
    return float(given[-1]["cpu_weight"]) if given else math.inf
