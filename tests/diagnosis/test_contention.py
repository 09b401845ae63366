"""What waiting for cores cost in a second of which everything is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.diagnosis.contention import Contended, OnNode, contended


def second(
    ran: float,
    waited: float,
    ready: float,
    others: float,
    *,
    cores: float = 2.0,
    cap: float = np.inf,
    throttled: float = 0.0,
    stolen: float = 0.0,
) -> Contended:
    """One second of a task beside a neighbour."""
    task = OnNode(*(np.array([value]) for value in (ran, waited, ready, throttled, cap)))
    return contended(task, {"b": np.array([others])}, np.array([stolen]), cores)


@pytest.mark.parametrize(
    ("ran", "waited", "ready", "others", "lost"),
    [
        (1.0, 0.0, 1.0, 1.0, 0.0),  # each has a core of its own
        (0.5, 0.5, 1.0, 1.5, 0.5),  # one thread that had half a core
        (0.25, 0.25, 0.5, 1.75, 0.25),  # the same, blocked half of the time
        (1.0, 1.0, 1.0, 1.0, 0.5),  # two threads that had one core of two
        # eight threads lose no more: alone they would have had two cores
        (1.0, 7.0, 1.0, 1.0, 0.5),
        (2.0, 6.0, 1.0, 0.0, 0.0),  # eight threads alone on two cores wait for each other
        (0.9, 0.1, 1.0, 0.0, 0.0),  # it waited, and nobody else ran
        (0.0, 1.0, 1.0, 2.0, 1.0),  # it never ran
        (0.0, 0.0, 1.0, 2.0, 0.0),  # nothing was read of it
    ],
)
def test_what_a_neighbour_cost(
    ran: float, waited: float, ready: float, others: float, lost: float
) -> None:
    assert second(ran, waited, ready, others).by["b"][0] == pytest.approx(lost)


def test_threads_that_meet_stand_while_one_of_them_waits() -> None:
    """Two of them, each of which waits for half of the time: some does for three quarters of it."""
    readings = {"ran": 1.0, "waited": 1.0, "ready": 1.0, "throttled": 0.0, "cap": np.inf}
    arrays = {name: np.array([value]) for name, value in readings.items()}
    others, stolen = {"b": np.array([1.0])}, np.array([0.0])
    sleeping = contended(OnNode(**arrays, meets=True), others, stolen, 2.0)
    spinning = contended(OnNode(**arrays, meets=True, spins=True), others, stolen, 2.0)
    assert (sleeping.by["b"][0], spinning.by["b"][0]) == (pytest.approx(0.75), pytest.approx(0.875))
    assert sleeping.most["b"][0] == pytest.approx(1.0)


def test_threads_that_no_core_could_run_are_in_excess() -> None:
    assert second(1.0, 7.0, 1.0, 1.0).excess[0] == pytest.approx(6.0)
    assert second(1.0, 1.0, 1.0, 1.0).excess[0] == 0.0


def test_on_a_node_of_unknown_size_nothing_is_in_excess() -> None:
    beside = second(1.0, 1.0, 0.0, 1.0, cores=np.inf)  # pytest makes a warning an error
    assert (beside.by["b"][0], beside.excess[0]) == (0.0, 1.0)
    assert second(1.0, 1.0, 1.0, 1.0, cores=np.inf).excess[0] == 0.0


def test_what_its_own_cap_held_back_is_no_neighbour_s_doing() -> None:
    alone = second(0.5, 0.5, 1.0, 0.0, cap=0.5, throttled=0.5)
    assert (alone.by["b"][0], alone.by_cap[0]) == (0.0, pytest.approx(0.5))
    beside = second(0.5, 0.5, 1.0, 1.5, cap=0.5, throttled=0.5)
    assert (beside.by["b"][0], beside.by_cap[0]) == (0.0, pytest.approx(0.5))


def test_below_its_cap_the_neighbour_is_what_it_waited_for() -> None:
    found = second(0.55, 1.45, 1.0, 1.45, cap=1.0)
    assert found.by["b"][0] == pytest.approx(0.45)
    assert found.by_cap[0] == 0.0  # it was never throttled


def test_a_neighbour_cannot_have_taken_more_than_it_ran() -> None:
    found = second(1.0, 1.0, 1.0, 0.1)
    assert found.by["b"][0] == pytest.approx(1.0 - 1.0 / 1.1)


@pytest.mark.filterwarnings("error")
def test_on_a_node_of_unknown_cores_a_task_that_does_nothing_loses_nothing() -> None:
    assert second(0.0, 0.0, 0.0, 1.0, cores=np.inf).by["b"][0] == 0.0
    assert second(1.0, 1.0, 1.0, 1.0, cores=np.inf).by["b"][0] == pytest.approx(0.5)


def test_stolen_time_is_nobody_s_on_the_node() -> None:
    found = second(0.8, 0.0, 0.8, 0.0, stolen=0.2)
    assert (found.by["b"][0], found.stolen[0]) == (0.0, pytest.approx(0.8 * 0.2))


parts = st.floats(0.0, 8.0, allow_subnormal=False)


@settings(deadline=None)
@given(
    parts,
    parts,
    st.floats(0.0, 1.0),
    parts,
    st.floats(0.1, 16.0),
    st.floats(0.1, 16.0),
    parts,
    parts,
)
def test_no_part_is_negative_and_all_fit_into_the_second(
    ran: float,
    waited: float,
    ready: float,
    others: float,
    cores: float,
    cap: float,
    throttled: float,
    stolen: float,
) -> None:
    found = second(
        ran, waited, ready, others, cores=cores, cap=cap, throttled=throttled, stolen=stolen
    )
    lost = [found.by["b"][0], found.by_cap[0], found.stolen[0]]
    assert min(*lost, found.excess[0]) >= 0.0
    assert found.by["b"][0] + found.by_cap[0] <= ready + 1e-9
    assert found.stolen[0] <= ready + 1e-9
