"""A node of a Ray cluster whose link is down: for a while, and for good."""

from __future__ import annotations

import time

import pytest
from tests.ray.hill import RAY, Hill, Somebody

from headgate import lab
from headgate.testing import wait

pytestmark = pytest.mark.timeout(300)  # the first test waits for the cluster too

COUNTS = """
    import itertools, time
    for step in itertools.count(1):
        print(f"step {step} loss {1 / step:.6f}", flush=True)
        time.sleep(0.1)
"""


@pytest.mark.long
def test_a_node_may_be_cut_off_for_five_seconds_and_is_gone_when_it_stays_away(user: Somebody, hill: Hill) -> None:
    user.variables["HEADGATE_RAY_PATIENCE_SECONDS"] = "20"
    user.write("counts.py", COUNTS)
    runs = {}
    for node in "bc":
        runs[node] = str(user.types("run", "--detach", "--json", "counts.py", "--nodes", node, *RAY).json["run"])
        user.sees_job("counts", lambda entry: (entry.get("step") or 0) > 2, runs[node], "takes steps")

    begun = time.monotonic()
    lab.change("hill/b", {}, plugged=False)
    before = _steps(user, runs["c"])
    wait.until(lambda: time.monotonic() > begun + 5 and _steps(user, runs["c"]) > before, 60, "five seconds, and steps")
    lab.change("hill/b", {}, plugged=True)
    before = _steps(user, runs["b"])
    wait.until(lambda: _steps(user, runs["b"]) > before + 5, 60, "steps of what was cut off")
    [row] = user.rows(runs["b"], "jobs")
    assert (row["state"], row["attempt"]) == ("running", 1)
    losses = [row["step"] for row in user.rows(runs["b"], "progress")]
    assert losses == sorted(losses)

    lab.change("hill/b", {}, plugged=False)
    job = user.sees_state("counts", "failed", run=runs["b"])
    assert "node b is gone" in job["reason"]
    before = _steps(user, runs["c"])
    wait.until(lambda: _steps(user, runs["c"]) > before + 5, 60, "steps of the other node's job")
    wait.until(lambda: not _counting(hill, "b"), 60, "the end of what was cut off")
    lab.change("hill/b", {}, plugged=True)
    hill.loses("b")
    hill.starts("b")
    user.types("stop", "--kill", "counts")
    user.sees_state("counts", "killed", run=runs["c"])


def _steps(user: Somebody, run: str) -> int:
    return max((row["step"] for row in user.rows(run, "progress") if row["step"] is not None), default=0)


def _counting(hill: Hill, node: str) -> list[str]:
    return [line for line in hill.processes(node).values() if "counts.py" in line]
