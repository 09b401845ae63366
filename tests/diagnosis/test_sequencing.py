"""Advice to jobs that slowed each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations

import pytest

from headgate.diagnosis.sequencing import Turn, in_order, one_after_the_other


def advised(jobs: Iterable[str], turns: Mapping[str, Turn]) -> str:
    """What these jobs are told, in whatever order they are named."""
    return one_after_the_other(in_order(jobs, turns), turns, {})


MUTUAL = {
    "short": Turn(10.0, 38.0, True),
    "middle": Turn(20.0, 55.0, True),
    "long": Turn(30.0, 60.0, True),
}


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_jobs_that_need_as_long_as_each_other_have_one_order_too(order: tuple[str, ...]) -> None:
    alike = dict.fromkeys("abc", Turn(10.0, 30.0, True))
    assert "the shortest first: a, b, c." in advised(order, alike)


@pytest.mark.parametrize("order", list(permutations(MUTUAL)))
def test_whoever_is_the_victim_all_are_told_the_same_order(order: tuple[str, ...]) -> None:
    told = advised(order, MUTUAL)
    assert "the shortest first: short, middle, long." in told
    assert (
        "short would be done after 10 s instead of 38 s, middle after 30 s instead of 55 s "
        "and long after 1 min 0 s"
    ) in told


def test_of_two_jobs_the_longer_one_is_told_to_run_after_the_shorter_one() -> None:
    told = advised(("long", "short"), MUTUAL)
    assert told.startswith(
        "Run long after short, which is shorter: in a job file, give it `after: short`."
    )


def test_jobs_that_would_gain_nothing_from_an_order_are_told_to_stay_side_by_side() -> None:
    """Each leaves one of two cores free when alone."""
    side_by_side = {
        name: Turn(40.0 + place, 42.0 + place, True) for place, name in enumerate("abc")
    }
    told = advised("abc", side_by_side)
    assert told.startswith("Leave it so. ") and "c after 2 min 3 s instead of 44 s" in told
    pair = advised("ba", side_by_side)
    assert pair.startswith("Leave it so. ") and pair.endswith(
        "If a matters more: in a job file, give b `after: a`."
    )


def test_of_jobs_that_go_on_it_is_not_known_which_is_shorter() -> None:
    """One that was held back so far looks short."""
    going_on = {name: Turn(1.0, 5.0, False, goes_on=True) for name in ("b", "c")}
    one, both = {**MUTUAL, "b": going_on["b"]}, {**MUTUAL, **going_on}
    assert advised(("b", "long"), one) == "Run b after long: in a job file, give it `after: long`."
    assert advised("bc", both).startswith("Once these jobs have ended, ")
    assert advised(("short", "c", "b"), both).startswith("Once these jobs have ended, ")


def test_jobs_that_were_stopped_are_told_an_order_without_what_it_would_bring() -> None:
    stopped = {
        name: Turn(seconds, 20.0, False)
        for name, seconds in (("a", 10.0), ("b", 12.0), ("c", 11.0))
    }
    told = advised("bac", stopped)
    assert told.startswith("Run them one after the other: a, c, b.") and "instead of" not in told
