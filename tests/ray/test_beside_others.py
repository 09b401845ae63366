"""A Ray cluster is shared: with other hubs, and with Ray's own jobs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.ray.hill import ADDRESS, RAY, Hill, Somebody, within

from headgate.testing import wait

pytestmark = pytest.mark.timeout(300)  # the first test waits for the cluster too

TAKES_ALL = f"""
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

ray.init(address={ADDRESS!r}, logging_level="ERROR", log_to_driver=False)
[node] = [node["NodeID"] for node in ray.nodes() if node["NodeManagerHostname"] == "c"]

@ray.remote(num_cpus=2, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
class Holder:
    def held(self):
        return "held"

print(ray.get((holder := Holder.remote()).held.remote()), flush=True)
input()
"""


@pytest.mark.long
def test_two_hubs_and_a_ray_job_of_somebody_else(user: Somebody, hill: Hill, speed: Path, tmp_path: Path) -> None:
    neighbour = Somebody(tmp_path / "next door", hill, speed, tmp_path / "home next door")
    user.write("train.py", "print('epoch 1/1 loss 0.5')")
    neighbour.write("train.py", "print('epoch 1/1 loss 0.25')")
    with subprocess.Popen(
        within("a", sys.executable, "-c", TAKES_ALL),
        env=user.variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        run = user.types("run", "--detach", "--json", "train.py", "--nodes", "c", *RAY).json["run"]
        user.sees_event(run, "warning", "waits")
        there = neighbour.runs("train.py", "--nodes", "b")
        assert [row["loss"] for row in neighbour.rows(there, "progress")] == [0.25]
        assert user.jobs(run)["train"]["state"] in ("waiting", "running")
        assert user.rows(run, "progress") == []
        other.stdin.write("\n")
        other.stdin.close()
        assert other.wait(60) == 0
    user.sees_state("train", "done", run=run)
    assert [row["loss"] for row in user.rows(run, "progress")] == [0.5]
    neighbour.leaves()
    user.leaves()
    wait.until(lambda: not hill.left(), 60, "nothing is left on the nodes")
