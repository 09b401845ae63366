"""Completion times that were worked out by hand."""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.simulation.places import FREE, cores, ends, gpus, on_cores, on_gpus, ran, told

from headgate.model.cluster import Cluster
from headgate.model.errors import UsageError
from headgate.model.events import Predicted, Usage
from headgate.model.progress import Progress
from headgate.planning.interference import Interference
from headgate.policies import BUILT_IN
from headgate.policies.headgate import RHO
from headgate.simulation import Assumptions, Outcome, TraceJob, figures, simulate
from headgate.simulation.speeds import Speeds
from headgate.simulation.traces import made

SHARED = replace(FREE, share_gpus=True)
# a is alone for 2 s, shares with b for 2 s, and then with b and c.
STAGGERED = ((0.0, 10.0, 1), (2.0, 4.0, 1), (4.0, 2.0, 1))


def test_three_jobs_on_one_core_share_it_equally() -> None:
    # At 4 s a has 7 s left, b 3 s, c 2 s; by thirds c ends at 10, by halves b at 12, then a.
    assert ran(on_cores(*STAGGERED), cores(1.0), "equal") == pytest.approx(
        {"a": 16.0, "b": 12.0, "c": 10.0}
    )


def test_three_jobs_share_one_gpu_in_equal_time_where_none_waits() -> None:
    for policy in ("equal", "none"):
        assert ran(on_gpus(*STAGGERED), gpus(1), policy, SHARED) == pytest.approx(
            {"a": 16.0, "b": 12.0, "c": 10.0}
        )


def test_on_a_shared_gpu_the_shortest_has_what_srpt_leaves_it() -> None:
    # By 20 to 1 of an equal share each keeps 1/40, and an eighth of the rest goes on to the other:
    # 0.85625 of the time for b, which ends at 400 / 0.85625; then a has the GPU to itself.
    part = 0.025 + 7 / 8 * 0.95
    found = ran(on_gpus((0.0, 1000.0, 1), (0.0, 400.0, 1)), gpus(1), "srpt", SHARED)
    assert found == pytest.approx({"a": 1400.0, "b": 400 / part}, rel=2e-3)
    # What one GPU of its two is shared with holds a job for both.
    found = ran(on_gpus((0.0, 1000.0, 2), (0.0, 400.0, 1)), gpus(2), "srpt", SHARED)
    assert found == pytest.approx({"a": 1400.0, "b": 400 / part}, rel=2e-3)


@pytest.mark.parametrize("policy", ["srpt", "headgate:rho=100"])
def test_on_each_of_several_shared_gpus_the_shortest_goes_first(policy: str) -> None:
    found = ran(
        on_gpus(*((0.0, seconds, 1) for seconds in (1000.0, 400.0) for _ in range(4))),
        gpus(4),
        policy,
        SHARED,
    )
    part = 0.025 + 7 / 8 * 0.95
    # alike they took 800
    assert list(found.values()) == pytest.approx([1400.0] * 4 + [400 / part] * 4, rel=0.07)


def test_jobs_of_days_report_ten_times_and_a_policy_has_ten_rounds_between_two_reports() -> None:
    trace = on_gpus((0.0, 1e6, 1), (0.0, 1e6, 1))
    assert trace.report_seconds == 1e5
    assert (
        replace(
            trace, jobs=tuple(replace(job, losses=((0.0, 1.0),)) for job in trace.jobs)
        ).report_seconds
        == 10.0
    )
    assert on_gpus(*STAGGERED).report_seconds == 10.0
    assert 40 < simulate(trace, gpus(1), "las", SHARED).events < 300


def test_gpus_go_by_priority_and_a_job_that_starts_up_uses_none() -> None:
    trace = on_gpus((0.0, 6.0, 1), (0.0, 6.0, 1))
    trace = replace(trace, jobs=(replace(trace.jobs[0], priority=2.0), trace.jobs[1]))
    assert ran(trace, gpus(1), "equal", SHARED) == pytest.approx({"a": 9.0, "b": 12.0})
    # b comes at 2 s and starts until 5 s, while a, which began at 3 s, has the GPU to itself; from
    # then on halves.
    given = replace(SHARED, startup_core_seconds=3.0)
    for policy in ("equal", "none"):
        found = ran(on_gpus((0.0, 6.0, 1), (2.0, 2.0, 1)), gpus(1), policy, given)
        assert found == pytest.approx({"a": 11.0, "b": 9.0})


def test_what_remains_least_goes_first() -> None:
    # b takes over at 2 s; at 4 s it has as much left as c and came first.
    assert ran(on_gpus(*STAGGERED), gpus(1), "srpt") == pytest.approx(
        {"a": 16.0, "b": 6.0, "c": 8.0}
    )


def test_first_come_is_first_served() -> None:
    assert ran(on_gpus(*STAGGERED), gpus(1), "fifo") == pytest.approx(
        {"a": 10.0, "b": 14.0, "c": 16.0}
    )


def test_a_job_with_little_service_goes_before_one_with_an_hour_of_it() -> None:
    # a is in the second queue from 1 h on: b takes over at 2 h and is behind a from 3 h on, as c is
    # from 5 h.
    hours = on_gpus(*((at * 3600, seconds * 3600, n) for at, seconds, n in STAGGERED))
    assert ran(hours, gpus(1), "las") == pytest.approx(
        {"a": 12 * 3600.0, "b": 15 * 3600.0, "c": 16 * 3600.0}
    )


def test_who_waits_goes_on_when_another_had_enough_however_seldom_jobs_report() -> None:
    # a and b are in the second queue from 3,600 and 3,700 s on; a policy would have rounds 360 s
    # apart.
    long = on_gpus(*((at, 36_000.0, 1) for at in (0.0, 100.0, 200.0, 200.0)))
    outcome = simulate(long, gpus(2), "las", FREE)
    assert [job.started for job in outcome.jobs] == [0.0, 100.0, 3600.0, 3700.0]


def test_what_is_stopped_pays_for_starting_again() -> None:
    outcome = simulate(
        on_gpus((0.0, 10.0, 1), (2.0, 4.0, 1)), gpus(1), "srpt", Assumptions(restart_seconds=1.5)
    )
    assert ends(outcome) == pytest.approx({"a": 15.5, "b": 6.0})
    assert [job.starts for job in outcome.jobs] == [2, 1]
    assert figures(outcome).restarts == 1


def test_what_a_job_cannot_use_the_others_have() -> None:
    # a can use half a core of two, b and c have 0.75 each.
    trace = on_cores((0.0, 6.0, 0.5), (0.0, 3.0, 1.0), (0.0, 3.0, 1.0))
    assert ran(trace, cores(2.0), "equal") == pytest.approx({"a": 6.0, "b": 4.0, "c": 4.0})


def test_a_priority_of_two_is_twice_the_share() -> None:
    trace = on_cores((0.0, 6.0, 1.0), (0.0, 6.0, 1.0))
    trace = replace(trace, jobs=(replace(trace.jobs[0], priority=2.0), trace.jobs[1]))
    assert ran(trace, cores(1.0), "equal") == pytest.approx({"a": 9.0, "b": 12.0})
    assert ran(trace, cores(1.0), "none") == pytest.approx({"a": 12.0, "b": 12.0})


def test_of_two_nodes_each_job_has_the_emptier_one() -> None:
    trace = on_cores((0.0, 4.0, 1.0), (0.0, 4.0, 1.0), (1.0, 2.0, 1.0))
    assert ran(trace, cores(1.0, 1.0), "equal") == pytest.approx({"a": 6.0, "b": 4.0, "c": 5.0})


def test_a_gang_has_all_its_gpus_at_once_or_none() -> None:
    # b needs both nodes, c would fit beside a but may not start before b.
    trace = on_gpus((0.0, 10.0, 2), (1.0, 5.0, 4), (2.0, 3.0, 1))
    assert ran(trace, gpus(2, 2), "fifo") == pytest.approx({"a": 10.0, "b": 15.0, "c": 18.0})
    # Least GPU-seconds first: c overtakes b and ends at 5; a (16 GPU-seconds left at 2) is less
    # than b (20).
    assert ran(trace, gpus(2, 2), "srpt") == pytest.approx({"a": 10.0, "b": 15.0, "c": 5.0})


def test_a_worker_goes_where_the_fewest_gpus_are_left() -> None:
    # b goes beside a, so that c finds a node of its own.
    trace = on_gpus((0.0, 9.0, 1), (0.0, 9.0, 1), (1.0, 4.0, 2))
    assert ran(trace, gpus(2, 2), "fifo") == pytest.approx({"a": 9.0, "b": 9.0, "c": 5.0})


def test_scaling_by_an_exponent_and_by_a_table() -> None:
    both = on_cores((0.0, 4.0, 4.0), (0.0, 4.0, 4.0), model="m")
    # Half of its cores bring a job 1 / sqrt(2) of its speed, or what the table says of 2 cores.
    root = replace(FREE, speeds=Speeds(exponent=0.5))
    assert ran(both, cores(4.0), "equal", root) == pytest.approx({"a": 4 * 2**0.5, "b": 4 * 2**0.5})
    table = replace(FREE, speeds=Speeds(tables={"m": ((1.0, 10.0), (3.0, 30.0), (4.0, 32.0))}))
    assert ran(both, cores(4.0), "equal", table) == pytest.approx({"a": 6.4, "b": 6.4})


def test_on_cores_each_other_job_costs_as_much_as_it_has_of_the_other_cores() -> None:
    jobs = [
        TraceJob(name, 0.0, 6.0, model=model)
        for name, model in (("a", "x"), ("b", "y"), ("c", "y"))
    ]
    given = replace(FREE, interference=Interference({"": {"x": {"y": 0.8}}}))
    # Beside b alone, as it was measured: a has one core of two, and keeps 0.8 of it.
    assert ran(made("two", jobs[:2]), cores(2.0), "equal", given) == pytest.approx(
        {"a": 7.2, "b": 6.0}
    )
    # What it does before its work was not measured beside another: that costs it nothing.
    starting = [replace(jobs[0], startup_core_seconds=2.0), jobs[1]]
    assert ran(made("two", starting), cores(2.0), "equal", given) == pytest.approx(
        {"a": 8.8, "b": 6.0}
    )
    # b and c have the other core and a third: for 9 s a has 2/3 of a core and keeps 0.8 of that,
    # then 1.2 s alone.
    assert ran(made("three", jobs), cores(2.0), "equal", given) == pytest.approx(
        {"a": 10.2, "b": 9.0, "c": 9.0}
    )


def test_on_cores_who_has_less_than_the_half_that_pairs_were_measured_with_costs_less() -> None:
    jobs = [TraceJob("a", 0.0, 5.4, cores=3.0, model="x"), TraceJob("b", 0.0, 9.0, model="y")]
    given = replace(FREE, interference=Interference({"": {"x": {"y": 0.8}}}))
    assert ran(made("two", jobs), cores(4.0), "none", given) == pytest.approx({"a": 6.0, "b": 9.0})


def test_tasks_of_one_job_cost_each_other_nothing_and_another_job_as_one() -> None:
    two = TraceJob("a", 0.0, 6.0, cores=2.0, workers=2, model="x")
    given = replace(FREE, interference=Interference({"": {"x": {"x": 0.5, "y": 0.8}}}))
    assert ran(made("t", [two]), cores(4.0), "equal", given) == pytest.approx({"a": 6.0})
    # b has the other half of the node: a keeps of it what a job of one task would.
    other = TraceJob("b", 0.0, 9.0, cores=2.0, model="y")
    assert ran(made("t", [two, other]), cores(4.0), "none", given) == pytest.approx(
        {"a": 7.5, "b": 9.0}
    )


def test_a_measured_pair_on_a_gpu_is_as_fast_as_it_was_measured() -> None:
    jobs = [TraceJob("a", 0.0, 6.0, gpus=1, model="x"), TraceJob("b", 0.0, 4.0, gpus=1, model="y")]
    pairs = Interference({"g": {"x": {"y": 0.75}, "y": {"x": 0.8}}})
    given = replace(FREE, share_gpus=True, interference=pairs)
    # b ends after 4 / 0.8 s, when a has done 3.75 s of its work.
    assert ran(made("t", jobs), gpus(1), "none", given) == pytest.approx({"a": 7.25, "b": 5.0})


def test_jobs_that_cost_each_other_much_go_to_different_nodes() -> None:
    models = {"a": "heavy", "b": "light", "c": "heavy", "d": "light"}
    jobs = [TraceJob(name, 0.0, 6.0, model=model) for name, model in models.items()]
    heavy, light = {"heavy": 0.5, "light": 1.0}, {"heavy": 1.0, "light": 1.0}
    given = replace(FREE, interference=Interference({"": {"heavy": heavy, "light": light}}))
    # By the number of tasks alone c would go beside a, and both would take twice as long.
    assert ran(made("t", jobs), cores(2.0, 2.0), "equal", given) == pytest.approx(
        dict.fromkeys("abcd", 6.0)
    )


def test_the_same_seed_is_the_same_simulation_and_another_is_not() -> None:
    trace = on_gpus(*((float(i), 10.0 + 7 * (i % 5), 1 + i % 2) for i in range(40)))
    wrong = replace(FREE, prediction_error=1.0, seed=3)
    first, again = (simulate(trace, gpus(2), "srpt", wrong) for _ in range(2))
    assert ends(first) == ends(again)
    assert ends(first) != ran(trace, gpus(2), "srpt", replace(wrong, seed=4))
    assert figures(first).mean > figures(simulate(trace, gpus(2), "srpt", FREE)).mean


@pytest.mark.parametrize(
    ("count", "load", "published"), [(5, 0.5, -0.12), (10, 1.0, -0.35), (15, 1.5, -0.47)]
)
def test_clairvoyant_srpt_gains_on_equal_sharing_what_is_published(
    count: int, load: float, published: float
) -> None:
    gains = []
    for seed in range(12):
        drawn = random.Random(seed)
        work = [drawn.uniform(0.2, 1.8) for _ in range(count)]
        each = [seconds * load * 200.0 / sum(work) for seconds in work]
        trace = on_gpus(*((drawn.uniform(0.0, 200.0), seconds, 1) for seconds in each))
        equal = simulate(trace, gpus(1), "equal", replace(FREE, share_gpus=True))
        gains.append(figures(simulate(trace, gpus(1), "srpt", FREE)).mean / figures(equal).mean - 1)
    assert statistics.mean(gains) == pytest.approx(published, abs=0.06)


@pytest.mark.parametrize("seed", range(3))
def test_orders_come_out_as_is_published_where_jobs_vary_much(seed: int) -> None:
    drawn = random.Random(seed)
    jobs = [
        (drawn.lognormvariate(7.0, 1.8), drawn.choice([1, 1, 1, 1, 2, 4, 8])) for _ in range(500)
    ]
    span = sum(seconds * count for seconds, count in jobs) / (0.9 * 16)
    trace = on_gpus(*((drawn.uniform(0.0, span), seconds, count) for seconds, count in jobs))
    outcomes = {
        order: figures(simulate(trace, gpus(8, 8), order)) for order in ("srpt", "las", "fifo")
    }
    means = {order: found.mean for order, found in outcomes.items()}
    assert means["srpt"] < 0.95 * means["las"]
    assert means["las"] < 0.5 * means["fifo"]


@settings(max_examples=30, derandomize=True, database=None, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 40), st.sampled_from([1, 2, 3, 4, 8])),
        min_size=1,
        max_size=25,
    ),
    st.sampled_from(["fifo", "srpt", "las", "headgate"]),
)
def test_no_job_is_lost_and_no_gpu_is_given_twice(
    jobs: list[tuple[int, int, int]], policy: str
) -> None:
    trace = on_gpus(*((float(at), float(seconds), n) for at, seconds, n in jobs))
    trace = made("t", [replace(job, name=f"j{i}") for i, job in enumerate(trace.jobs)])
    outcome = simulate(trace, gpus(4, 4), policy, FREE)
    assert {job.state for job in outcome.jobs} == {"done"}
    assert max(busy for _, busy in outcome.busy) <= 8
    assert outcome.busy[-1][1] == 0
    held = sum(
        b * (t1 - t0) for (t0, b), (t1, _) in zip(outcome.busy, outcome.busy[1:], strict=False)
    )
    assert held == pytest.approx(sum(seconds * n for _, seconds, n in jobs))
    assert all(
        job.ended >= job.job.submitted + job.job.seconds - 1e-6
        for job in outcome.jobs
        if job.ended is not None
    )


@settings(max_examples=12, derandomize=True, database=None, deadline=None)
@given(st.lists(st.integers(20, 400), min_size=1, max_size=8))
def test_nobody_falls_behind_the_bound_of_headgate_and_no_core_idles(work: list[int]) -> None:
    trace = made(
        "t", [TraceJob(f"j{i}", 0.0, float(seconds), cores=2.0) for i, seconds in enumerate(work)]
    )
    equal, bound = (
        figures(simulate(trace, cores(2.0), name, FREE)) for name in ("equal", "headgate")
    )
    assert bound.max_rho <= RHO * 1.05
    assert bound.makespan == pytest.approx(equal.makespan, rel=0.01)
    assert bound.mean <= equal.mean * 1.01


def test_among_jobs_that_are_alike_headgate_keeps_near_its_bound_where_srpt_does_not() -> None:
    trace = on_cores(
        *((0.0, float(seconds), 16.0) for seconds in (100, 110, 120, 130, 100, 105, 115, 125))
    )
    srpt, bound = (
        figures(simulate(trace, cores(16.0), name, FREE)) for name in ("srpt", "headgate:rho=1.5")
    )
    # of the mean of those present that ends up lower than it was half way
    assert bound.max_rho <= 1.5 * 1.1
    assert srpt.max_rho > 1.5 * 1.15


def test_who_gains_by_more_cores_is_found_out_where_there_is_a_core_for_every_job() -> None:
    trace = on_cores(
        *((0.0, float(seconds), 8.0) for seconds in (100, 110, 120, 130, 100, 105, 115, 125))
    )
    equal, ours = (
        figures(simulate(trace, cores(8.0), name, FREE)) for name in ("equal", "headgate")
    )
    assert ours.mean < 0.75 * equal.mean  # one after the other they would take 0.6 of it
    # two do 1.06 times what one does
    flat = replace(FREE, speeds=Speeds(tables={"": ((1.0, 10.0), (8.0, 14.0))}))
    equal, ours = (
        figures(simulate(trace, cores(8.0), name, flat)) for name in ("equal", "headgate")
    )
    # Who is last gives up its core for each trial of another, and waits up to 20 s for it where it
    # had four changes.
    assert ours.makespan < 1.1 * equal.makespan
    assert ours.mean < 1.05 * equal.mean


@pytest.mark.parametrize("machine", [8.0, 16.0])
def test_cores_go_where_they_buy_steps_and_nobody_falls_behind_the_bound(
    machine: float,
) -> None:
    starved = [TraceJob(f"s{i}", 0.0, 100.0 + 10 * i, cores=3.0, starves=True) for i in range(2)]
    trace = made("t", [*starved, *(TraceJob(f"c{i}", 0.0, 100.0, cores=machine) for i in range(2))])

    def throughput(outcome: Outcome) -> float:
        """Mean speed of each job over that alone, of all jobs together."""
        return sum(job.seconds / ends(outcome)[job.name] for job in trace.jobs)

    outcomes = {
        name: simulate(trace, cores(machine), name, replace(FREE, report_seconds=1.0))
        for name in ("equal", "srpt", "headgate")
    }
    kept = {name: throughput(outcome) for name, outcome in outcomes.items()}
    assert kept["headgate"] > 1.05 * max(kept["equal"], kept["srpt"])
    known = {name: figures(outcome) for name, outcome in outcomes.items()}
    assert known["headgate"].mean < known["equal"].mean
    assert known["headgate"].max_rho < RHO
    assert known["headgate"].makespan < 1.05 * known["equal"].makespan
    # those that starve have what they need
    assert ends(outcomes["headgate"])["s0"] == pytest.approx(100.0, rel=0.05)


def test_a_job_that_could_never_run_is_refused() -> None:
    with pytest.raises(
        UsageError,
        match="job 'a' asks for too many GPUs: 8; the cluster has 4, at most 4 on a node",
    ):
        simulate(on_gpus((0.0, 1.0, 8)), gpus(4), "fifo")


def test_a_job_is_divided_evenly_as_the_nodes_have_room() -> None:
    large, small = gpus(4).nodes[0], gpus(2).nodes[0]
    cluster = Cluster((large, replace(small, name="small")))
    assert ran(on_gpus((0.0, 1.0, 6)), cluster, "fifo") == {"a": 1.0}  # by twos


@pytest.mark.parametrize("times", [(0.0, 1e18), (1e18, 1.0)])
def test_what_a_clock_cannot_tell_is_refused(times: tuple[float, float]) -> None:
    with pytest.raises(
        UsageError,
        match=r"job 'b' lasts .* s and comes .* s after the first; expected at most 1e\+09",
    ):
        simulate(on_cores((0.0, 1.0, 1.0), (*times, 1.0)), cores(1.0), "srpt", FREE)


def test_a_policy_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no policy 'best'"):
        simulate(on_cores((0.0, 1.0, 1.0)), cores(1.0), "best")


def test_what_cannot_be_assumed_is_refused() -> None:
    for wrong in (1e3, math.nan):
        with pytest.raises(
            ValueError, match=f"Assumptions.prediction_error is {wrong!r}; expected 0 to 10"
        ):
            Assumptions(prediction_error=wrong)
    with pytest.raises(
        ValueError, match=r"Assumptions.restart_seconds is -1.0; expected 0 to 1e\+09"
    ):
        Assumptions(restart_seconds=-1.0)


def test_rho_is_the_time_taken_over_that_alone_on_an_equal_part() -> None:
    # a and b together all the time: each alone on half of the core would take 2 * 4 s, and takes 8
    # s.
    outcome = simulate(on_cores((0.0, 4.0, 1.0), (0.0, 4.0, 1.0)), cores(1.0), "equal", FREE)
    told = figures(outcome)
    assert (told.mean, told.makespan, told.max_rho, told.utilisation) == pytest.approx(
        (8.0, 8.0, 1.0, 1.0)
    )
    # Under first come, first served: a 4 s among a mean of 2 jobs, b 8 s among a mean of 1.5.
    served = figures(simulate(on_gpus((0.0, 4.0, 1), (0.0, 4.0, 1)), gpus(1), "fifo", FREE))
    assert served.max_rho == pytest.approx(8 / (4 * 1.5))
    assert served.mean_rho == pytest.approx((4 / 8 + 8 / 6) / 2)


def test_rho_of_a_job_on_cores_goes_by_cores_also_where_others_have_gpus() -> None:
    trace = made("t", [TraceJob("a", 0.0, 10.0, cores=2.0), TraceJob("b", 20.0, 10.0, gpus=1)])
    assert figures(simulate(trace, gpus(1), "fifo", FREE)).max_rho == pytest.approx(1.0)


def test_policies_of_shares_are_told_what_is_left_and_shorten_the_mean() -> None:
    trace = on_cores((0.0, 600.0, 1.0), (60.0, 200.0, 1.0), (120.0, 60.0, 1.0))
    equal = figures(simulate(trace, cores(1.0), "equal", FREE))
    none = figures(simulate(trace, cores(1.0), "none", FREE))
    srpt = simulate(trace, cores(1.0), "srpt", FREE)
    assert (none.mean, none.makespan) == pytest.approx((equal.mean, equal.makespan))
    # Each takes over as it comes: c ends 60 s after it came, b after its 200 s and c's 60, but for
    # the eighth of the core that goes on to the others, and their floors.
    assert ends(srpt) == pytest.approx({"a": 860.0, "b": 320.0, "c": 180.0}, rel=0.15)
    assert figures(srpt).mean < 0.85 * equal.mean


def test_nothing_is_predicted_of_a_job_before_it_has_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predicted = told(monkeypatch, Predicted)
    given = replace(FREE, startup_core_seconds=3.0, report_seconds=100.0)
    ran(on_cores((0.0, 10.0, 1.0), (1.0, 2.0, 1.0)), cores(2.0), "srpt", given)
    assert [(now, each.job[0]) for now, each in predicted] == [(3.0, "a"), (4.0, "b")]


def test_nothing_is_predicted_of_jobs_that_never_report_or_share_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predicted = told(monkeypatch, Predicted)
    given = replace(FREE, startup_core_seconds=3.0, report_seconds=0.0)
    ran(on_cores((0.0, 10.0, 1.0), (1.0, 2.0, 1.0)), cores(2.0), "srpt", given)
    assert predicted == []
    jobs = [TraceJob("a", 0.0, 10.0), TraceJob("b", 0.0, 10.0, gpus=1)]
    ran(made("mixed", jobs), gpus(1), "srpt", replace(given, report_seconds=100.0))
    assert [(now, each.job[0]) for now, each in predicted] == [(3.0, "a")]


@pytest.mark.parametrize(("both", "good"), [(14.0, 1.0), (15.1, 2.0), (20.0, math.inf)])
def test_a_job_is_told_to_put_cores_to_good_use_once_it_was_seen_with_two_numbers_of_threads(
    monkeypatch: pytest.MonkeyPatch, both: float, good: float
) -> None:
    predicted = told(monkeypatch, Predicted)
    jobs = [TraceJob("a", 0.0, 30.0, cores=2.0, model="m"), TraceJob("b", 10.0, 30.0, cores=2.0)]
    table = replace(
        FREE, report_seconds=1.0, speeds=Speeds(tables={"m": ((1.0, 10.0), (2.0, both))})
    )
    ran(made("t", jobs), cores(2.0), "headgate", table)
    first = next(
        (now, each.cores)
        for now, each in predicted
        if each.job == "a/job" and each.cores is not None
    )
    # On both cores alone and on one each from 10 s on; of that one second is for it to settle,
    # three tell.
    assert first == pytest.approx((14.0, good))
    assert {each.cores for now, each in predicted if now < 14.0} == {None}


@pytest.mark.parametrize("report", [10.0, 35.0])
def test_reports_that_are_far_apart_tell_of_cores_too(
    monkeypatch: pytest.MonkeyPatch, report: float
) -> None:
    predicted = told(monkeypatch, Predicted)
    jobs = [TraceJob("a", 0.0, 300.0, cores=2.0), TraceJob("b", 100.0, 300.0, cores=2.0)]
    ran(made("t", jobs), cores(2.0), "headgate", replace(FREE, report_seconds=report))
    assert math.inf in {each.cores for _, each in predicted}


@pytest.mark.parametrize(("workers", "good"), [(2, 2.0), (3, 3.0)])
def test_of_several_workers_each_puts_one_core_to_good_use(
    monkeypatch: pytest.MonkeyPatch, workers: int, good: float
) -> None:
    predicted = told(monkeypatch, Predicted)
    ran(made("t", [TraceJob("a", 0.0, 5.0, cores=8.0, workers=workers)]), cores(8.0), "srpt")
    assert [each.cores for _, each in predicted] == [good]


@pytest.mark.parametrize(("follow", "ended"), [(True, 14.0), (False, 20.0)])
def test_a_job_uses_no_more_cores_than_it_has_threads(follow: bool, ended: float) -> None:
    jobs = [
        TraceJob(name, 0.0, seconds, cores=2.0, threads_follow=follow)
        for name, seconds in (("a", 4.0), ("b", 10.0))
    ]
    # b starts with one thread, beside a; for its last 12 core-seconds it is alone.
    assert ran(made("t", jobs), cores(2.0), "equal") == pytest.approx({"a": 8.0, "b": ended})


def test_the_cores_that_its_user_left_a_job_are_all_that_it_has() -> None:
    free = TraceJob("a", 0.0, 4.0, cores=2.0)
    alone = [free, replace(free, cores_limit=0.5), replace(free, share="1/4")]
    found = ran(
        made("t", [replace(job, name=f"j{i}", submitted=100.0 * i) for i, job in enumerate(alone)]),
        cores(2.0),
        "none",
    )
    assert found == pytest.approx({"j0": 4.0, "j1": 116.0, "j2": 216.0})


def test_a_pinned_job_has_its_slice_whatever_the_policy() -> None:
    jobs = [TraceJob("a", 0.0, 10.0, cores=2.0, share="1/2"), TraceJob("b", 0.0, 1.0, cores=2.0)]
    assert ran(made("t", jobs), cores(2.0), "srpt")["a"] == pytest.approx(20.0)


def test_jobs_without_gpus_wait_for_memory_in_the_order_of_arrival_as_live() -> None:
    jobs = [
        TraceJob(name, at, s, memory_bytes=2**35)
        for name, at, s in (("a", 0.0, 9.0), ("b", 1.0, 8.0), ("c", 2.0, 1.0))
    ]
    trace = replace(made("t", jobs), jobs=(replace(jobs[0], memory_bytes=2**40), *jobs[1:]))
    outcome = simulate(trace, cores(8.0), "srpt", FREE)
    # a may take more than the node has, so that it has all of that; for b and c there is room
    # together then.
    assert (ends(outcome), outcome.order) == ({"a": 9.0, "b": 17.0, "c": 10.0}, "fifo")
    with_gpu = made("t", [*trace.jobs, TraceJob("d", 3.0, 1.0, gpus=1)])
    with pytest.raises(
        UsageError, match="job 'a' asks for more memory than any node of the cluster has"
    ):
        simulate(with_gpu, gpus(1), "srpt", FREE)


def test_jobs_that_share_gpus_wait_for_their_memory_as_live() -> None:
    jobs = [TraceJob(name, 0.0, 10.0, gpus=1, gpu_memory_bytes=10 * 2**30) for name in "ab"]
    # of 16 GiB
    assert ends(simulate(made("t", jobs), gpus(1), "equal", SHARED)) == {"a": 10.0, "b": 20.0}
    small = [replace(each, gpu_memory_bytes=8 * 2**30) for each in jobs]
    assert ends(simulate(made("t", small), gpus(1), "equal", SHARED)) == {"a": 20.0, "b": 20.0}
    large = [replace(each, gpu_memory_bytes=17 * 2**30) for each in jobs]
    for assumptions in (SHARED, FREE):
        with pytest.raises(
            UsageError, match="job 'a' needs more GPU memory than any GPU of the cluster has"
        ):
            simulate(made("t", large), gpus(1), "equal", assumptions)


def test_of_two_nodes_jobs_that_wait_for_memory_have_the_one_where_fewer_wait() -> None:
    jobs = [TraceJob(name, at, 10.0, memory_bytes=2**36) for at, name in enumerate("abcd")]
    outcome = simulate(made("t", jobs), cores(1.0, 1.0), "equal", FREE)
    assert ends(outcome) == {"a": 10.0, "b": 11.0, "c": 20.0, "d": 21.0}


def test_of_jobs_that_wait_for_memory_the_best_neighbour_starts_next_as_when_live() -> None:
    models = (
        ("a", "heavy", 30.0),
        ("b", "light", 10.0),
        ("c", "heavy", 10.0),
        ("d", "light", 10.0),
    )
    jobs = [
        TraceJob(name, 0.0, s, gpus=1, model=model, gpu_memory_bytes=2**33)
        for name, model, s in models
    ]
    pairs = Interference(
        {"g": {"heavy": {"heavy": 0.5, "light": 1.0}, "light": {"heavy": 1.0, "light": 1.0}}}
    )
    outcome = ends(simulate(made("t", jobs), gpus(1), "none", replace(SHARED, interference=pairs)))
    # c waited for d, and slows a
    assert outcome == pytest.approx({"a": 40.0, "b": 10.0, "c": 40.0, "d": 20.0})


def test_what_is_told_of_use_is_the_mean_since_it_was_told_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    used = told(monkeypatch, Usage)
    jobs = [TraceJob("a", 0.0, 12.0, cores=2.0), TraceJob("b", 4.0, 3.0, share="1/2")]
    ran(made("t", jobs), cores(2.0), "srpt")
    # Both cores for 4 s, one for 3, and both for 3 more.
    [(now, each)] = used
    assert (now, each.cpu_cores, each.seconds) == pytest.approx((10.0, 1.7, 10.0))


def test_a_job_tells_each_of_its_losses_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = told(monkeypatch, Progress)
    losses = ((0.1, 5.0), (0.12, 3.0), (0.5, 2.0), (0.9, 1.0))
    job = TraceJob("a", 0.0, 10.0, steps=100, epochs=2, losses=losses)
    ran(made("t", [job]), cores(1.0), "slaq", replace(FREE, report_seconds=1.5))
    found = [(now, each.loss, each.count, each.step, each.epoch) for now, each in heard]
    assert found == [(1.5, 4.0, 2, 15, 1), (6.0, 2.0, 1, 60, 2), (9.0, 1.0, 1, 90, 2)]


@pytest.mark.parametrize("parts", [True, False])
def test_of_a_job_whose_losses_are_known_is_predicted_what_would_be_live(
    monkeypatch: pytest.MonkeyPatch, parts: bool
) -> None:
    predicted = told(monkeypatch, Predicted)
    curve = tuple((i / 400, 0.5 + 3.0 / (1.0 + 0.1 * i)) for i in range(1, 401))
    at = tuple((10 * i, 1 + (10 * i - 1) // 400) for i in range(1, 401))
    job = TraceJob("a", 0.0, 100.0, steps=4000, epochs=10, losses=curve, told=at, tells_parts=parts)
    given = replace(FREE, report_seconds=1.0, prediction_error=0.5)
    ran(made("t", [job]), cores(1.0), "srpt", given)
    assert predicted == [], "nobody else is there"
    other = TraceJob("b", 0.0, 100.0, priority=0.1)
    ended = ran(made("t", [job, other]), cores(1.0), "srpt", given)["a"]
    off = [
        (now, each.work / (100.0 * (1.0 - now / ended)) - 1)
        for now, each in predicted
        if each.job == "a/job"
    ]
    assert abs(off[-1][1]) < 0.1
    assert all(abs(error) < 0.1 for now, error in off if 12.0 < now < 90.0), (
        "the first of its epochs has ended"
    )
    if parts:
        assert off[0] == pytest.approx((3.0, 0.0), abs=0.05), (
            "the first that comes 2 s after it started"
        )
    else:  # by its curve alone
        assert off[0] == pytest.approx((3.0, -0.64), abs=0.1)


@pytest.mark.parametrize("parts", [True, False])
def test_epochs_much_shorter_than_a_report_are_told_one_by_one(
    monkeypatch: pytest.MonkeyPatch, parts: bool
) -> None:
    predicted = told(monkeypatch, Predicted)
    steps = range(5, 4501, 5)  # nine in an epoch; five epochs take a second
    curve = tuple((step / 4500, 0.5 + 3.0 / (1.0 + 0.1 * step)) for step in steps)
    at = tuple((step, 1 + (step - 1) // 45) for step in steps)
    jobs = [
        TraceJob("a", 0.0, 20.0, steps=4500, epochs=100, losses=curve, told=at, tells_parts=parts)
    ]
    given = replace(FREE, report_seconds=1.0)
    ended = ran(
        made("t", [*jobs, TraceJob("b", 0.0, 20.0, priority=0.1)]), cores(1.0), "srpt", given
    )["a"]
    off = [
        (now, each.work / (20.0 * (1.0 - now / ended)) - 1)
        for now, each in predicted
        if each.job == "a/job"
    ]
    assert off[0][0] == 3.0, "the first that comes 2 s after it started"
    assert all(abs(error) < 0.02 for now, error in off if now < 0.9 * ended), off


def test_what_a_job_does_before_its_work_takes_one_core_and_belongs_to_its_time_alone() -> None:
    given = replace(FREE, startup_core_seconds=3.0)
    # a starts on one core of two, b on its half; from 3 to 9 s a has one thread, then one for each
    # core.
    outcome = simulate(on_cores((0.0, 10.0, 2.0), (1.0, 2.0, 0.5)), cores(2.0), "equal", given)
    assert ends(outcome) == pytest.approx({"a": 16.0, "b": 9.0})
    alone = figures(simulate(on_cores((0.0, 10.0, 2.0)), cores(2.0), "equal", given))
    assert (alone.makespan, alone.max_rho) == pytest.approx((13.0, 1.0))


def test_a_job_s_own_start_takes_the_place_of_the_one_assumed_of_all() -> None:
    trace = on_cores((0.0, 10.0, 2.0), (0.0, 10.0, 2.0))
    trace = replace(trace, jobs=(replace(trace.jobs[0], startup_core_seconds=4.0), trace.jobs[1]))
    # Both have a core each, b works from 3 s on, a from 4 s; for the last half of a second a has
    # both.
    found = ran(trace, cores(2.0), "equal", replace(FREE, startup_core_seconds=3.0))
    assert found == pytest.approx({"a": 23.5, "b": 23.0})


def test_what_is_left_is_what_it_costs_with_the_cores_that_a_job_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    predicted = told(monkeypatch, Predicted)
    job = TraceJob("a", 0.0, 5.0, cores=4.0, model="m")
    table = replace(
        FREE, report_seconds=100.0, speeds=Speeds(tables={"m": ((1.0, 8.0), (4.0, 10.0))})
    )
    ran(made("t", [job, replace(job, name="b")]), cores(4.0), "srpt", table)
    # 50 units of work; whoever is first has three threads, which do 28 / 3 a second.
    assert [each.work for _, each in predicted] == pytest.approx([50 * 3 / (28 / 3)] * 2)


@pytest.mark.parametrize("startup", [0.0, 3.0])
def test_the_first_prediction_goes_by_the_cores_that_a_job_has(
    monkeypatch: pytest.MonkeyPatch, startup: float
) -> None:
    predicted = told(monkeypatch, Predicted)
    job = TraceJob("a", 0.0, 5.0, cores=2.0, model="m", startup_core_seconds=startup)
    table = replace(
        FREE, report_seconds=100.0, speeds=Speeds(tables={"m": ((1.0, 8.0), (2.0, 10.0))})
    )
    ran(made("t", [job]), cores(1.0), "srpt", table)
    # of one core, not 10 of the two it could use
    assert [each.work for _, each in predicted] == pytest.approx([6.25])


@pytest.mark.parametrize("policy", [*BUILT_IN, "flowcon:faithful"])
def test_every_policy_ends_every_job_and_those_by_weight_leave_no_core_idle(policy: str) -> None:
    curve = tuple((i / 50, 0.2 + 2.0 / (1 + i)) for i in range(51))
    jobs = [
        TraceJob(
            f"j{i}", 40.0 * i, 60.0 + 50 * (i % 3), cores=2.0, steps=500, epochs=5, losses=curve
        )
        for i in range(6)
    ]
    outcome = simulate(made("t", jobs), cores(2.0), policy, FREE)
    assert ({job.state for job in outcome.jobs}, outcome.warnings) == ({"done"}, [])
    if policy != "flowcon:faithful":  # whose limits leave cores idle
        assert figures(outcome).makespan == pytest.approx(660.0, rel=1e-3)
    shared = simulate(made("t", [replace(job, gpus=2) for job in jobs]), gpus(2), policy, SHARED)
    assert ({job.state for job in shared.jobs}, shared.warnings) == ({"done"}, [])
    assert figures(shared).makespan == pytest.approx(660.0, rel=1e-3)


def test_options_that_would_change_nothing_are_refused() -> None:
    with pytest.raises(
        UsageError, match="found options in 'headgate:rho=2'; they say how jobs share"
    ):
        simulate(on_gpus((0.0, 1.0, 1)), gpus(1), "headgate:rho=2")


def test_where_jobs_wait_for_whole_gpus_a_policy_that_is_no_order_is_said_to_be_as_fifo() -> None:
    trace = on_gpus(*STAGGERED)
    equal = simulate(trace, gpus(1), "equal", FREE)
    assert ends(equal) == ran(trace, gpus(1), "fifo")
    assert equal.warnings == ["the jobs wait for whole GPUs and share nothing: as fifo"]
    assert equal.as_live
    shared = simulate(trace, gpus(1), "equal", SHARED)
    assert (shared.warnings, shared.as_live) == ([], True)


@pytest.mark.parametrize("policy", ["srpt", "las", "headgate"])
def test_an_order_that_preempts_is_said_to_be_no_live_hub_s(policy: str) -> None:
    waits, shared = (
        simulate(on_gpus(*STAGGERED), gpus(1), policy, given) for given in (FREE, SHARED)
    )
    [said] = waits.warnings
    assert said.startswith("this order is only simulated: live, no job is stopped for another")
    assert (waits.as_live, shared.as_live, shared.warnings) == (False, True, [])
