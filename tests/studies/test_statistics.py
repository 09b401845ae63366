"""Statistics of studies, on effects that are planted into noise."""

from __future__ import annotations

import numpy as np
import pytest

from headgate.studies import statistics
from headgate.studies.statistics import change, noise_floor, paired, say, shuffled_blocks, unpaired


def measured(seed: int, ratio: float = 1.0, blocks: int = 8) -> tuple[dict[int, float], ...]:
    """Seconds of a cell, of the same cell again and of another, by block: each block has a level of
    its own, and one run in twenty is disturbed, as on a machine that others use.
    """
    draw = np.random.default_rng(seed)
    level = np.exp(draw.normal(0.0, 0.1, blocks))
    noise = np.exp(draw.normal(0.0, 0.03, (3, blocks))) * np.where(
        draw.random((3, blocks)) < 0.05, 1.2, 1.0
    )
    return tuple(dict(enumerate(level * noise[row] * (1.0, 1.0, ratio)[row])) for row in range(3))


def finding(seed: int, ratio: float = 1.0) -> str:
    cell, again, other = measured(seed, ratio)
    repeat, found = paired(cell, again), paired(cell, other)
    assert repeat is not None and found is not None
    return change(found, noise_floor([repeat]))


def test_each_block_has_every_cell_once_in_an_order_that_its_seed_keeps() -> None:
    blocks = shuffled_blocks(range(10), 5, seed=3)
    assert all(sorted(block) == list(range(10)) for block in blocks)
    assert len({tuple(block) for block in blocks}) == 5
    assert blocks == shuffled_blocks(range(10), 5, seed=3) != shuffled_blocks(range(10), 5, seed=4)
    assert shuffled_blocks(range(10), 3, seed=3) == blocks[:3]


def test_a_cell_against_itself_is_hardly_ever_a_finding() -> None:
    assert sum(finding(seed) != "none" for seed in range(20)) <= 1
    assert sum(finding(seed) != "none" for seed in range(400)) <= 20


def test_a_planted_effect_is_found_and_its_interval_holds_it() -> None:
    assert all(finding(seed, 1.25) == "slower" for seed in range(20))
    assert all(finding(seed, 0.8) == "faster" for seed in range(20))
    held = 0
    for seed in range(200):
        cell, _, other = measured(seed, 1.25)
        found = paired(cell, other)
        assert found is not None
        held += found.low <= 1.25 <= found.high
    assert 180 <= held <= 199


def test_levels_of_blocks_cancel_in_pairs() -> None:
    cell, _, other = measured(1, 1.25, blocks=40)
    together, apart = paired(cell, other), unpaired(list(cell.values()), list(other.values()))
    assert together is not None and apart is not None
    assert together.value == pytest.approx(apart.value)
    assert together.high - together.low < 0.7 * (apart.high - apart.low)


def test_a_block_that_lacks_one_of_the_two_is_left_out() -> None:
    found = paired({0: 1.0, 1: 2.0, 2: 4.0}, {1: 4.0, 2: 8.0, 3: 9.0})
    assert found is not None
    assert found.values == (2.0, 2.0)
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_few_repetitions_have_no_interval_and_no_finding() -> None:
    found = paired(dict.fromkeys(range(4), 1.0), {0: 1.1, 1: 1.2, 2: 1.3, 3: 1.25})
    assert found is not None
    assert not found.has_interval
    assert (found.low, found.high) == pytest.approx((1.1, 1.3))
    assert change(found, 0.02) == "unsure"
    assert say(found, 0.02) == "slower by 21 % (values 10 to 30, too few for a finding)"


def test_words() -> None:
    def ratio(value: float, low: float, high: float) -> statistics.Ratio:
        return statistics.Ratio(value, low, high, (value,) * 5)

    assert say(ratio(1.18, 1.14, 1.23), 0.04) == "slower by 18 % (14 to 23)"
    assert say(ratio(0.8, 0.75, 0.85), 0.04) == "faster by 20 % (15 to 25)"
    assert say(ratio(1.03, 1.01, 1.05), 0.04) == "no difference seen (floor 4 %)"
    assert say(ratio(1.10, 0.99, 1.21), 0.04) == "no difference seen (floor 4 %)"


def test_the_floor_is_the_farthest_end_of_a_cell_against_itself() -> None:
    once, twice = (
        statistics.Ratio(1.0, low, high, (1.0,) * 5) for low, high in ((0.99, 1.02), (0.95, 1.01))
    )
    assert noise_floor([once]) == pytest.approx(0.02)
    assert noise_floor([once, twice]) == pytest.approx(1 / 0.95 - 1)
