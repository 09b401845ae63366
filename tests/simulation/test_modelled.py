"""Speeds of jobs of which there is a profile, against what the cost model says of their plans."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.planning import jobs as planned
from tests.planning.jobs import GIGABIT, profile
from tests.simulation.places import FREE, ran

from headgate.model.cluster import Cluster
from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan
from headgate.planning.cost import CostModel
from headgate.simulation import Trace, TraceJob, figures, simulate
from headgate.simulation.traces import made

GIVEN = replace(FREE, profiles={"cnn": profile()})


def seconds(plan: Plan, where: Cluster, gpus: int | None = 0) -> float:
    """For ten thousand samples, as the cost model has it."""
    costs = CostModel(Job(name="job", run="true", limits=Limits(gpus=gpus)), where, profile())
    return 10_000 / costs.predict(plan).throughput


def ring(*nodes: str, cores: float | None = None) -> Plan:
    return Plan(
        strategy="allreduce" if len(nodes) > 1 else "single",
        workers=len(nodes),
        batch_per_worker=None,
        worker_nodes=nodes,
        cores_per_worker=cores,
    )


def of_cnn(*jobs: TraceJob) -> Trace:
    return made("t", [replace(job, profile="cnn") for job in jobs])


@pytest.mark.parametrize("cores", [0.5, 1.0, 1.7, 3.0])
def test_a_job_with_fewer_cores_takes_what_the_cost_model_says(cores: float) -> None:
    where = planned.cluster(planned.nodes("a", 1, cores=4))
    first = TraceJob("a", 0.0, seconds(ring("a0", cores=4.0), where), cores=4.0)
    # The other one has the other cores all the time, threads for all from before the first one
    # came.
    beside = TraceJob("b", 0.0, 1e4, cores=4.0, priority=(4 - cores) / cores, threads_follow=False)
    first = replace(first, submitted=1.0)
    found = ran(made("t", [beside, *of_cnn(first).jobs]), where, "equal", GIVEN)
    assert found["a"] == pytest.approx(seconds(ring("a0", cores=cores), where), rel=2e-3)


def test_workers_that_are_apart_take_longer_than_beside_each_other() -> None:
    where = planned.cluster(planned.nodes("a", 2, cores=2, nic=GIGABIT / 5))
    together, apart = (
        seconds(ring(*nodes, cores=1.0), where) for nodes in (("a0", "a0"), ("a0", "a1"))
    )
    assert apart > 1.2 * together
    job = TraceJob("a", 0.0, together, cores=2.0, workers=2)
    outcome = simulate(of_cnn(job), where, "equal", GIVEN)  # each where the fewest tasks are
    assert figures(outcome).mean == pytest.approx(apart)
    assert figures(outcome).max_rho == pytest.approx(apart / together)
    small = planned.cluster(planned.nodes("a", 1, cores=2, nic=GIGABIT / 5))
    assert ran(of_cnn(job), small, "equal", GIVEN) == pytest.approx({"a": together})


def test_on_other_gpus_and_over_several_nodes_a_job_is_as_fast_as_the_cost_model_says() -> None:
    fast = planned.nodes("fast", 1, cores=8, gpus=planned.gpus("V100", 2))
    slow = planned.nodes("slow", 2, cores=8, gpus=planned.gpus("K80", 2))
    where = planned.cluster(fast, slow)
    one, two = (seconds(ring(*("fast0",) * n), where, None) for n in (1, 2))
    trace = of_cnn(TraceJob("a", 0.0, two, gpus=2), TraceJob("b", 0.0, one, gpus=1))
    slower = seconds(ring("slow0"), where, None)
    assert slower > 1.5 * one
    assert ran(trace, where, "fifo", GIVEN) == pytest.approx({"a": two, "b": slower})
    # Of four the fast node has too few, so that the trace's time is that on both slow ones; it is
    # as long with two of them on the fast one, who wait for the others, and leave slow ones to the
    # next job.
    four = of_cnn(TraceJob("c", 0.0, 60.0, gpus=4), TraceJob("d", 1.0, two, gpus=2))
    slow_two = seconds(ring("slow0", "slow0"), where, None)
    assert ran(four, where, "fifo", GIVEN) == pytest.approx({"c": 60.0, "d": 1.0 + slow_two})


def test_a_profile_that_is_not_given_is_refused() -> None:
    trace = made("t", [TraceJob("a", 0.0, 1.0, profile="lm")])
    with pytest.raises(UsageError, match="job 'a' names the profile 'lm', which is not given"):
        ran(trace, planned.cluster(planned.nodes("a", 1)), "equal", GIVEN)
