"""What people and papers would choose, with which benchmarks compare the planner."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.planning.jobs import cluster, gpus, nodes

from headgate.model.cluster import Cluster
from headgate.model.errors import UsageError
from headgate.model.plans import Plan

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import _baselines as baselines

MIXED = cluster(nodes("g", 3, gpus=gpus("T4", 2)), nodes("c", 3))
GRID = [
    Plan(strategy="ps", workers=w, servers=p, batch_per_worker=32)
    for w in range(1, 9)
    for p in range(1, 5)
]


def test_by_hand_there_is_a_worker_on_each_gpu_and_a_server_for_every_four() -> None:
    plan = baselines.manual(MIXED, 256)
    assert plan.worker_nodes == ("g0", "g0", "g1", "g1", "g2", "g2")
    assert plan.server_nodes == ("c0", "c1")
    assert plan.batch_per_worker == (43, 43, 43, 43, 42, 42)


def test_by_hand_there_is_a_worker_on_each_node_where_none_has_a_gpu() -> None:
    plan = baselines.manual(cluster(nodes("c", 5)), 50)
    assert (plan.workers, plan.batch_per_worker, plan.server_nodes) == (5, 10, ("c0", "c1"))
    assert baselines.manual(cluster(nodes("c", 1)), 50).strategy == "single"
    with pytest.raises(UsageError, match="no node"):
        baselines.manual(Cluster(()), 50)


def test_all_reduce_takes_everything_that_there_are_samples_for() -> None:
    assert Counter(baselines.all_reduce(MIXED, 256).worker_nodes) == {
        "g0": 2,
        "g1": 2,
        "g2": 2,
        "c0": 1,
        "c1": 1,
        "c2": 1,
    }
    assert baselines.all_reduce(MIXED, 4).workers == 4


def test_chance_takes_every_plan_at_times() -> None:
    assert {baselines.at_random(GRID[:4], seed) for seed in range(60)} == set(GRID[:4])
    assert baselines.at_random(GRID, 7) == baselines.at_random(GRID, 7)


def test_the_form_of_optimus_is_found_again_from_what_it_says() -> None:
    def step(w: int, p: int) -> float:
        return 0.01 * 32 + 0.5 * w / p + 0.03 * w + 0.02 * p

    measured = {plan: 32 * plan.workers / step(plan.workers, plan.servers) for plan in GRID[::3]}
    form = baselines.optimus_form(measured)
    for plan in GRID:
        assert form(plan.workers, plan.servers) == pytest.approx(
            32 * plan.workers / step(plan.workers, plan.servers), rel=1e-4
        )


def test_optimus_adds_what_gains_more_until_nothing_does() -> None:
    def throughput(plan: Plan) -> float:
        return 32 * plan.workers / (1.0 + 0.5 * plan.workers / plan.servers + 0.3 * plan.servers)

    chosen = baselines.optimus(GRID, {plan: throughput(plan) for plan in GRID[::3]})
    neighbours = [
        plan
        for plan in GRID
        if (plan.workers - chosen.workers, plan.servers - chosen.servers) in ((1, 0), (0, 1))
    ]
    assert all(throughput(plan) <= throughput(chosen) * (1 + 1e-6) for plan in neighbours)
    assert chosen.workers == 8


def test_nothing_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="no measured plan"):
        baselines.optimus(GRID, {})
