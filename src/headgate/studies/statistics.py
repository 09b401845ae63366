"""Statistics of repeated measurements: shuffled blocks, paired ratios with intervals, a noise
floor, and findings.

A study repeats its cells in blocks. A block has every cell once, in its own order, so that changes
over time affect all cells alike. Cells are compared within a block, as ratios on a logarithmic
scale. Blocks are resampled with replacement, because steps of one run are correlated and say too
little about the next run.

Percentile intervals of few values are too narrow. So the percentiles are those of Hesterberg's
expanded interval ("What Teachers Should Know About the Bootstrap", 2015, section 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np
from scipy import special

from headgate.recorded.usage import Array

T = TypeVar("T")

LEAST_REPETITIONS = 5
"""With fewer repetitions there is no interval: all values are shown, with the least and the
greatest.
"""
CONFIDENCE = 0.95
_DRAWS = 10_000

Change = Literal["slower", "faster", "none", "unsure"]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of times, above 1 if the second is longer.

    Args:
        value: Geometric mean over the repetitions.
        low: Low end of a 95 % interval; with fewer than 5 repetitions the least value.
        high: High end of it; with fewer than 5 repetitions the greatest value.
        values: The ratio in each repetition.
    """

    value: float
    low: float
    high: float
    values: tuple[float, ...]

    @property
    def has_interval(self) -> bool:
        """Whether `low` and `high` are an interval, and not only the extremes."""
        return len(self.values) >= LEAST_REPETITIONS


def shuffled_blocks(cells: Sequence[T], repetitions: int, seed: int) -> list[list[T]]:
    """As many blocks as repetitions, each with every cell once in an order from the seed."""
    draw = np.random.default_rng(seed)
    return [[cells[index] for index in draw.permutation(len(cells))] for _ in range(repetitions)]


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Ratio | None:
    """The second over the first within each block that has both; None: no block has.

    Args:
        first: A time, or any positive figure, by block.
        second: Another one.
    """
    both = sorted(first.keys() & second.keys())
    return over_blocks(lambda block: second[block] / first[block], both)


def over_blocks(figure: Callable[[int], float], blocks: Sequence[int]) -> Ratio | None:
    """The geometric mean of a positive figure over blocks; None: no block."""
    values = np.array([figure(block) for block in blocks])
    if not len(values):
        return None
    low, high = (
        _interval(np.log(values))
        if len(values) >= LEAST_REPETITIONS
        else np.log([values.min(), values.max()])
    )
    return _ratio(float(np.mean(np.log(values))), float(low), float(high), values)


def unpaired(first: Sequence[float], second: Sequence[float]) -> Ratio | None:
    """The second over the first without pairing, as between two studies; None: one of them is
    empty.

    Its `values` are those of the shorter, each over the mean of the other; only their number
    matters.
    """
    if not first or not second:
        return None
    first_logs, second_logs = np.log(first), np.log(second)
    middle = float(second_logs.mean() - first_logs.mean())
    few = min(len(first_logs), len(second_logs))
    values = np.exp(second_logs - first_logs.mean())[:few]
    if few < LEAST_REPETITIONS:
        return _ratio(
            middle,
            float(second_logs.min() - first_logs.max()),
            float(second_logs.max() - first_logs.min()),
            values,
        )
    draw = np.random.default_rng(0)
    means = _means(second_logs, draw) - _means(first_logs, draw)
    low, high = np.percentile(means, _percentiles(few))
    return _ratio(middle, float(low), float(high), values)


def noise_floor(repeats: Sequence[Ratio]) -> float:
    """How much a cell may differ from itself, as a fraction: 0.04 means 4 %.

    Args:
        repeats: Cells over themselves, measured twice in each block. The floor is the farthest end
            of any interval.
    """
    ends = [abs(math.log(end)) for repeat in repeats for end in (repeat.low, repeat.high)]
    return math.expm1(max(ends, default=0.0))


def change(ratio: Ratio, floor: float) -> Change:
    """The conclusion from a ratio. A finding excludes 1 and exceeds the floor; too few repetitions
    give none.
    """
    beyond = abs(math.log(ratio.value)) > math.log1p(floor)
    if not ratio.has_interval:
        return "unsure" if beyond and not ratio.low <= 1.0 <= ratio.high else "none"
    if not beyond or ratio.low <= 1.0 <= ratio.high:
        return "none"
    return "slower" if ratio.value > 1.0 else "faster"


def say(ratio: Ratio, floor: float) -> str:
    """A ratio in words: `slower by 18 % (14 to 23)`, `no difference seen (floor 4 %)`."""
    text = change(ratio, floor)
    if text == "none":
        return f"no difference seen (floor {_percent(floor)} %)"
    ends = sorted(abs(end - 1.0) for end in (ratio.low, ratio.high))
    size = f"{_percent(abs(ratio.value - 1.0))} %"
    between = f"{_percent(ends[0])} to {_percent(ends[1])}"
    if text == "unsure":
        way = "slower" if ratio.value > 1.0 else "faster"
        values = f"values {between}" if len(ratio.values) > 1 else "one value"
        return f"{way} by {size} ({values}, too few for a finding)"
    return f"{text} by {size} ({between})"


def say_ratio(ratio: Ratio) -> str:
    """`1.02 (0.97 to 1.08)`; `1.02` for a single repetition."""
    if len(ratio.values) == 1:
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def _percent(part: float) -> str:
    return f"{part * 100:.0f}" if part >= 0.0995 else f"{part * 100:.2g}"


def _interval(logs: Array) -> tuple[float, float]:
    low, high = np.percentile(_means(logs, np.random.default_rng(0)), _percentiles(len(logs)))
    return float(low), float(high)


def _means(logs: Array, draw: np.random.Generator) -> Array:
    """Means of samples drawn with replacement, many times."""
    return np.asarray(logs[draw.integers(0, len(logs), (_DRAWS, len(logs)))].mean(axis=1))


def _percentiles(count: int) -> tuple[float, float]:
    """The low and the high percentile for the mean of `count` values."""
    quantile = special.stdtrit(count - 1, (1.0 - CONFIDENCE) / 2.0) * math.sqrt(count / (count - 1))
    low = 100.0 * float(special.ndtr(quantile))
    return low, 100.0 - low


def _ratio(middle: float, low: float, high: float, values: Array) -> Ratio:
    return Ratio(
        math.exp(middle), math.exp(low), math.exp(high), tuple(float(value) for value in values)
    )
