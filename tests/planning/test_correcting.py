"""Candidates corrected by what was measured of some of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.planning.jobs import cluster, job, nodes, profile

from headgate.model.plans import Plan
from headgate.planning.correcting import Corrected

FOUR = cluster(nodes("a", 4, nic=1.25e9))
JOB, PROFILE = job(), profile(dense_bytes=1_000_000)


def corrected(measured: list[tuple[Plan, float]]) -> Corrected:
    return Corrected(JOB, FOUR, PROFILE, measured)


def test_a_measurement_counts_for_all_plans_that_are_alike_and_moves_the_others() -> None:
    plain = corrected([])
    best = plain.ranked(1)[0]
    assert best.plan.workers == 4
    other = Plan(strategy="single", workers=1, batch_per_worker=None, worker_nodes=("a3",))
    told = corrected([(other, 0.5 * plain.planner.predict(plain.like(other)).throughput)])
    [(plan, rates)] = told.measured.items()
    assert (plan.workers, len(rates)) == (1, 1)
    assert told.planner.predict(plan).throughput == pytest.approx(rates[0], rel=0.1)
    # all compute is slower than thought
    assert told.ranked(1)[0].throughput < 0.8 * best.throughput


def test_a_plan_that_was_measured_to_be_slow_beside_another_is_not_chosen_again() -> None:
    first, *others = corrected([]).ranked(200)
    [alone] = [each for each in others if each.plan.strategy == "single"]
    again = corrected(
        [(first.plan, 0.2 * first.throughput), (alone.plan, alone.throughput)]
    ).ranked(5)
    assert again[0].plan != first.plan
    assert again[0].throughput > 0.2 * first.throughput


def test_what_the_job_may_not_have_is_left_out_and_what_is_no_candidate_is_added() -> None:
    odd = Plan(
        strategy="allreduce", workers=2, batch_per_worker=(200, 56), worker_nodes=("a0", "a0")
    )
    gone = replace(odd, worker_nodes=("a0", "z9"))
    apart = Plan(
        strategy="ps", workers=1, servers=1, batch_per_worker=256, synchronous=False,
        worker_nodes=("a0",), server_nodes=("a1",),
    )  # fmt: skip
    told = corrected([(odd, 100.0), (gone, 100.0), (apart, 100.0)])
    assert list(told.measured) == [odd]
    with pytest.raises(ValueError, match="is like none of the"):
        told.tell(gone, 1.0)
