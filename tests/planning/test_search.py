"""The best layout of a job, against all layouts."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.planning.jobs import GIB, GIGABIT, cluster, gpus, job, nodes, profile

from headgate.model.cluster import Cluster, GpuLink
from headgate.model.errors import UsageError
from headgate.model.plans import Plan, Prediction
from headgate.model.profiles import Profile, TimeFit
from headgate.planning import initial_layouts
from headgate.planning.bounds import bound
from headgate.planning.cost import CostModel
from headgate.planning.kinds import kinds
from headgate.planning.search import search
from headgate.planning.spaces import Space


def best(where: Cluster, of: Profile | None = None, **of_job: Any) -> Prediction:
    return search(CostModel(job(**of_job), where, of or profile())).best


def some_cluster(seed: int) -> Cluster:
    """Five nodes of two kinds drawn at random."""
    random = np.random.default_rng(seed)
    kinds = []
    for name, count in (("a", 2), ("b", 3)):
        cores, nic = (
            float(random.choice([0.5, 1, 2, 4])),
            float(random.choice([25e6, 125e6, 1.25e9])),
        )
        kinds.append(
            nodes(name, count, cores, nic, gpus=gpus("T4", 2) if random.random() < 0.3 else ())
        )
    return cluster(*kinds)


def some_gpus(seed: int) -> Cluster:
    """One to three nodes with several GPUs, joined in some way, and perhaps one without."""
    random = np.random.default_rng(seed)
    name, number = (
        str(random.choice(["A100", "K80", "Tesla V100-SXM2-16GB"])),
        int(random.choice([2, 4, 8])),
    )
    link = (None, GpuLink(1e9, "host"), GpuLink(200e9, "measured"), GpuLink(how="nvlink"))[
        random.integers(4)
    ]
    count, nic = int(random.integers(1, 3)), float(random.choice([12.5e6, 125e6, 12.5e9]))
    found = [nodes("g", count, 16.0, nic, gpus=gpus(name, number), gpu_link=link)]
    return cluster(*found, *([nodes("c", 1, 8.0, 125e6)] if random.random() < 0.5 else []))


# --- costing many at once


@pytest.mark.parametrize("allow", [(), ("async", "weak")])
@pytest.mark.parametrize("cores", [None, 3.0])
def test_layouts_cost_what_their_plans_do(allow: tuple[str, ...], cores: float | None) -> None:
    mixed = cluster(
        nodes("a", 3, 4.0),
        nodes("g", 2, 8.0, 10 * GIGABIT, gpus=gpus("T4", 2)),
        nodes("s", 2, 0.5, 25e6),
    )
    costs = CostModel(job(allow=allow, cores=cores), mixed, profile())
    space = Space(costs)
    random = np.random.default_rng(0)
    even = np.ones(len(space.patterns)) / len(space.patterns)
    rows = np.array([random.multinomial(random.integers(1, 6), even) for _ in range(300)])
    in_modes = []
    for mode in space.modes:
        found = space.cost(rows, mode).throughput
        runs = np.flatnonzero(found)[:20]
        plans = [space.plan(rows[i], mode) for i in runs]
        if not plans:  # a layout of this mode takes more workers than there are samples
            continue
        in_modes.append(mode)
        assert found[runs] == pytest.approx(costs.many(plans)[0])
        for plan in plans:
            sizes = plan.batch_per_worker
            whole = sum(sizes) if isinstance(sizes, tuple) else (sizes or 0) * plan.workers
            assert whole == 256 * mode.scale * (1 if plan.synchronous else plan.workers)
    assert len(in_modes) > len(allow)


def test_batches_of_unlike_workers_make_them_end_together() -> None:
    where = cluster(nodes("one", 1, 1.0, 10e9), nodes("half", 1, 0.5, 10e9))
    plan = best(where, profile(dense_bytes=1000)).plan
    sizes = (
        dict(zip(plan.worker_nodes, plan.batch_per_worker))
        if isinstance(plan.batch_per_worker, tuple)
        else {}
    )
    assert sum(sizes.values()) == 256
    ends = (0.01 + 0.002 * sizes["one0"], (0.01 + 0.002 * sizes["half0"]) / 0.5)
    assert abs(ends[0] - ends[1]) <= 0.004 + 1e-9


# --- the best


@pytest.mark.parametrize("allow", [(), ("async", "weak")])
@pytest.mark.parametrize("seed", range(6))
def test_it_finds_the_best_of_all_and_no_layout_exceeds_the_bound(
    seed: int, allow: tuple[str, ...]
) -> None:
    costs = CostModel(
        job(allow), some_cluster(seed), profile(batch=48, dense_bytes=int(10 ** (4 + seed % 4)))
    )
    space = Space(costs)
    every = max(
        space.cost(initial_layouts.every(space), mode).throughput.max() for mode in space.modes
    )
    assert bound(space) >= every * (1 - 1e-9)
    found = search(costs)
    assert found.best.throughput >= every * (1 - 5e-3)
    assert found.bound >= every * (1 - 1e-9)
    assert found.gap >= 0


@pytest.mark.parametrize("allow", [(), ("async", "weak")])
@pytest.mark.parametrize("seed", range(8))
def test_the_same_of_nodes_with_several_gpus(seed: int, allow: tuple[str, ...]) -> None:
    fits = (*profile().fits, TimeFit("A100", 1, 10.0 ** -(seed % 3 + 1), 1e-4, 0.02))
    of = profile(batch=64, dense_bytes=int(10 ** (5 + seed % 5)), fits=fits)
    costs = CostModel(job(allow), some_gpus(seed), of)
    space = Space(costs)
    every = max(
        space.cost(initial_layouts.every(space), mode).throughput.max() for mode in space.modes
    )
    assert bound(space) >= every * (1 - 1e-9)
    assert search(costs).best.throughput >= every * (1 - 5e-3)


@pytest.mark.parametrize("alpha", [0.001, 0.2])
@pytest.mark.parametrize("link", [GpuLink(1e9, "host"), GpuLink(300e9, "nvlink")])
def test_the_bound_of_one_node_counts_what_its_workers_cost_each_other(
    link: GpuLink, alpha: float
) -> None:
    where = cluster(nodes("g", 1, 64.0, gpus=gpus("A100", 8), gpu_link=link))
    of = profile(batch=64, dense_bytes=10**8, fits=(TimeFit("A100", 1, alpha, 1e-3, 0.02),))
    found = search(CostModel(job(), where, of))
    assert found.bound == pytest.approx(found.best.throughput, rel=0.02)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 7, 8])
@pytest.mark.parametrize("cores_only", [False, True])
def test_any_number_of_workers_that_is_asked_for_finds_room(workers: int, cores_only: bool) -> None:
    fits = (*profile().fits, TimeFit("A100", 1, 0.01, 1e-3, 0.02))
    for count in (1, 2):
        slots = () if cores_only else gpus("A100", 8 // count)
        where = cluster(nodes("g", count, 16.0, gpus=slots))
        assert best(where, profile(fits=fits), workers=(workers, workers)).plan.workers == workers


def test_one_node_more_brings_no_less() -> None:
    of, base = profile(), [*nodes("a", 3, 2.0), *nodes("b", 2, 1.0, 10 * GIGABIT)]
    before = best(cluster(base), of).throughput
    for more in (
        nodes("new", 1, 0.1, 1e6),
        nodes("new", 1, 4.0, 100 * GIGABIT),
        nodes("new", 1, gpus=gpus("T4")),
    ):
        assert best(cluster(base, more), of).throughput >= before * (1 - 1e-3)


def test_work_that_needs_no_network_goes_everywhere() -> None:
    plan = best(cluster(nodes("a", 4, nic=10e9)), profile(dense_bytes=1000)).plan
    assert (plan.workers, plan.batch_per_worker) == (4, 64)


def test_work_that_is_all_network_stays_on_one_node() -> None:
    found = best(cluster(nodes("a", 4, nic=GIGABIT / 10)), profile(dense_bytes=10**9))
    assert (found.plan.strategy, found.plan.tasks) == ("single", 1)


def test_nodes_without_gpus_serve_those_with() -> None:
    """BytePS: two machines with GPUs and fast NICs beside them take half the time of a ring of the
    two.
    """
    on_gpu = profile(
        fits=(*profile().fits, TimeFit("T4", 1, 0.01, 0.002, 0.02)), dense_bytes=10**8, batch=1024
    )
    where = cluster(
        nodes("g", 4, 8.0, 1.25e9, gpus=gpus("T4")), nodes("c", 4, 8.0, 1.25e9, core_gflops=None)
    )
    costs = CostModel(job(), where, on_gpu)
    plan = search(costs).best.plan
    served = Counter(plan.server_nodes)
    if plan.strategy == "ps":
        assert {name[0] for name in served} <= {"c", "g"}
    alone = costs.predict(
        Plan(
            strategy="allreduce",
            workers=4,
            batch_per_worker=256,
            worker_nodes=("g0", "g1", "g2", "g3"),
        )
    )
    assert search(costs).best.throughput > alone.throughput


def test_of_equal_plans_that_with_fewer_nodes_is_chosen() -> None:
    """A third worker cannot shorten a step of two samples."""
    long = profile(batch=2, dense_bytes=1000, fits=(TimeFit("cpu", 1, 0.01, 1.0, 0.02),))
    plan = best(cluster(nodes("a", 3, nic=10e9)), long).plan
    assert len({*plan.worker_nodes, *plan.server_nodes}) == plan.workers <= 2


def test_allowing_more_brings_no_less() -> None:
    where = cluster(nodes("a", 4))
    strict = search(CostModel(job(), where, profile()))
    wide = search(CostModel(job(allow=["async", "weak"]), where, profile()))
    assert strict.best.plan.synchronous
    assert strict.best.plan.backup_workers == 0
    assert wide.best.throughput >= strict.best.throughput
    assert {each.plan.synchronous for each in (wide.best, *wide.runners_up)} == {True, False}


def test_frameworks_get_only_what_they_can_do() -> None:
    where = cluster(nodes("a", 3, nic=10e9))
    for framework, alone, strategies in (
        ("jax", "", {"single", "allreduce"}),
        ("", "", {"single"}),
        ("torch", "its script has a process group of its own", {"single"}),
    ):
        of = profile(dense_bytes=1000)
        of = Profile(
            framework, "1", "profile", fits=of.fits, dense_bytes=1000, batch=256, alone=alone
        )
        found = search(CostModel(job(allow=["async", "weak"]), where, of))
        assert {each.plan.strategy for each in (found.best, *found.runners_up)} == strategies


# --- limits


@pytest.mark.parametrize(
    ("framework", "alone", "why"),
    [
        (
            "torch",
            "its script has a process group of its own",
            "its script has a process group of its own",
        ),
        ("xgboost", "", "Headgate joins no workers of xgboost"),
        ("", "", "Headgate joins no workers of an unknown framework"),
    ],
)
def test_where_several_workers_are_asked_of_what_trains_in_one_task_that_is_said(
    framework: str, alone: str, why: str
) -> None:
    of = replace(profile(), framework=framework, alone=alone)
    with pytest.raises(
        UsageError, match=f"no plan can run: 2 workers are asked for, it trains in one task: {why};"
    ):
        best(cluster(nodes("a", 3)), of, workers=(2, None))


def test_limits_of_workers_and_cores_hold() -> None:
    where = cluster(nodes("a", 6, 4.0, 10e9))
    plan = best(where, profile(dense_bytes=1000), workers=(2, 3), cores=4.0).plan
    assert 2 <= plan.workers <= 3
    assert plan.cores_per_worker is not None
    assert (
        plan.workers * plan.cores_per_worker + plan.servers * (plan.cores_per_server or 0.0) <= 4.0
    )
    assert best(where, workers=(20, None)).plan.workers >= 20
    with pytest.raises(UsageError, match="there is no room for 25 workers"):
        best(where, workers=(25, None))
    with pytest.raises(UsageError, match="300 workers are asked for, a step has 256 samples"):
        best(where, workers=(300, None))


def test_a_model_goes_only_where_it_fits() -> None:
    where = cluster(
        nodes("small", 2, 8.0, memory_bytes=GIB), nodes("large", 1, 1.0, memory_bytes=8 * GIB)
    )
    assert best(
        where, profile(memory_peak_bytes=4 * GIB, dense_bytes=3 * GIB // 2)
    ).plan.worker_nodes == ("large0",)
    with pytest.raises(
        UsageError,
        match=r"no plan can run: small allows 1 GiB of memory, a worker needs .* GiB; large",
    ):
        best(where, profile(memory_peak_bytes=40 * GIB, dense_bytes=19 * GIB))


def test_a_table_that_fits_on_no_node_is_divided_among_servers() -> None:
    where = cluster(nodes("a", 4, 4.0, memory_bytes=2 * GIB))
    plan = best(where, profile(sparse_bytes=3 * GIB, memory_peak_bytes=4 * GIB)).plan
    assert plan.strategy == "ps"
    assert len(set(plan.server_nodes)) >= 2


def test_gpus_that_are_asked_for_are_there() -> None:
    where = cluster(nodes("c", 2, 64.0), nodes("g", 1, gpus=gpus("T4", 4)))
    plan = best(where, gpus=2).plan
    assert set(plan.worker_nodes) == {"g0"}
    assert plan.workers <= 2
    with pytest.raises(
        UsageError, match="c has 0 GPUs, 8 are asked for; g has 4 GPUs, 8 are asked for"
    ):
        best(where, gpus=8)


def test_nodes_in_use_are_left_alone() -> None:
    costs = CostModel(job(), cluster(nodes("a", 3, nic=10e9)), profile(dense_bytes=1000))
    plan = search(costs, used={"a0"}).best.plan
    assert set(plan.worker_nodes) == {"a1", "a2"}
    with pytest.raises(UsageError, match="a: other jobs use all 3"):
        search(costs, used={"a0", "a1", "a2"})


def test_thousands_of_nodes_cost_by_their_kinds() -> None:
    where = cluster(nodes("a", 1500, 4.0, 10e9), nodes("b", 1500, 2.0, 1.25e9))
    found = search(CostModel(job(), where, profile(dense_bytes=10**6, batch=65_536)))
    assert found.costed < 50_000
    assert found.best.plan.workers > 100
    assert found.gap < 0.5


def test_machines_that_report_a_little_more_memory_are_of_one_kind() -> None:
    [found] = kinds(
        [*nodes("a", 2, memory_bytes=16 * GIB + GIB // 10), *nodes("a", 1, memory_bytes=16 * GIB)]
    )
    assert (len(found.names), found.node.memory_bytes) == (3, 16 * GIB)
    assert len(kinds([*nodes("a", 1), *nodes("a", 1, memory_bytes=8 * GIB)])) == 2


def test_the_list_of_plans_has_the_best_of_each_strategy_and_of_several_sizes() -> None:
    where = cluster(nodes("a", 6, 4.0), nodes("b", 6, 2.0, 25e6))
    shown = search(CostModel(job(allow=("async",)), where, profile()), runners_up=9)
    plans = [shown.best.plan, *(each.plan for each in shown.runners_up)]
    assert len(plans) == 10
    assert {(plan.strategy, plan.synchronous) for plan in plans} >= {
        *(("single", True), ("allreduce", True), ("ps", True), ("ps", False))
    }
    assert len({plan.workers for plan in plans}) >= 3
    rates = [each.throughput for each in shown.runners_up]
    assert rates == sorted(rates, reverse=True)
    singles = [each.throughput for each in shown.runners_up if each.plan.strategy == "single"]
    alone = best(where, workers=(1, 1))
    assert singles[0] == pytest.approx(alone.throughput)


def test_the_next_best_alone_is_the_next_best() -> None:
    costs = CostModel(job(), cluster(nodes("a", 6, 4.0)), profile())
    [second] = search(costs, runners_up=1).runners_up
    assert second.throughput >= max(
        each.throughput for each in search(costs, runners_up=9).runners_up
    )
