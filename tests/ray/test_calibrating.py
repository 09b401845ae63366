"""The nodes of a Ray cluster and the links between them are measured, kept, and planned with."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest
from tests.planning.jobs import profile
from tests.ray.hill import AGENT, RAY, Hill, Somebody

from headgate import lab
from headgate.model.records import text_of
from headgate.model.units import say_bits, say_seconds
from headgate.testing import wait

pytestmark = pytest.mark.timeout(300)  # the first test waits for the cluster too

MEGABIT = 1e6 / 8
LIMITS = {"a": 200 * MEGABIT, "b": 200 * MEGABIT, "c": 50 * MEGABIT}
KERNEL = "core_convolution_gflops"


@pytest.fixture
def limited(hill: Hill) -> Iterator[None]:
    """The NICs of the nodes have these limits."""
    before = {node.name: node.nic_bytes_per_second for node in lab.nodes("hill").nodes}
    for rates in (LIMITS, before):
        for node, rate in rates.items():
            lab.change(f"hill/{node}", {"nic_bytes_per_second": rate})
        if rates is LIMITS:
            yield


@pytest.mark.long
@pytest.mark.usefixtures("limited")
def test_the_rates_of_nics_are_those_of_their_limits_and_are_kept(user: Somebody) -> None:
    told = user.json("calibrate", *RAY)
    nodes = {node["name"]: node for node in told["nodes"]}
    assert {name: node["nic_bytes_per_second"] for name, node in nodes.items()} == pytest.approx(
        LIMITS, rel=0.15
    )
    assert len({node["core_convolution_gflops"] for node in nodes.values()}) == 1
    assert all(0 < node["round_trip_seconds"] < 0.1 for node in nodes.values())
    kept = user.home / "calibrations" / "ray-10.77.0.1:6379.json"
    assert json.loads(kept.read_text())["links"] == told["links"]


@pytest.mark.long
@pytest.mark.usefixtures("limited")
def test_plans_reckon_with_what_was_measured(user: Somebody) -> None:
    fastest = max(
        user.json("calibrate", *RAY)["nodes"], key=lambda node: float(node["nic_bytes_per_second"])
    )
    (user.folder / "light.json").write_text(text_of(profile(dense_bytes=1_000_000)))
    planned = user.json("plan", "--profile", "./light.json", "--explain", "1", *RAY)
    assert len(set(planned["choice"]["plan"]["worker_nodes"])) > 1
    how = " ".join(term["how"] for term in planned["explain"])
    assert f"at {say_bits(fastest['nic_bytes_per_second'])}" in how
    assert f"round trips of {say_seconds(fastest['round_trip_seconds'])} between nodes" in how


@pytest.mark.long
def test_a_node_that_leaves_is_named_and_an_interrupt_leaves_nothing(
    user: Somebody, hill: Hill
) -> None:
    def measuring() -> bool:
        """Whether an agent does; the command itself did before there was one."""
        return bool(hill.left()) and any(
            KERNEL in line for node in "abc" for line in hill.processes(node).values()
        )

    leaves = user.starts("calibrate", "--again", *RAY)
    wait.until(measuring, 60, "a node measures")
    for node in "abc":
        hill.kills(node, AGENT)
    assert leaves.wait(60) == 1
    assert "is gone: " in leaves.communicate()[1]

    interrupted = user.starts("calibrate", "--again", *RAY)
    wait.until(measuring, 60, "a node measures")
    os.kill(interrupted.pid, signal.SIGINT)
    assert interrupted.wait(60) == 130
    wait.until(lambda: not hill.left(), 60, "nothing is left on the nodes")
    user.finds_nothing_left()
