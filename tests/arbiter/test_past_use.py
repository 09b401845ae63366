"""Past use counts half after the half-life."""

from __future__ import annotations

import pytest

from headgate.arbiter.past_use import PastUse

DAY = 86_400.0


def test_use_counts_half_after_the_half_life() -> None:
    past = PastUse(7 * DAY)
    past.hold(0.0, "ada", 0.5)
    assert past.mean(7 * DAY, "ada") == pytest.approx(0.25)
    past.hold(7 * DAY, "ada", 0.0)
    assert past.mean(14 * DAY, "ada") == pytest.approx(0.125)


def test_the_mean_does_not_depend_on_how_often_it_is_told() -> None:
    seldom, often = PastUse(DAY), PastUse(DAY)
    seldom.hold(0.0, "ada", 0.8)
    for hour in range(48):
        often.hold(3_600.0 * hour, "ada", 0.8)
    assert often.mean(2 * DAY, "ada") == pytest.approx(seldom.mean(2 * DAY, "ada"))


def test_a_user_who_has_nothing_for_long_is_forgotten() -> None:
    past = PastUse(DAY)
    past.hold(0.0, "ada", 1.0)
    past.hold(DAY, "ada", 0.0)
    past.hold(60 * DAY, "ada", 0.0)
    assert past.means(60 * DAY) == {}


def test_past_use_goes_on_after_a_restart() -> None:
    past, next_past = PastUse(DAY), PastUse(DAY)
    past.hold(0.0, "ada", 1.0)
    next_past.restore(DAY, past.means(DAY))
    assert next_past.mean(2 * DAY, "ada") == pytest.approx(0.25)
