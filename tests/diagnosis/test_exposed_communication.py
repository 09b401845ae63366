"""How waiting for communication divides among a job's own bytes and its neighbours'; every number
is known.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.diagnosis.made_up import Course, MadeUp, recording

from headgate.diagnosis.accounts import accounts
from headgate.diagnosis.exposed_communication import NicTraffic, OnNic, exposed_to_nics, spread
from headgate.recorded.usage import Array

RATE = 100.0
ONE = np.ones(10)


def traffic(received: float, sent: float) -> NicTraffic:
    return NicTraffic(received * ONE, sent * ONE)


def on(own: NicTraffic, **neighbours: NicTraffic) -> OnNic:
    return OnNic(RATE, own, neighbours)


def means(parts: dict[str, Array]) -> dict[str, float]:
    return {name: float(part.mean()) for name, part in parts.items() if part.any()}


def test_a_job_whose_own_bytes_fill_the_nic_waits_for_that() -> None:
    found = exposed_to_nics(0.9 * ONE, [on(traffic(80, 85)), on(traffic(40, 40))])
    assert means(dict(found.by)) == {}
    assert found.by_nic == pytest.approx(0.9 * ONE)
    partly = exposed_to_nics(0.9 * ONE, [on(traffic(60, 60))])
    assert partly.by_nic == pytest.approx(0.6 * ONE)


def test_a_job_whose_bytes_need_little_of_the_nic_waits_for_something_else() -> None:
    found = exposed_to_nics(0.9 * ONE, [on(traffic(20, 20))])
    assert found.by_nic == pytest.approx(0.2 * ONE)


def test_what_it_waits_beyond_its_own_bytes_beside_a_full_nic_is_lost_to_who_fills_it() -> None:
    found = exposed_to_nics(0.9 * ONE, [on(traffic(20, 20), b=traffic(0, 60), c=traffic(0, 20))])
    assert means(dict(found.by)) == {"b": pytest.approx(0.7 * 0.75), "c": pytest.approx(0.7 * 0.25)}


@pytest.mark.parametrize(
    "nic",
    [
        on(traffic(20, 20), b=traffic(0, 40)),
        on(traffic(20, 0), b=traffic(0, 95)),
        on(traffic(0, 0), b=traffic(99, 99)),
    ],
    ids=["a NIC that is not full", "full the other way", "none of its own bytes"],
)
def test_a_neighbour_on_a_nic_that_did_not_keep_it_is_not_blamed(nic: OnNic) -> None:
    assert means(dict(exposed_to_nics(0.9 * ONE, [nic]).by)) == {}


@pytest.mark.parametrize(("own", "theirs", "lost"), [(70, 8, 8 / 78), (30, 55, 0.6)])
def test_a_neighbour_is_never_blamed_for_more_than_its_part_of_a_full_nic(
    own: int, theirs: int, lost: float
) -> None:
    """Headers take the rest of a full NIC, and they are somebody's as well."""
    found = exposed_to_nics(0.9 * ONE, [on(traffic(own, own), b=traffic(0, theirs))])
    assert means(dict(found.by)) == {"b": pytest.approx(lost)}


def test_of_several_nodes_the_one_where_most_was_lost_counts() -> None:
    nics = [on(traffic(20, 20), b=traffic(0, 70)), on(traffic(20, 20), c=traffic(0, 60))]
    assert means(dict(exposed_to_nics(0.9 * ONE, nics).by)) == {"b": pytest.approx(0.7)}


def test_waiting_lies_where_the_job_was_idle_and_only_then_elsewhere() -> None:
    idle = np.array([0.0, 0.5, 1.0])
    assert spread(0.75, idle, np.ones(3), np.ones(3)) == pytest.approx(idle / 2)
    inside = np.array([0.0, 1.0, 1.0])
    assert spread(2.0, np.ones(3), np.ones(3), inside) == pytest.approx(inside)
    more = spread(2.0, idle, np.ones(3), np.ones(3))
    assert float(more.sum()) == pytest.approx(2.0)
    assert (more >= idle).all()


def test_traffic_of_nobody_counts_whole_however_it_rises_and_falls(tmp_path: Path) -> None:
    """Every other second the job leaves it less of the NIC, which is full in the seconds
    between.
    """
    alike = MadeUp(
        ran=0.1,
        readings={"tcp_in": 15.0, "tcp_out": 15.0},
        spans={"push": 0.08, "forward": 0.02},
        server_node="elsewhere",
    )
    passed: dict[str, Course] = {"net_in": 15.0, "net_out": lambda t: 50.0 if t % 2 else 85.0}
    run = recording(
        tmp_path / "r.sqlite", {"a": alike}, node={"nic_bytes_per_second": 100.0}, readings=passed
    )
    [found] = accounts(run.jobs, run.nodes, run.seconds)
    lost = {loss.to: loss.lost.seconds for loss in found.losses if loss.resource == "network"}
    assert lost["others"] == pytest.approx(20 * 0.65, rel=0.1)


def test_traffic_of_nobody_that_lasts_a_moment_is_nobody_s(tmp_path: Path) -> None:
    """A task that ends takes what its connections carried last along."""
    sent = {"tcp_in": 10.0, "tcp_out": 10.0}
    alike = MadeUp(
        ran=0.1, readings=sent, spans={"push": 0.08, "forward": 0.02}, server_node="elsewhere"
    )
    node = {"nic_bytes_per_second": 100.0}
    for seconds, blamed in ((2, False), (20, True)):

        def sent_by_all(t: int, until: int = 20 + seconds) -> float:
            return 95.0 if 20 <= t < until else 20.0

        passed: dict[str, Course] = {"net_in": 20.0, "net_out": sent_by_all}
        run = recording(tmp_path / f"{seconds}.sqlite", {"a": alike}, node=node, readings=passed)
        [found] = accounts(run.jobs, run.nodes, run.seconds)
        lost = {loss.to: loss.lost.seconds for loss in found.losses if loss.resource == "network"}
        assert ("others" in lost) == blamed
        assert sum(part.seconds for part in found.parts.values()) == pytest.approx(found.elapsed)


@pytest.mark.parametrize(
    ("own", "busy", "lost"), [(10.0, 0.1, 20 * 0.8), (0.2, 0.1, 0.0), (10.0, 1.0, 0.0)], ids=str
)
def test_a_start_that_waits_for_a_full_nic_is_lost_to_who_fills_it(
    tmp_path: Path, own: float, busy: float, lost: float
) -> None:
    """Weights are exchanged before the first step. Nobody is blamed for a start that exchanges
    nothing, or computes.
    """

    def at_first(before: float, later: float) -> Course:
        return lambda t: before if t <= 20 else later

    job = MadeUp(
        ran=at_first(busy, 0.9),
        steps=at_first(0.0, 10.0),
        readings={"tcp_in": at_first(own, 10.0), "tcp_out": 0.2},
        spans={"push": at_first(0.0, 0.001), "forward": at_first(0.0, 0.099)},
        server_node="elsewhere",
    )
    passed: dict[str, Course] = {"net_in": at_first(95.0, 10.0), "net_out": 1.0}
    run = recording(
        tmp_path / "r.sqlite", {"a": job}, node={"nic_bytes_per_second": 100.0}, readings=passed
    )
    [found] = accounts(run.jobs, run.nodes, run.seconds)
    told = sum(
        loss.lost.seconds
        for loss in found.losses
        if (loss.to, loss.resource) == ("others", "network")
    )
    assert told == pytest.approx(lost, rel=0.1, abs=0.2)
    assert found.parts["starting"].seconds == pytest.approx(20.0 - told, abs=1.5)
    assert sum(part.seconds for part in found.parts.values()) == pytest.approx(found.elapsed)
