"""What becomes of jobs on a Ray cluster when a part of it dies; the parts that others need die
last.
"""

from __future__ import annotations

import pytest
from tests.hub.traces import variables
from tests.ray.hill import AGENT, RAY, Hill, Somebody
from tests.ray.test_running import LEARNS

from headgate.testing import wait

pytestmark = pytest.mark.timeout(300)  # a raylet takes its time to start, and to be missed

PS = ("--strategy", "ps", "--workers", "2", "--servers", "1")


def begins(user: Somebody) -> tuple[str, str]:
    """Start a job of two workers and a server on b and c; its run, and the node without the
    server.
    """
    user.write("learns.py", LEARNS)
    run = user.begins("learns.py", "--nodes", "b,c", *PS)
    nodes = {row["id"].split("/")[1]: row["node"] for row in user.rows(run, "tasks")}
    return run, "bc".replace(nodes["server-0"], "")


def ends(user: Somebody, run: str) -> None:
    user.types("stop", "learns")
    user.sees_state("learns", "stopped", run=run)


@pytest.mark.long
def test_a_worker_that_is_killed_joins_the_others_again_and_a_killed_agent_takes_its_tasks_along(
    user: Somebody, hill: Hill
) -> None:
    run, node = begins(user)
    [worker] = [
        pid for pid in hill.processes(node) if "/worker-" in variables(pid).get("HEADGATE_TASK", "")
    ]
    user.kills(worker)
    user.sees_event(run, "fault", "was lost: killed by SIGKILL; the others go on")
    user.sees_event(run, "note", "has joined at step")
    hill.kills(node, AGENT)
    user.sees_event(run, "fault", f"node {node} is gone")
    user.goes_on(run)
    ends(user, run)
    wait.until(lambda: not hill.left(), 60, "nothing is left on the nodes")


@pytest.mark.long
def test_a_job_whose_only_node_lost_its_agent_goes_on_there_though_it_is_the_hub_s_own(
    user: Somebody, hill: Hill
) -> None:
    user.write("learns.py", LEARNS)
    run = user.begins("learns.py", "--nodes", "a")
    user.types("checkpoint", "learns")
    wait.until(lambda: user.rows(run, "checkpoints"), 60, "a checkpoint")
    hill.kills("a", AGENT)
    user.sees_event(
        run, "fault", "worker-0 was lost: its node a is gone; it is started again from step"
    )
    user.sees_event(run, "waiting", "for node a to come back")
    user.sees_event(run, "running", "(attempt 2)")
    user.goes_on(run)
    assert {row["node"] for row in user.rows(run, "tasks")} == {"a"}
    ends(user, run)


@pytest.mark.long
def test_a_raylet_that_is_killed_is_a_node_that_is_gone_and_another_one_is_used_by_the_next_run(
    user: Somebody, hill: Hill
) -> None:
    run, node = begins(user)
    hill.loses(node)
    user.sees_event(run, "fault", f"node {node} is gone")
    user.goes_on(run)
    hill.starts(node)
    user.sees_event(run, "note", f"node {node} has come")
    ends(user, run)
    again, _ = begins(user)
    ends(user, again)


@pytest.mark.long
@pytest.mark.timeout(600)  # another head, and raylets for it
def test_a_killed_head_ends_its_jobs_with_one_line_and_they_resume_under_another(
    user: Somebody, hill: Hill
) -> None:
    run, _ = begins(user)
    hub = user.traces.hub()
    user.types("checkpoint", "learns")
    wait.until(lambda: user.rows(run, "checkpoints"), 60, "a checkpoint")
    before = {table: user.rows(run, table) for table in ("progress", "checkpoints")}
    hill.loses("a")
    job = user.sees_state("learns", "failed", run=run)
    assert "gone" in job["reason"]
    assert "\n" not in job["reason"]
    wait.until(lambda: not hill.left(), 60, "nothing is left on the nodes")
    refused = user.types("run", "learns.py", *RAY, code=1).message
    assert refused.startswith("no Ray cluster answers at 10.77.0.1:6379")
    user.types("run", "learns.py")
    assert user.traces.hub() == hub
    for table, rows in before.items():
        assert user.rows(run, table)[: len(rows)] == rows

    saved = user.rows(run, "checkpoints")[-1]
    hill.loses("b")
    hill.loses("c")
    hill.starts("a", "b", "c")
    again = user.json("resume", run, "--detach")["run"]
    user.sees_progress("learns", again)
    first = next(row for row in user.rows(again, "progress") if row["step"] is not None)
    assert first["step"] > saved["step"]
    assert {row["node"] for row in user.rows(again, "tasks")} == {"b", "c"}
    ends(user, again)
