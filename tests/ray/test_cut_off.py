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
def test_a_node_may_be_cut_off_for_five_seconds_and_its_job_goes_elsewhere_when_it_stays_away(
    user: Somebody, hill: Hill
) -> None:
    user.variables["HEADGATE_RAY_PATIENCE_SECONDS"] = "20"
    user.write("counts.py", COUNTS)
    cut = _begins(user, "b,c")
    node = user.rows(cut, "tasks")[0]["node"]
    other = "bc".replace(node, "")
    stays = _begins(user, other)

    begun = time.monotonic()
    lab.change(f"hill/{node}", {}, plugged=False)
    before = _steps(user, stays)
    wait.until(
        lambda: time.monotonic() > begun + 5 and _steps(user, stays) > before,
        60,
        "five seconds, and steps",
    )
    lab.change(f"hill/{node}", {}, plugged=True)
    before = _steps(user, cut)
    wait.until(lambda: _steps(user, cut) > before + 5, 60, "steps of what was cut off")
    [row] = user.rows(cut, "jobs")
    assert (row["state"], row["attempt"]) == ("running", 1)
    losses = [row["step"] for row in user.rows(cut, "progress")]
    assert losses == sorted(losses)

    lab.change(f"hill/{node}", {}, plugged=False)
    user.sees_event(
        cut,
        "fault",
        f"worker-0 was lost: its node {node} is gone; it is started again from the beginning",
    )
    most = _steps(user, cut)
    user.sees_job(
        "counts", lambda entry: 2 < (entry.get("step") or 0) < most, cut, "takes steps elsewhere"
    )
    assert (user.rows(cut, "jobs")[0]["attempt"], user.rows(cut, "tasks")[-1]["node"]) == (2, other)
    before = _steps(user, stays)
    wait.until(lambda: _steps(user, stays) > before + 5, 60, "steps of the other node's job")
    wait.until(lambda: not _counting(hill, node), 60, "the end of what was cut off")
    lab.change(f"hill/{node}", {}, plugged=True)
    hill.loses(node)
    hill.starts(node)
    for run in (cut, stays):
        user.types("stop", "--kill", "counts", "--run", run)
        user.sees_state("counts", "killed", run=run)


def _begins(user: Somebody, nodes: str) -> str:
    """Start to count on one of some nodes; the id of the run, once it does."""
    run = str(
        user.types("run", "--detach", "--json", "counts.py", "--nodes", nodes, *RAY).json["run"]
    )
    user.sees_job("counts", lambda entry: (entry.get("step") or 0) > 2, run, "takes steps")
    return run


def _steps(user: Somebody, run: str) -> int:
    return max(
        (row["step"] for row in user.rows(run, "progress") if row["step"] is not None), default=0
    )


def _counting(hill: Hill, node: str) -> list[str]:
    return [line for line in hill.processes(node).values() if "counts.py" in line]
