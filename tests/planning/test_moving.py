"""Whether a running job should go on under another plan: what it saves against what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headgate.model.plans import Plan, Prediction
from headgate.model.reason_text import in_words
from headgate.planning.moving import Standing, better

SLOW = Plan(strategy="single", workers=1, batch_per_worker=64, worker_nodes=("a",))
FAST = Plan(strategy="allreduce", workers=2, batch_per_worker=32, worker_nodes=("a", "b"))
STANDING = Standing(SLOW, throughput=100.0, seconds_left=600.0, restart_seconds=10.0, moves_left=1)


def expects(throughput: float, low: float) -> Prediction:
    return Prediction(FAST, throughput, low, throughput**2 / low, {"compute": 1.0}, "compute")


def test_it_is_moved_where_that_saves_more_than_it_costs_and_it_is_said_why() -> None:
    move = better(STANDING, expects(225.0, 100.0))  # counts as 150: 600 s become 400 s
    assert move is not None
    assert move.plan == FAST
    assert in_words(move.reason) == (
        "moved to allreduce, 2 workers on a, b: 225 samples/s expected, 100 samples/s measured "
        "under single, 1 worker on a; saves 3 min 10 s of 10 min 0 s, for a restart of 10 s"
    )


@pytest.mark.parametrize(
    ("standing", "throughput", "low"),
    [
        (STANDING, 100.0, 100.0),  # as fast
        (STANDING, 200.0, 50.0),  # faster than it surely is
        (STANDING, 102.5, 102.5),  # saves 14.6 s for 10
        (replace(STANDING, seconds_left=20.0), 300.0, 300.0),  # nearly done
        (replace(STANDING, seconds_left=14.0), 1e9, 1e9),  # could not pay however fast
        (replace(STANDING, moves_left=0), 300.0, 300.0),  # its user's budget is spent
        (replace(STANDING, plan=FAST), 300.0, 300.0),  # it has that plan
    ],
)
def test_it_is_left_where_that_is_not_worth_it(
    standing: Standing, throughput: float, low: float
) -> None:
    assert better(standing, expects(throughput, low)) is None


def test_saving_just_more_than_its_cost_by_half_is_worth_it() -> None:
    assert better(STANDING, expects(102.7, 102.7)) is not None
