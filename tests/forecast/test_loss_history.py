"""What is kept of a job's losses."""

from __future__ import annotations

import math

import pytest

from headgate.forecast.loss_history import MOST_POINTS, Losses


def wiggle(step: int) -> float:
    """Something like noise, between -1 and 1, the same each time."""
    return math.sin(12.9898 * step) * math.cos(78.233 * step)


def fed(values: list[float]) -> Losses:
    losses = Losses()
    for step, value in enumerate(values, 1):
        losses.add(step, value)
    return losses


def test_however_many_losses_come_few_points_are_kept_and_their_mean_stays() -> None:
    losses = fed([5.0 + 0.001 * wiggle(step) for step in range(20_000)])
    points = losses.points()
    assert MOST_POINTS / 2 <= len(points) <= MOST_POINTS
    assert sum(count for *_, count in points) == losses.seen == 20_000
    assert [step for step, *_ in points] == sorted(step for step, *_ in points)
    assert all(loss == pytest.approx(5.0, abs=1e-3) for _, loss, _ in points)


def test_few_losses_are_kept_as_they_are() -> None:
    losses = Losses()
    for hour, value in enumerate((3.0, 2.0, 1.5, 1.25)):
        losses.add(1000 * (hour + 1), value, count=1000)
    assert losses.points() == [
        (1000, 3.0, 1000),
        (2000, 2.0, 1000),
        (3000, 1.5, 1000),
        (4000, 1.25, 1000),
    ]


def test_a_spike_hardly_moves_the_level_and_is_no_jump() -> None:
    values = [1.0 + 0.1 * wiggle(step) for step in range(200)]
    values[100] = 1e9
    losses = fed(values)
    assert losses.phase == 0
    assert max(loss for _, loss, _ in losses.points()) < 2.0


def test_what_is_no_number_is_counted_and_left_out() -> None:
    losses = fed([1.0, 0.9, math.nan, 0.8, math.inf, 0.7])
    assert (losses.not_numbers, len(losses.points()), losses.diverging) == (2, 4, False)
    for step in range(7, 10):
        losses.add(step, math.nan)
    assert losses.diverging


def test_a_loss_that_rises_beyond_its_noise_diverges_and_one_that_falls_does_not() -> None:
    assert fed([1.0 + 0.02 * step + 0.01 * wiggle(step) for step in range(60)]).diverging
    assert not fed([3.0 - 0.02 * step + 0.01 * wiggle(step) for step in range(60)]).diverging
    assert not fed([1.0 + 0.1 * wiggle(step) for step in range(60)]).diverging
    assert not fed([1.0] * 60).diverging


@pytest.mark.parametrize(
    "rises", [0.15, 3.0], ids=["within each epoch", "to more than it began with"]
)
def test_what_falls_with_each_epoch_does_not_diverge_because_it_rises_within_one(
    rises: float,
) -> None:
    """Keras prints the mean of the epoch so far."""
    losses = Losses()
    diverged = []
    for step in range(200):
        epoch, within = divmod(step, 40)
        losses.add(
            step,
            2.0 - 0.3 * epoch + (rises if epoch else -0.1) * within / 40 + 0.001 * wiggle(step),
        )
        diverged.append(losses.diverging)
    assert losses.phase > 0
    assert any(diverged) == (rises > 1.0)


@pytest.mark.parametrize("other", [2.5, 0.4])
def test_a_jump_of_the_level_begins_a_new_phase(other: float) -> None:
    before = [1.0 + 0.02 * wiggle(step) for step in range(100)]
    losses = fed(before + [other + 0.02 * wiggle(step) for step in range(40)])
    assert losses.phase == 1
    assert all(loss == pytest.approx(other, abs=0.05) for _, loss, _ in losses.points()[5:])


@pytest.mark.parametrize("step", [0.01, -0.01, 1 / 30])
def test_what_few_digits_make_of_a_slow_change_is_neither_a_jump_nor_a_rise(step: float) -> None:
    losses = Losses()
    for number, tick in enumerate([0] * 40 + [1] * 20 + [2] * 30 + [1] * 20 + [2] * 12, 1):
        losses.add(number, 0.5 + tick * step)
        assert not losses.diverging
    assert losses.phase == 0


def test_a_jump_among_losses_of_few_digits_is_one() -> None:
    losses = fed([0.31, 0.3] * 3 + [0.3] * 30 + [0.9] * 20)
    assert losses.phase == 1
    assert losses.level() == 0.9


def test_where_a_loss_is_nothing_any_more_no_other_level_is_a_phase_or_a_rise() -> None:
    falls = [2.3 * 0.8**step for step in range(100)]
    for level in (1e-9, 3e-6):  # of a network that knows its data by heart
        losses = fed([*falls, *(1e-8 + level * (1 + 0.01 * wiggle(step)) for step in range(30))])
        assert (losses.phase, losses.diverging) == (0, False)
    losses = fed([*falls, *[1e-8] * 30, *(0.1 * (1 + 0.01 * wiggle(step)) for step in range(30))])
    assert losses.phase == 1


def test_a_steep_beginning_is_one_phase() -> None:
    assert (
        fed([10.0 * math.exp(-step / 15) + 0.05 * wiggle(step) for step in range(300)]).phase == 0
    )
    assert fed([10.0 / (1.0 + step) for step in range(300)]).phase == 0


def test_steps_that_are_done_again_take_the_place_of_those_before() -> None:
    losses = fed([float(10 - step) for step in range(8)])
    losses.add(4, 7.5)
    assert [step for step, *_ in losses.points()] == [1, 2, 3, 4]
    assert losses.points()[-1] == (4, 7.5, 1)


def test_steps_that_are_counted_from_the_beginning_again_are_another_phase() -> None:
    losses = fed([2.0] * 5000)
    assert [losses.add(step, 5.0 + step) for step in range(1, 21)] == [True] + [False] * 19
    assert losses.phase == 1
    assert losses.points() == [(step, 5.0 + step, 1) for step in range(1, 21)]


def test_without_steps_losses_are_counted() -> None:
    losses = Losses()
    losses.add(None, 2.0, count=5)
    losses.add(None, 1.0, count=5)
    assert [step for step, *_ in losses.points()] == [5, 10]


def test_a_metric_that_should_rise_is_turned() -> None:
    accuracy = Losses(rising=True)
    for step in range(40):
        accuracy.add(step, 0.01 * step)
    assert not accuracy.diverging
    assert accuracy.level() == pytest.approx(-0.37)
