"""When a script that prints a line an epoch ends: bands hold as they claim to."""

from __future__ import annotations

import math
import random

import pytest

from headgate.forecast.epoch_steps import Estimate
from headgate.forecast.expected import Expected, expect
from headgate.forecast.step_time import step_time
from headgate.model.identifiers import TaskId
from headgate.model.progress import Progress

JOBS = 250


def printed(
    times: list[float], until: float, within: float | None = None, step: int = 0
) -> Expected:
    """What is expected of a script that has printed its epochs at these times."""
    reports: list[tuple[float, float | None, Progress]] = []
    for epoch, at in enumerate(times, 1):
        if at <= until:
            told = Progress(
                TaskId("a"), step * epoch or None, epoch=epoch, epochs=len(times), within=within
            )
            reports.append((at, 1.0 / epoch, told))
    expected = expect(reports, began=0.0)
    assert expected is not None
    return expected


def course(noise: random.Random, epochs: int) -> list[float]:
    """Times at which epochs end that vary by little or much, drift, have outliers, or a slow
    beginning.
    """
    spread, outliers, drift = (
        noise.choice((0.02, 0.05, 0.15)),
        noise.choice((0.0, 0.08)),
        noise.choice((0.0, 0.04)),
    )
    now, level, times = noise.uniform(1.0, 30.0), 0.0, list[float]()
    for epoch in range(epochs):
        level = 0.8 * level + noise.gauss(0.0, drift)
        of_epoch = 10.0 * math.exp(level + noise.gauss(0.0, spread))
        now += of_epoch * (
            2.0 if noise.random() < outliers or (epoch == 0 and spread == 0.05) else 1.0
        )
        times.append(now)
    return times


def test_nine_of_ten_ends_are_within_the_band() -> None:
    held = []
    for number in range(JOBS):
        noise = random.Random(number)
        times = course(noise, noise.choice((6, 12, 30, 60)))
        now = noise.uniform(times[1], times[-1])
        expected = printed(
            times, now, step=noise.choice((0, 100)), within=noise.choice((None, 1.0))
        )
        seconds = expected.seconds(now - expected.reported)
        assert seconds is not None and seconds.low < seconds.steps < seconds.high
        held.append(seconds.low <= times[-1] - now <= seconds.high)
    part = sum(held) / JOBS
    assert 0.85 <= part <= 0.95, part


@pytest.mark.parametrize("within", [None, 1.0])
@pytest.mark.parametrize("step", [0, 500])
def test_an_epoch_that_is_printed_has_ended(step: int, within: float | None) -> None:
    times = [10.0 * epoch for epoch in range(1, 21)]
    for done in (2, 3, 10, 19, 20):
        expected = printed(times, 10.0 * done, step=step, within=within)
        assert expected.left is not None
        assert expected.left.steps == pytest.approx((20 - done) * (step or 1))
        seconds = expected.seconds()
        assert seconds is not None
        assert seconds.steps == pytest.approx(10.0 * (20 - done), rel=0.01)


def test_an_epoch_that_is_printed_as_it_begins_is_still_to_come() -> None:
    times = [1.0 + 10.0 * epoch for epoch in range(20)]
    expected = printed(times, 55.0)
    # the sixth to the twentieth
    assert expected.left is not None and expected.left.steps == pytest.approx(15)


@pytest.mark.parametrize("apart", [0.0, 0.2])
def test_several_lines_at_the_end_of_an_epoch_are_of_one_moment(apart: float) -> None:
    reports: list[tuple[float, float | None, Progress]] = []
    for epoch in range(1, 11):
        for line in range(2):
            at = 10.0 * epoch + line * apart
            reports.append((at, 1.0 / epoch, Progress(TaskId("a"), None, epoch=epoch, epochs=30)))
    expected = expect(reports, began=0.0)
    assert expected is not None
    seconds = expected.seconds()
    assert seconds is not None and seconds.steps == pytest.approx(200.0, rel=0.02)


def test_what_was_waited_for_the_next_epoch_is_not_waited_for_again() -> None:
    noise = random.Random(3)
    times = [10.0 * epoch + noise.gauss(0.0, 0.2) for epoch in range(1, 21)]
    expected = printed(times, 105.0)
    at_once, later, late = (expected.seconds(waited) for waited in (0.0, 5.0, 14.0))
    assert at_once is not None and later is not None and late is not None
    assert later.steps == pytest.approx(at_once.steps - 5.0, abs=0.5)
    # An epoch that is late by four seconds ends soon, and not before now.
    assert 90.0 < late.steps < at_once.steps - 8.0
    for estimate in (at_once, later, late):
        assert 0.0 <= estimate.low < estimate.steps < estimate.high


def test_a_job_that_was_held_for_an_hour_is_not_held_again() -> None:
    reports = [(10.0 * step + (3600.0 if step > 30 else 0.0), float(step)) for step in range(1, 61)]
    time = step_time(reports)
    assert time is not None
    assert time.of(Estimate(10.0, 10.0, 10.0)).steps == pytest.approx(100.0, rel=0.15)


def test_epochs_that_get_longer_are_expected_to_go_on_so() -> None:
    held = []
    for seed in range(40):
        noise, times, now = random.Random(seed), list[float](), 0.0
        for epoch in range(60):
            now += (10.0 + 0.1 * epoch) * noise.gauss(1.0, 0.03)
            times.append(now)
        time = step_time([(at, float(epoch)) for epoch, at in enumerate(times[:30])])
        assert time is not None
        left = time.of(Estimate(30.0, 30.0, 30.0))
        held.append(left.low <= times[-1] - times[29] <= left.high)
    assert sum(held) >= 32


def test_too_few_reports_tell_no_time() -> None:
    assert step_time([]) is None
    assert step_time([(1.0, 1.0)]) is None
    assert step_time([(1.0, 1.0), (1.0, 2.0)]) is None
    assert step_time([(float(at), 7.0) for at in range(9)]) is None
