"""A series of numbers in one line of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"
_LARGEST = 1e300


def drawable(value: float) -> float:
    """A finite number, or the nearest one whose differences and sums do not overflow."""
    return min(max(value, -_LARGEST), _LARGEST)


def sparkline(values: Sequence[float], width: int | None = None) -> str:
    """A series as bars, the lowest value with the lowest bar; empty without values.

    Args:
        values: Finite numbers.
        width: Most bars, each the mean of equally many values (or one more); None: a bar for each
            value.
    """
    if not values:
        return ""
    count = min(width or len(values), len(values))
    edges = [i * len(values) // count for i in range(count + 1)]
    bounded = [drawable(value) for value in values]
    means = [sum(bounded[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(means), max(means)
    scale = (len(_BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BARS[round((value - low) * scale)] for value in means)
