"""The plans that a job could have."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from tests.planning.jobs import cluster, job, nodes, profile

from headgate.model.cluster import Cluster, Gpu, Node
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan
from headgate.model.profiles import Profile, StepTime, TimeFit
from headgate.planning import candidates
from headgate.planning.cost import CostModel
from headgate.planning.memory import gpu_need

GIB = 1 << 30
SMALL = Node("small", cores=2, memory_bytes=2 * GIB)
LARGE = Node("large", cores=8, memory_bytes=16 * GIB)
ACCELERATED = Node("accelerated", cores=4, memory_bytes=8 * GIB, gpus=(Gpu(0, "gpu", 40 * GIB),))
CLUSTER = Cluster((SMALL, LARGE, ACCELERATED))


def on(job: Job, cluster: Cluster = CLUSTER) -> list[str]:
    return [plan.worker_nodes[0] for plan in candidates(cluster, job)]


def test_a_job_without_limits_fits_everywhere_and_best_where_there_are_most_cores() -> None:
    assert on(Job(name="job", run="true")) == ["large", "accelerated", "small"]


def test_nodes_of_one_size_come_in_the_order_of_their_names() -> None:
    twins = Cluster((Node("b", 2, GIB), Node("a", 2, GIB)))
    assert on(Job(name="job", run="true"), twins) == ["a", "b"]


def test_limits_leave_out_nodes() -> None:
    assert on(Job(name="job", run="true", limits=Limits(memory_bytes=4 * GIB))) == [
        "large",
        "accelerated",
    ]
    assert on(Job(name="job", run="true", limits=Limits(gpus=1))) == ["accelerated"]
    assert on(Job(name="job", run="true", limits=Limits(gpus=0))) == [
        "large",
        "accelerated",
        "small",
    ]


def test_every_plan_is_one_task_with_the_job_s_cores() -> None:
    plans = candidates(CLUSTER, Job(name="job", run="true", limits=Limits(cores=1.5)))
    assert plans
    for plan in plans:
        assert (plan.strategy, plan.workers, plan.servers) == ("single", 1, 0)
        assert plan.cores_per_worker == 1.5
        assert plan.batch_per_worker is None


def test_a_job_that_fits_nowhere_is_told_why_for_each_node() -> None:
    with pytest.raises(UsageError) as raised:
        candidates(
            CLUSTER, Job(name="huge", run="true", limits=Limits(memory_bytes=12 * GIB, gpus=1))
        )
    assert str(raised.value) == (
        "job 'huge' fits on no node: small has 0 GPUs, 1 are asked for; large has 0 GPUs, 1 are "
        "asked for; accelerated has 8 GiB of memory, 12 GiB are asked for; lower its limits"
    )


def test_a_job_goes_to_nodes_whose_gpus_have_the_memory_that_it_states() -> None:
    def asks(needs: int, gpus: int | None = None) -> Job:
        return Job(name="job", run="true", limits=Limits(gpus=gpus, gpu_memory_bytes=needs * GIB))

    def has(name: str, *sizes: int) -> Node:
        return Node(
            name, 4, 8 * GIB, gpus=tuple(Gpu(i, "g", size * GIB) for i, size in enumerate(sizes))
        )

    where = Cluster((has("none"), has("one", 24), has("two", 24, 80)))
    assert on(asks(20), where) == ["one", "two"]
    assert on(asks(80), where) == ["two"]
    assert on(asks(20, gpus=2), where) == ["two"]
    measured = profile(step_times=(StepTime("cpu", 1, 256, 0.1, 10),))
    assert {plan.worker_nodes[0] for plan in candidates(where, asks(80), measured)} == {"two"}
    with pytest.raises(
        UsageError,
        match="two: its GPUs have 24 GiB of memory, 30 GiB on each of 2 GPUs are asked for",
    ):
        candidates(where, asks(30, gpus=2))
    with pytest.raises(UsageError) as raised:
        candidates(where, asks(100))
    assert str(raised.value) == (
        "job 'job' fits on no node: none has 0 GPUs, 100 GiB of GPU memory are asked for; one: its "
        "GPUs have 24 GiB of memory, 100 GiB are asked for; two: its largest GPU has 80 GiB of "
        "memory, 100 GiB are asked for; lower its limits"
    )


def test_what_is_needed_of_a_gpu_is_what_is_stated_or_else_the_larger_of_what_was_seen() -> None:
    cuda = 768 << 20
    seen = profile(gpu_memory_peak_bytes=8 * GIB)
    assert gpu_need(Limits(gpu_memory_bytes=GIB), seen, 30 * GIB).memory_bytes == GIB
    assert gpu_need(Limits(), seen, None).memory_bytes == 8 * GIB + cuda
    assert gpu_need(Limits(), seen, 9 * GIB).memory_bytes == 9 * GIB
    assert gpu_need(Limits(), seen, 8 * GIB).memory_bytes == 8 * GIB + cuda
    assert gpu_need(Limits(), profile(), 3 * GIB).memory_bytes == 3 * GIB
    assert gpu_need(Limits(), None, None).memory_bytes is None


def test_a_stated_plan_names_nodes_that_are_there_and_that_the_limits_fit_on() -> None:
    def asks(node: str, **limits: object) -> Job:
        plan = Plan(strategy="single", workers=1, batch_per_worker=None, worker_nodes=(node,))
        return Job(name="job", run="true", plan=plan, limits=Limits(**limits))  # type: ignore[arg-type]

    with pytest.raises(
        UsageError, match="its plan names node 'lage'; expected one of small, large, accelerated"
    ):
        candidates(CLUSTER, asks("lage"))
    with pytest.raises(
        UsageError,
        match="large has 0 GPUs, 1 are asked for; lower its limits, or name another node",
    ):
        candidates(CLUSTER, asks("large", gpus=1))


# --- with a profile


def test_with_a_profile_the_first_candidate_is_the_best_and_each_keeps_the_batch() -> None:
    where = cluster(nodes("a", 3, nic=10e9), nodes("b", 2, 0.5))
    costs = CostModel(job(), where, profile())
    plans = candidates(where, job(), profile())
    throughputs = [each.throughput for each in costs.predictions(plans)]
    assert throughputs[0] >= max(throughputs) * (1 - 5e-3)
    assert all(
        before >= after * (1 - 1e-3) for before, after in itertools.pairwise(throughputs[1:])
    )
    assert {plan.strategy for plan in plans} == {"single", "allreduce", "ps"}
    assert len(set(plans)) == len(plans) > 50
    for plan in plans:
        size = plan.batch_per_worker
        assert sum(size if isinstance(size, tuple) else [size or 0] * plan.workers) == 256
        assert plan.synchronous
        assert plan.backup_workers == 0
    assert candidates(where, job(), profile()) == plans


def test_nodes_in_use_are_left_out() -> None:
    plans = candidates(CLUSTER, Job(name="job", run="true"), used=["large"])
    assert [plan.worker_nodes for plan in plans] == [("accelerated",), ("small",)]
    with pytest.raises(UsageError, match="other jobs use all 3 nodes"):
        candidates(CLUSTER, Job(name="job", run="true"), used=["small", "large", "accelerated"])


def test_a_profile_that_has_no_time_of_a_step_leaves_a_plan_that_runs() -> None:
    ended = Profile("torch", "2", "run", notes=("it ended before its first step",))
    for fit in (
        (),
        (TimeFit("cpu", 1, math.nan, math.nan, None),),
        (TimeFit("cpu", 1, 0.1, -0.1, None),),
    ):
        failed = replace(ended, fits=fit)
        assert candidates(CLUSTER, job(), failed) == candidates(CLUSTER, job())


def test_a_stated_plan_wins_over_a_profile() -> None:
    plan = Plan(strategy="allreduce", workers=2, batch_per_worker=None)
    [found] = candidates(CLUSTER, Job(name="job", run="true", plan=plan), profile())
    assert found.workers == 2
