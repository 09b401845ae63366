"""Advice to jobs that slowed each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations

import pytest

from headgate.diagnosis.remedies import Remedy, RemedyKind
from headgate.diagnosis.sequencing import SoloTime, in_order, one_after_the_other


def advised(jobs: Iterable[str], solo_times: Mapping[str, SoloTime]) -> Remedy:
    """What these jobs are told, in whatever order they are named."""
    return one_after_the_other(in_order(jobs, solo_times), solo_times, {})


MUTUAL = {
    "short": SoloTime(10.0, 38.0, True),
    "middle": SoloTime(20.0, 55.0, True),
    "long": SoloTime(30.0, 60.0, True),
}


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_jobs_that_need_as_long_as_each_other_have_one_order_too(order: tuple[str, ...]) -> None:
    alike = dict.fromkeys("abc", SoloTime(10.0, 30.0, True))
    remedy = advised(order, alike)
    assert remedy.kind is RemedyKind.RUN_IN_TURN
    assert remedy.facts.order == ("a", "b", "c")


@pytest.mark.parametrize("order", list(permutations(MUTUAL)))
def test_whoever_is_the_victim_all_are_told_the_same_order(order: tuple[str, ...]) -> None:
    remedy = advised(order, MUTUAL)
    assert remedy.kind is RemedyKind.RUN_IN_TURN
    ends = [(end.job, end.alone, end.elapsed) for end in remedy.facts.ends]
    assert ends == [("short", 10.0, 38.0), ("middle", 30.0, 55.0), ("long", 60.0, 60.0)]


def test_of_two_jobs_the_longer_one_is_told_to_run_after_the_shorter_one() -> None:
    remedy = advised(("long", "short"), MUTUAL)
    assert (remedy.kind, remedy.job) == (RemedyKind.RUN_IN_TURN, "long")
    assert remedy.settings == {"after": "short"}
    assert remedy.facts.shorter


def test_jobs_that_would_gain_nothing_from_an_order_are_told_to_stay_side_by_side() -> None:
    """Each leaves one of two cores free when alone."""
    side_by_side = {
        name: SoloTime(40.0 + place, 42.0 + place, True) for place, name in enumerate("abc")
    }
    three, pair = advised("abc", side_by_side), advised("ba", side_by_side)
    assert three.kind is pair.kind is RemedyKind.LEAVE_TOGETHER
    assert [end.alone for end in three.facts.ends] == [40.0, 81.0, 123.0]
    assert (three.settings, pair.job, pair.settings) == ({}, "b", {"after": "a"})


def test_of_jobs_that_go_on_it_is_not_known_which_is_shorter() -> None:
    """One that was held back so far looks short."""
    going_on = {name: SoloTime(1.0, 5.0, False, goes_on=True) for name in ("b", "c")}
    one, both = {**MUTUAL, "b": going_on["b"]}, {**MUTUAL, **going_on}
    after_long = advised(("b", "long"), one)
    assert (after_long.job, after_long.settings) == ("b", {"after": "long"})
    assert not after_long.facts.shorter
    assert advised("bc", both).kind is RemedyKind.WAIT_FOR_ENDS
    assert advised(("short", "c", "b"), both).kind is RemedyKind.WAIT_FOR_ENDS


def test_jobs_that_were_stopped_are_told_an_order_without_what_it_would_bring() -> None:
    stopped = {
        name: SoloTime(seconds, 20.0, False)
        for name, seconds in (("a", 10.0), ("b", 12.0), ("c", 11.0))
    }
    remedy = advised("bac", stopped)
    assert remedy.kind is RemedyKind.RUN_IN_TURN
    assert (remedy.facts.order, remedy.facts.ends) == (("a", "c", "b"), ())
