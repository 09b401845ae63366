"""What changes with a neighbour, against what changes anyway."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from headgate.diagnosis.switching import SwitchEffect, effects
from headgate.recorded.usage import Array

WINDOWS = 60


def there(*switches: int) -> Array:
    """Cores of a neighbour that comes and goes at these windows."""
    return np.array(
        [float(np.count_nonzero(np.array(switches) <= at) % 2) for at in range(WINDOWS)]
    )


def noise(seed: int, size: float = 0.02) -> Array:
    return np.random.default_rng(seed).normal(0.0, size, WINDOWS)


def effect(values: Array, cores: Array) -> SwitchEffect:
    [found] = effects(values, cores[None])
    assert found is not None
    assert found.low <= found.each <= found.high
    return found


OFTEN = (11, 17, 24, 33, 41, 48)


def test_a_neighbour_that_comes_and_goes_is_known_by_what_changes_with_it() -> None:
    cores = there(*OFTEN)
    found = effect(0.3 * cores + noise(0), cores)
    assert found.sure and found.switches == len(OFTEN)
    assert found.low <= 0.3 <= found.high and found.high - found.low < 0.1


@pytest.mark.parametrize("trend", [0.03, -0.03])
def test_a_trend_of_the_job_is_not_the_neighbour_s(trend: float) -> None:
    cores = there(*OFTEN)
    alone = effect(trend * np.arange(WINDOWS) + noise(1), cores)
    assert alone.low <= 0.0 <= alone.high and abs(alone.each) < 0.03
    beside = effect(trend * np.arange(WINDOWS) + 0.3 * cores + noise(2), cores)
    assert beside.each == pytest.approx(0.3, abs=0.03) and beside.low > 0.2


@pytest.mark.parametrize(
    ("switches", "count"), [((30,), 1), ((20, 40), 2)], ids=["came", "came and went"]
)
def test_one_stay_is_not_enough_to_be_sure(switches: tuple[int, ...], count: int) -> None:
    cores = there(*switches)
    found = effect(0.5 * cores + noise(3), cores)
    assert (found.switches, found.sure) == (count, False)
    assert found.each == pytest.approx(0.5, abs=0.05)


def test_a_job_that_changed_at_one_of_many_switches_changed_by_itself() -> None:
    found = effect(0.5 * (np.arange(WINDOWS) >= OFTEN[2]) + noise(4), there(*OFTEN))
    assert found.sure and found.low <= 0.0 <= found.high and not found.agrees


def test_a_neighbour_agrees_with_what_changed_each_time_and_at_once() -> None:
    cores = there(*OFTEN)
    assert effect(0.3 * cores + noise(10), cores).agrees
    late = np.roll(cores, -2)  # each change came two windows before
    assert not effect(0.3 * late + noise(11), cores).agrees
    # of five times, at four
    thrice = 0.4 * sum(cores * (np.arange(WINDOWS) // 20 == part) for part in (0, 2))
    assert not effect(thrice + noise(12), cores).agrees


def test_what_changes_elsewhere_as_well_may_change_at_a_switch() -> None:
    """Phases of seven windows, beside a neighbour that does nothing."""
    phases = 0.4 * (np.arange(WINDOWS) // 7 % 2)
    found = effect(phases + noise(5), there(*OFTEN))
    assert found.low <= 0.0 <= found.high
    calm = effect(noise(5), there(*OFTEN))
    assert found.high - found.low > 3.0 * (calm.high - calm.low)


def test_of_neighbours_that_run_together_none_is_sure_and_apart_each_is() -> None:
    cores = there(*OFTEN)
    for each in effects(0.3 * cores + noise(6), np.array([cores, cores])):
        assert each is not None and not each.sure
    other = there(*(at + 3 for at in OFTEN))
    first, second = effects(0.3 * cores + noise(7), np.array([cores, other]))
    assert first is not None and second is not None and first.sure and second.sure
    assert first.low <= 0.3 <= first.high and first.low > 0.2
    assert second.low <= 0.0 <= second.high


@pytest.mark.parametrize(
    "cores", [there(0), there(), np.linspace(0.0, 1.0, WINDOWS)], ids=["always", "never", "slowly"]
)
def test_a_neighbour_that_never_came_nor_went_is_not_compared(cores: Array) -> None:
    assert effects(noise(8), cores[None]) == [None]


def test_bands_of_90_percent_hold_nine_of_ten() -> None:
    """Jobs whose steps wander, beside a neighbour that comes and goes."""
    draw = np.random.default_rng(9)
    held = 0
    for seed in range(200):
        stays = np.cumsum(draw.integers(3, 9, 10))
        cores = there(*(int(end) for _, end in pairwise(stays)))
        wanders = np.cumsum(draw.normal(0.0, 0.02, WINDOWS))
        found = effect(0.2 * cores + wanders + noise(seed, 0.03), cores)
        held += found.low <= 0.2 <= found.high
    assert held >= 170
