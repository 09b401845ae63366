"""What a plan costs, against steps worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from tests.planning.jobs import GIB, GIGABIT, cluster, gpus, job, nodes, profile

from headgate.model.cluster import Cluster, GpuLink, Node
from headgate.model.errors import UsageError
from headgate.model.identifiers import TaskName
from headgate.model.plans import Plan
from headgate.model.profiles import Dataset, Profile, StepTime, TimeFit
from headgate.planning.cost import CostModel
from headgate.planning.devices import core_ratio
from headgate.planning.search import search
from headgate.task.fit import fit_line

FOUR = cluster(nodes("a", 4), nodes("slow", 2, nic=GIGABIT / 5))
ALL = ("a0", "a1", "a2", "a3")
ONCE = 1.08 * 25e6 / GIGABIT  # seconds in which the model goes through a NIC


def parts(
    plan: Plan, where: Cluster = FOUR, of: Profile | None = None, **of_job: Any
) -> dict[str, float]:
    """Seconds of a plan's step by the name of the part."""
    costs = CostModel(job(**of_job), where, of or profile())
    return {term.name: term.seconds for term in costs.explain(plan)}


def single(name: str, batch: int = 256, **fields: Any) -> Plan:
    return Plan(
        strategy="single", workers=1, batch_per_worker=batch, worker_nodes=(name,), **fields
    )


def ring(*names: str, batch: int | tuple[int, ...] = 64) -> Plan:
    return Plan(
        strategy="allreduce", workers=len(names), batch_per_worker=batch, worker_nodes=names
    )


def ps(workers: tuple[str, ...], servers: tuple[str, ...], batch: int = 64, **fields: Any) -> Plan:
    on: dict[str, Any] = {"worker_nodes": workers, "server_nodes": servers}
    return Plan(
        strategy="ps",
        batch_per_worker=batch,
        workers=len(workers),
        servers=len(servers),
        **on,
        **fields,
    )


# --- compute


def test_a_single_worker_takes_the_step_that_was_fitted() -> None:
    found = CostModel(job(), FOUR, profile()).predict(single("a0"))
    assert found.seconds == {"compute": pytest.approx(0.01 + 0.002 * 256)}
    assert found.throughput == pytest.approx(256 / 0.522)
    assert found.low < found.throughput < found.high
    assert found.bottleneck == "compute"


def test_more_cores_speed_up_what_grows_with_the_batch_by_the_power_that_was_fitted() -> None:
    where = cluster(nodes("large", 1, cores=8))
    assert parts(single("large0"), where)["beta"] == pytest.approx(0.512 / 8**0.8)
    assert parts(single("large0"), where)["alpha"] == pytest.approx(0.01)


def test_half_a_core_takes_twice_as_long_for_everything() -> None:
    where = cluster(nodes("half", 1, cores=0.5))
    assert parts(single("half0"), where) == {
        "alpha": pytest.approx(0.02),
        "beta": pytest.approx(1.024),
    }


def test_cores_that_a_plan_grants_count_and_not_those_of_the_node() -> None:
    where = cluster(nodes("large", 1, cores=8))
    assert parts(single("large0", cores_per_worker=2.0), where)["beta"] == pytest.approx(
        0.512 / 2**0.8
    )


def test_a_core_that_was_measured_twice_as_fast_takes_half_as_long() -> None:
    slow, fast = Node("slow", 1, GIB, core_gflops=40.0), Node("fast", 1, GIB, core_gflops=80.0)
    costs = CostModel(job(), Cluster((slow, fast)), profile(), measured_on=slow)
    once, twice = costs.predict(single("slow")), costs.predict(single("fast"))
    assert twice.throughput == pytest.approx(2 * once.throughput)


@pytest.mark.parametrize("cores", [1.0, 8.0])
def test_reading_samples_is_part_of_a_step_and_one_thread_however_many_cores_there_are(
    cores: float,
) -> None:
    reads = profile(
        dataset=Dataset(samples=1000, bytes_per_sample=8.0, read_seconds_per_sample=0.001)
    )
    found = parts(single("large0"), cluster(nodes("large", 1, cores=cores)), reads)
    assert found["beta"] == pytest.approx(0.002 * 256 / cores**0.8)
    assert found["reading"] == pytest.approx(0.001 * 256)


def test_a_slow_core_reads_slowly() -> None:
    reads = profile(
        dataset=Dataset(samples=1000, bytes_per_sample=8.0, read_seconds_per_sample=0.001)
    )
    slow, fast = Node("slow", 1, GIB, core_gflops=40.0), Node("fast", 1, GIB, core_gflops=80.0)
    costs = CostModel(job(), Cluster((fast, slow)), reads, measured_on=fast)
    assert {term.name: term.seconds for term in costs.explain(single("slow"))}[
        "reading"
    ] == pytest.approx(0.512)


@pytest.mark.parametrize("threads", [(1,), (1, 2)])
def test_steps_that_take_the_same_whatever_their_batch_do_so_when_it_is_divided(
    threads: tuple[int, ...],
) -> None:
    times = tuple(StepTime("cpu", t, b, 0.05, 20) for t in threads for b in (32, 64, 128, 256))
    flat = profile(fits=tuple(TimeFit("cpu", t, 0.05, 0.0, 0.0) for t in threads), step_times=times)
    found = CostModel(job(), cluster(nodes("large", 2, cores=8)), flat)
    assert found.predict(single("large0")).throughput == pytest.approx(256 / 0.05)
    assert found.predict(single("large0", 32)).throughput == pytest.approx(32 / 0.05)
    assert search(found).best.plan.strategy == "single"


def test_a_gpu_takes_what_was_timed_on_it_and_one_that_was_not_what_its_peak_says() -> None:
    on_gpu = profile(fits=(*profile().fits, TimeFit("Tesla V100", 1, 0.004, 0.0001, 0.02)))
    where = cluster(
        nodes("v", 1, gpus=gpus("Tesla V100")),
        nodes("p", 1, gpus=gpus("Tesla P100")),
        nodes("c", 1),
    )
    assert parts(single("v0"), where, on_gpu) == {
        "alpha": pytest.approx(0.004),
        "beta": pytest.approx(0.0256),
    }
    assert parts(single("p0"), where, on_gpu)["beta"] == pytest.approx(0.0256 * 14 / 9.5)
    assert parts(single("c0"), where, on_gpu)["beta"] == pytest.approx(0.512)
    assert parts(single("v0"), where, on_gpu, gpus=0)["beta"] == pytest.approx(0.512)
    notes = CostModel(job(), where, on_gpu).notes
    assert any("from steps timed on Tesla V100" in note for note in notes)


def test_one_batch_size_that_was_timed_says_what_it_can() -> None:
    timed = profile(fits=(), step_times=(StepTime("cpu", 1, 256, 0.5, 20),))
    assert sum(parts(single("a0"), of=timed).values()) == pytest.approx(0.5)


def test_unlike_batches_wait_for_the_slowest() -> None:
    assert parts(ring("a0", "a1", batch=(56, 200)))["beta"] == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("waited", "spread", "others"), [(0.0, 0.5, 0.0), (0.6, 0.01, 0.6), (0.0, 0.01, 0.9)]
)
def test_steps_that_were_far_apart_or_held_up_by_others_widen_the_band(
    waited: float, spread: float, others: float
) -> None:
    def band(spread: float, waited: float, others: float) -> tuple[float, int]:
        times = tuple(
            StepTime("cpu", 1, batch, 0.01 + 0.002 * batch, 20, spread, waited)
            for batch in (64, 128, 256)
        )
        found = CostModel(job(), FOUR, profile(step_times=times, others=others))
        return found.predict(single("a0")).high / found.predict(single("a0")).low, len(found.notes)

    (calm, said), (wide, more) = band(0.01, 0.0, 0.05), band(spread, waited, others)
    assert wide > 2 * calm
    assert more - said == (waited > 0 or others > 0)


@pytest.mark.parametrize(("timed", "elsewhere"), [("A100", {}), ("cpu", {"gpus": gpus("A100")})])
def test_steps_that_took_the_same_whatever_their_batch_say_something_of_other_devices_too(
    timed: str, elsewhere: dict[str, Any]
) -> None:
    flat = profile(
        fits=(TimeFit(timed, 1, 0.05, 0.0, 0.0),), step_times=(StepTime(timed, 1, 256, 0.05, 20),)
    )
    found = CostModel(job(), cluster(nodes("other", 1, **elsewhere)), flat).predict(
        single("other0")
    )
    assert 1e-4 < found.seconds["compute"] < 1e3


# --- several GPUs in a node

VGG = {64: 0.1979, 128: 0.3810, 256: 0.7613}
"""Seconds of a step on one A100, as ElasticFlow (ASPLOS 2023) published them."""


def vgg(batch: int, **where: Any) -> CostModel:
    """VGG-16 on eight A100s in a node, of which one was timed."""
    line = fit_line(list(VGG), list(VGG.values()))
    of = profile(
        fits=(TimeFit("A100", 1, line.alpha, line.beta, line.relative_error),),
        step_times=tuple(StepTime("A100", 1, size, seconds, 20) for size, seconds in VGG.items()),
        dense_bytes=553_000_000,
        batch=batch,
    )
    return CostModel(job(), cluster(nodes("dgx", 1, cores=64, gpus=gpus("A100", 8), **where)), of)


@pytest.mark.parametrize(
    ("workers", "batch", "measured"),
    [(2, 128, 0.2052), (4, 128, 0.1147), (8, 64, 0.0517), (8, 128, 0.0737), (8, 256, 0.1251)],
)
def test_gpus_of_a_node_are_as_fast_as_others_measured(
    workers: int, batch: int, measured: float
) -> None:
    plan = ring(*["dgx0"] * workers, batch=batch // workers)
    found, rate = vgg(batch).predict(plan), batch / measured
    assert found.throughput == pytest.approx(rate, rel=0.25)
    assert found.low < rate < found.high
    assert (
        vgg(batch).predict(ring(*["dgx0"] * 8, batch=batch // 8)).throughput
        > 2 * vgg(batch).predict(single("dgx0", batch)).throughput
    )
    assert search(vgg(batch)).best.plan.workers == 8


def test_how_gpus_are_joined_is_assumed_aloud_and_widens_the_band() -> None:
    def band(link: GpuLink | None, name: str = "A100") -> tuple[float, float, str]:
        where = cluster(nodes("x", 1, gpus=gpus(name, 8), gpu_link=link))
        costs = CostModel(
            job(),
            where,
            profile(dense_bytes=2_000_000_000, fits=(TimeFit(name, 1, 0.01, 0.0001, 0.02),)),
        )
        found = costs.predict(ring(*["x0"] * 8, batch=32))
        return found.throughput, found.high / found.low, " ".join(costs.notes)

    unsaid, said = band(None), band(GpuLink(300e9, "nvlink"))
    assert (
        "how GPUs of x are joined is not known: NVLink, 300 GB/s each direction is assumed"
        in unsaid[2]
    )
    assert "gpu_link" not in said[2]
    assert unsaid[0] == pytest.approx(said[0])
    assert unsaid[1] > said[1]
    assert band(GpuLink(25e9, "pcie"))[0] < said[0] / 2
    assert band(GpuLink(225e9, "measured"))[0] == pytest.approx(said[0])
    assert "PCIe, 32 GB/s each direction is assumed" in band(GpuLink(how="pcie"))[2]
    assert "PCIe through the host, 32 GB/s" in band(None, "NVIDIA A100-PCIE-40GB")[2]
    assert band(None, "Tesla V100-SXM2-16GB")[1] < band(None, "Tesla V100")[1]


def test_of_nodes_that_are_alike_but_for_their_links_those_with_the_fast_one_are_taken() -> None:
    fast = nodes("fast", 1, gpus=gpus("A100", 4), gpu_link=GpuLink(300e9, "nvlink"))
    slow = nodes("slow", 1, gpus=gpus("A100", 4), gpu_link=GpuLink(8e9, "host"))
    costs = CostModel(
        job(),
        cluster(slow, fast),
        profile(dense_bytes=2 * GIB, fits=(TimeFit("A100", 1, 0.01, 0.001, 0.02),)),
    )
    assert set(search(costs).best.plan.worker_nodes) == {"fast0"}
    inside = [costs.explain(ring(*[name] * 4, batch=64)) for name in ("fast0", "slow0")]
    seconds = [next(term.seconds for term in terms if term.name == "inside") for terms in inside]
    assert seconds == [pytest.approx(1.5 * 2 * GIB / 225e9), pytest.approx(1.5 * 2 * GIB / 3.2e9)]


def test_workers_on_a_node_hold_each_other_up_and_those_on_nodes_of_their_own_do_not() -> None:
    where = cluster(nodes("v", 8, gpus=gpus("V100", 8)))
    of = profile(fits=(TimeFit("V100", 1, 0.01, 0.001, 0.02),))
    together = parts(ring(*["v0"] * 8, batch=32), where, of)["contention"]
    assert together == pytest.approx(
        3 * parts(ring(*["v0"] * 2, batch=32), where, of)["contention"]
    )
    assert "contention" not in parts(ring(*(f"v{i}" for i in range(8)), batch=32), where, of)
    assert "contention" not in parts(ring("a0", "a0"))  # cores are divided already


# --- network


def test_a_ring_moves_twice_the_model_less_a_part_through_its_slowest_nic() -> None:
    assert parts(ring(*ALL))["ring"] == pytest.approx(2 * 3 / 4 * ONCE)
    assert parts(ring("a0", "a1", "slow0"))["ring"] == pytest.approx(2 * 2 / 3 * ONCE * 5)


def test_workers_on_one_node_send_nothing_through_its_nic() -> None:
    found = parts(ring("a0", "a0"))
    assert "ring" not in found
    assert found["inside"] > 0


def test_a_worker_beside_the_only_server_sends_nothing() -> None:
    assert not {"to_servers", "to_workers"} & parts(ps(("a0",), ("a0",))).keys()


def test_servers_beside_workers_carry_what_a_ring_does() -> None:
    assert parts(ps(ALL, ALL))["to_servers"] == pytest.approx(2 * 3 / 4 * ONCE)


def test_servers_apart_carry_what_all_workers_send_divided_among_them() -> None:
    found = parts(ps(("a0", "a1", "a2"), ("a3",)))
    assert found["to_servers"] == pytest.approx(3 * ONCE)
    assert found["to_workers"] == pytest.approx(ONCE)
    assert parts(ps(("a0", "a1"), ("a2", "a3")))["to_servers"] == pytest.approx(ONCE)


def test_a_node_with_more_servers_carries_more() -> None:
    """Two machines with GPUs and one without: the best shares by BytePS (OSDI 2020), 1/6 and 4/6,
    as servers.
    """
    found = parts(ps(("a0", "a1"), ("a0", "a1", *["a2"] * 2)))
    n, k = 2, 1
    best = 2 * n * (n - 1) / (n * n + k * n - 2 * k)
    assert found["to_servers"] == pytest.approx(best * ONCE)


def test_both_directions_and_updates_go_at_once() -> None:
    found = CostModel(job(), FOUR, profile()).predict(ps(("a0", "a1"), ("a2", "a3")))
    assert ONCE <= found.seconds["network"] <= 1.15 * ONCE


def test_sparse_layers_move_the_rows_that_a_batch_touches() -> None:
    sparse = profile(sparse_bytes=10**9, dataset=Dataset(10_000, 80.0, None))
    moved = parts(ps(("a0",), ("a1",), batch=64), of=sparse)["to_servers"]
    assert moved == pytest.approx(1.08 * (25e6 + 64 * 10 * 256) / GIGABIT)


def test_rows_that_were_measured_count_and_nothing_is_said_to_be_estimated() -> None:
    sparse = profile(sparse_bytes=10**9, sparse_rows_per_sample=5.0, sparse_bytes_per_sample=320.0)
    moved = parts(ps(("a0",), ("a1",), batch=64), of=sparse)["to_servers"]
    assert moved == pytest.approx(1.08 * (25e6 + 64 * (320 + 5 * 8)) / GIGABIT)
    assert not [note for note in CostModel(job(), FOUR, sparse).notes if "estimated" in note]


def test_a_core_is_compared_with_what_the_profile_says_of_the_one_that_was_measured() -> None:
    node = Node("a", 1, GIB, core_gflops=80.0, core_convolution_gflops=10.0)
    plain = profile(core_gflops=40.0, core_convolution_gflops=20.0)
    assert core_ratio(plain, node, None) == 2.0
    assert (
        core_ratio(
            profile(core_gflops=40.0, core_convolution_gflops=20.0, layers={"Conv2d": 3}),
            node,
            None,
        )
        == 0.5
    )
    assert core_ratio(profile(), node, None) is None
    assert core_ratio(profile(), node, Node("b", 1, GIB, core_gflops=160.0)) == 0.5


def test_encryption_costs_cores() -> None:
    plain, secret = (parts(ps(("a0",), ("a1",)), encrypt=encrypt) for encrypt in (False, True))
    for name in ("handling", "update"):
        assert secret[name] - plain[name] == pytest.approx(2 * (1.25e-9 - 0.37e-9) * 25e6)


def test_what_was_timed_at_a_batch_counts_there_and_not_the_line_through_all() -> None:
    times = tuple(
        StepTime("cpu", 1, batch, seconds, 20)
        for batch, seconds in ((64, 0.1), (128, 0.3), (256, 0.9))
    )
    line = TimeFit("cpu", 1, 0.0, 0.0025, 0.2)
    for step in times:
        compute = parts(single("a0", step.batch), of=profile(step_times=times, fits=(line,)))
        assert compute["beta"] == pytest.approx(step.seconds)
    beyond = parts(single("a0", 512), of=profile(step_times=times, fits=(line,)))["beta"]
    assert beyond == pytest.approx(2 * 0.9)


def test_rows_and_tables_ask_more_of_cores_than_their_bytes() -> None:
    layers = {"EmbeddingBag": 3, "Linear": 1}
    rows = profile(
        dense_bytes=64_000,
        sparse_bytes=64_000_000,
        sparse_rows_per_sample=10.0,
        sparse_bytes_per_sample=640.0,
    )
    dense = profile(dense_bytes=64_000 + 64 * 72 * 10)
    plan = ps(("a0", "a1"), ("a2",))
    of_rows, of_dense = parts(plan, of=replace(rows, layers=layers)), parts(plan, of=dense)
    assert of_rows["handling"] > 1.5 * of_dense["handling"]
    assert of_rows["update"] > 1.5 * of_dense["update"]
    for name in ("exchange", "worker", "server"):
        assert of_rows[name] > 3 * of_dense[name]


# --- together


def test_a_server_on_a_part_of_a_core_answers_each_worker_more_slowly() -> None:
    where = cluster(nodes("a", 4), nodes("half", 1, cores=0.5))
    alone = parts(ps(ALL[:1], ("a3",)), where)["worker"]
    for count in (1, 2, 3):
        fast, slow = (parts(ps(ALL[:count], (name,)), where)["worker"] for name in ("a3", "half0"))
        assert [fast, slow] == pytest.approx([count * alone, 2 * count * alone])


def test_a_part_of_a_core_sends_and_takes_as_much_more_slowly() -> None:
    half = cluster(nodes("half", 2, cores=0.5))
    there = ps(("a0",), ("a1",)), ps(("half0",), ("half1",))
    assert parts(there[1], half)["handling"] == pytest.approx(2 * parts(there[0])["handling"])


def test_a_ring_takes_cores_too_and_never_those_of_encryption() -> None:
    for encrypt in (False, True):
        assert parts(ring(*ALL), encrypt=encrypt)["handling"] == pytest.approx(
            2 * 3 / 4 * 1.1e-9 * 25e6
        )
    assert "handling" not in parts(ring("a0", "a0"))


def test_a_node_computes_sends_and_serves_on_the_same_cores() -> None:
    """However fast its NIC: what its worker and its server ask of them adds up."""
    where = cluster(nodes("small", 4, cores=0.5, nic=80 * GIGABIT))
    beside = ps(("small0", "small1"), ("small0", "small1"))
    found = parts(beside, where)
    # The server's half of the cores is not more than half of them.
    asked = sum(found[name] for name in ("alpha", "beta", "handling", "exchange", "server"))
    asked += (found["update"] + found["worker"]) / 2
    step = 128 / CostModel(job(), where, profile()).predict(beside).throughput
    assert asked <= step <= 1.02 * asked


def test_gpus_send_around_a_ring_by_themselves_unless_a_core_is_among_them() -> None:
    where = cluster(nodes("gpu", 2, gpus=gpus("v100")), nodes("core", 1))
    timed = profile(fits=(*profile().fits, TimeFit("v100", 1, 0.01, 0.002, 0.02)))
    alone, mixed = (
        parts(ring("gpu0", "gpu1"), where, timed),
        parts(ring("gpu0", "core0"), where, timed),
    )
    assert not {"handling", "collective"} & alone.keys()
    assert {"handling", "collective"} <= mixed.keys()


def test_on_a_part_of_a_core_nothing_goes_out_while_it_computes() -> None:
    large = profile(dense_bytes=100_000_000)
    for cores in (0.5, 1.0):
        where = cluster(nodes("some", 4, cores=cores))
        plan = ring("some0", "some1", "some2", "some3")
        found = parts(plan, where, large)
        one_by_one = sum(found[name] for name in ("alpha", "beta", "handling", "ring"))
        step = 4 * 64 / CostModel(job(), where, large).predict(plan).throughput
        assert (step >= one_by_one) == (cores < 1)


def test_a_gpu_computes_while_cores_serve() -> None:
    where = cluster(nodes("gpu", 2, cores=0.5, nic=80 * GIGABIT, gpus=gpus("v100")))
    timed = profile(fits=(TimeFit("v100", 1, 0.01, 0.002, 0.02),))
    beside = ps(("gpu0", "gpu1"), ("gpu0", "gpu1"))
    found = parts(beside, where, timed)
    step = 128 / CostModel(job(), where, timed).predict(beside).throughput
    assert (
        step
        < found["alpha"] + found["beta"] + found["exchange"] + found["worker"] + found["update"] / 2
    )


def test_no_step_is_shorter_than_the_forward_pass_and_what_cannot_hide_behind_it() -> None:
    large = profile(flops_per_sample=3e6, flops_per_sample_forward=1e6, dense_bytes=100_000_000)
    found = CostModel(job(), FOUR, large).predict(ring("a0", "a1", "a2", "a3", batch=768))
    step = 4 * 768 / found.throughput
    compute, network = found.seconds["compute"], found.seconds["network"]
    assert step >= compute / 3 + max(2 / 3 * compute, network) - 1e-9
    assert max(compute, network) < step < compute + network


def test_gradients_that_are_one_bucket_leave_when_all_are_there() -> None:
    found = CostModel(job(), FOUR, profile()).predict(ring("a0", "a1", "a2", "a3", batch=192))
    assert 768 / found.throughput == pytest.approx(
        found.seconds["compute"] + found.seconds["network"]
    )


def test_backup_workers_wait_less_and_train_on_less() -> None:
    costs = CostModel(job(), FOUR, profile())
    all_four, three = (
        costs.predict(ps(ALL, ("slow0",), backup_workers=backups)) for backups in (0, 1)
    )
    assert three.seconds["compute"] < all_four.seconds["compute"]
    assert three.throughput == pytest.approx(all_four.throughput * 3 / 4, rel=0.02)


def test_asynchronous_workers_add_up_until_a_server_is_full() -> None:
    """The mean values of a closed network with one station, exactly (Reiser and Lavenberg,
    1980).
    """
    where = cluster(nodes("a", 40))
    costs = CostModel(job(allow=["async"]), where, profile())
    names = tuple(f"a{i}" for i in range(1, 40))
    demand, throughput = 0.0, 0.0
    for count in (1, 2, 8, 39):
        plan = ps(names[:count], ("a0",), synchronous=False)
        found = {term.name: term.seconds for term in costs.explain(plan)}
        at_server = (found["to_servers"] ** 7 + found["update"] ** 7) ** (1 / 7)
        demand = (at_server + found["worker"]) / count
        thinking = found["alpha"] + found["beta"] + found["exchange"] + found["server"]
        waiting, rate = 0.0, 0.0
        for n in range(1, count + 1):
            response = demand * (1 + waiting)
            rate = n / (thinking + response)
            waiting = rate * response
        throughput = costs.predict(plan).throughput
        assert throughput == pytest.approx(64 * rate, rel=0.12)
        assert throughput <= 64 * min(count / (thinking + demand), 1 / demand) * (1 + 1e-9)
    assert throughput == pytest.approx(64 / demand, rel=0.05)


def test_a_bound_on_staleness_holds_all_to_the_pace_of_the_slowest() -> None:
    where = cluster(nodes("a", 2), nodes("half", 1, cores=0.25))
    costs = CostModel(job(allow=["async"]), where, profile(dense_bytes=1000))
    free, bound = (
        costs.predict(ps(("a0", "half0"), ("a1",), synchronous=False, staleness=staleness))
        for staleness in (None, 4)
    )
    assert bound.throughput == pytest.approx(2 * 64 / (4 * 0.138), rel=0.02)
    assert free.throughput == pytest.approx(64 / 0.138 + 64 / (4 * 0.138), rel=0.03)


# --- what is said


def test_every_part_says_what_happens_in_it_and_where_the_number_is_from() -> None:
    terms = CostModel(job(), FOUR, profile()).explain(ps(ALL, ("slow0",)))
    assert [term.seconds for term in terms] == sorted(
        (term.seconds for term in terms), reverse=True
    )
    assert terms[0].name == "to_servers"
    assert terms[0].how == "copies that cross the NIC, times 23.84 MiB at 1 Gbit/s"
    assert all(term.meaning and term.how and term.resource for term in terms)


def test_what_nobody_said_is_assumed_aloud_and_widens_the_band() -> None:
    said, unsaid = (
        CostModel(job(), cluster(nodes("a", 4, nic=nic)), profile()) for nic in (GIGABIT, None)
    )
    assert said.notes == ()
    assert "no NIC rate is known of a: 1 Gbit/s is assumed" in unsaid.notes[0]
    narrow, wide = said.predict(ring(*ALL)), unsaid.predict(ring(*ALL))
    assert wide.throughput == pytest.approx(narrow.throughput)
    assert math.log(wide.high / wide.low) > 2 * math.log(narrow.high / narrow.low)


def test_memory_is_that_of_the_model_and_of_the_batch() -> None:
    sizes = profile(
        dense_bytes=GIB, optimizer_state_bytes=2 * GIB, memory_peak_bytes=6 * GIB, batch=256
    )
    costs = CostModel(job(), FOUR, sizes)
    whole = costs.memory(single("a0"))
    half = costs.memory(ring("a0", "a1", batch=128))
    assert whole == {"worker-0": 6 * GIB}
    fixed = 4 * GIB + (300 << 20)
    assert half[TaskName("worker-1")] == pytest.approx(fixed + (6 * GIB - fixed) / 2, abs=2)
    served = costs.memory(ps(("a0",), ("a1", "a2")))
    assert served[TaskName("server-0")] == served[TaskName("server-1")] == 2 * GIB + (150 << 20)


@pytest.mark.parametrize(
    ("of", "where", "says"),
    [
        (Profile("torch", "2", "run"), FOUR, r"no seconds of a step.*headgate profile"),
        (profile(), Cluster(()), r"the cluster has no node"),
    ],
)
def test_what_nothing_can_be_said_of_is_refused(of: Profile, where: Cluster, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        CostModel(job(), where, of)


def test_a_plan_on_a_node_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="the plan names node 'b9'"):
        CostModel(job(), FOUR, profile()).predict(single("b9"))
