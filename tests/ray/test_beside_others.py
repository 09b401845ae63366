"""A Ray cluster is shared: with other hubs, and with Ray's own jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.ray.hill import ADDRESS, RAY, Hill, Somebody, within
from tests.ray.test_running import LEARNS

pytestmark = pytest.mark.timeout(300)  # the first test waits for the cluster too

HOLDS = f"""
import sys
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init(address={ADDRESS!r}, logging_level="ERROR", log_to_driver=False)
alive = [node for node in ray.nodes() if node["Alive"]]
[node] = [node["NodeID"] for node in alive if node["NodeManagerHostname"] == sys.argv[1]]

@ray.remote(num_cpus=2, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
class Holder:
    def held(self):
        return "held"

holder = Holder.remote()
held = holder.held.remote()
if not ray.wait([held], timeout=2)[0]:
    print("waits", flush=True)
print(ray.get(held), flush=True)
input()
"""


class Other:
    """A Ray job of somebody else, that holds all CPUs of a node until it is told to end."""

    def __init__(self, user: Somebody, node: str) -> None:
        self._process = subprocess.Popen(
            within("a", sys.executable, "-c", HOLDS, node),
            env=user.variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def ends(self) -> None:
        self._process.communicate("\n", 60)
        assert self._process.returncode == 0


@pytest.mark.long
def test_two_hubs_and_a_ray_job_of_somebody_else(
    user: Somebody, hill: Hill, speed: Path, tmp_path: Path
) -> None:
    neighbour = Somebody(tmp_path / "next door", hill, speed, tmp_path / "home next door")
    user.write("train.py", "print('epoch 1/1 loss 0.5')")
    neighbour.write("train.py", "print('epoch 1/1 loss 0.25')")
    other = Other(user, "c")
    assert other.says() == "held"
    run = user.types("run", "--detach", "--json", "train.py", "--nodes", "c", *RAY).json["run"]
    what = "for Ray: asked for 2 CPUs on node c, 0 CPUs free"
    waits = user.sees_job("train", lambda job: job["reason"] == what, run, what)
    assert (waits["state"], waits["started"]) == ("waiting", None)
    there = neighbour.runs("train.py", "--nodes", "b")
    assert [row["loss"] for row in neighbour.rows(there, "progress")] == [0.25]
    assert user.jobs(run)["train"]["state"] == "waiting"
    assert user.rows(run, "progress") == []
    other.ends()
    done = user.sees_state("train", "done", run=run)
    assert done["started"] > 2.0  # when it had room
    assert [row["loss"] for row in user.rows(run, "progress")] == [0.5]
    neighbour.leaves()


@pytest.mark.long
def test_others_wait_for_what_a_job_takes_and_have_it_when_a_worker_leaves_and_when_the_job_ends(
    user: Somebody, hill: Hill
) -> None:
    user.write("learns.py", LEARNS)
    run = user.begins(
        "learns.py", "--nodes", "b,c", "--strategy", "ps", "--workers", "2", "--servers", "1"
    )
    nodes = {row["id"].split("/")[1]: row["node"] for row in user.rows(run, "tasks")}
    assert nodes == {"worker-0": "b", "server-0": "b", "worker-1": "c"}
    takes = [("b", {"CPU": 1.0}), ("b", {"CPU": 1.0}), ("c", {"CPU": 2.0})]
    hill.accounts().show(lambda table: table.set_aside() == takes, "what its plan takes")
    on_b, on_c = Other(user, "b"), Other(user, "c")
    assert [on_b.says(), on_c.says()] == ["waits", "waits"]
    user.types("resize", "learns", "--workers", "1")
    assert on_c.says() == "held"
    hill.accounts().show(
        lambda table: table.set_aside() == takes[:2], "the others keep what they take"
    )
    user.goes_on(run)
    user.types("stop", "learns")
    assert on_b.says() == "held"
    user.sees_state("learns", "stopped", run=run)
    on_b.ends()
    on_c.ends()
