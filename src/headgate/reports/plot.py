"""Plot a series and its prediction in plain characters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from headgate.reports.sparkline import drawable

SEEN, LIKELY, POSSIBLE, NOW, GOAL = "o", "-", ".", "|", "="
_HEIGHT = 14


def plot(
    seen: Sequence[tuple[float, float]],
    ahead: Sequence[tuple[float, float, float, float]],
    width: int,
    goal: float | None = None,
) -> list[str]:
    """Draw a curve as lines of text.

    Past values are `o`, predicted ones `-`, and their band `.`. A goal is `=`, and `|` separates
    past and prediction.

    Args:
        seen: x and y, at least one point.
        ahead: x (increasing), median, and the ends of the band; may be empty.
        width: Characters of a line, at least 30.
        goal: A y to mark, if within the plot.
    """
    seen = [(x, drawable(y)) for x, y in seen]
    ahead = [(x, drawable(a), drawable(b), drawable(c)) for x, a, b, c in ahead]
    ys = [y for _, y in seen] + [y for _, *band in ahead for y in band]
    low, high = min(ys), max(ys)
    if goal is not None and low - 0.5 * (high - low) <= goal <= high + 0.5 * (high - low):
        low, high = min(low, goal), max(high, goal)
    else:
        goal = None
    if high == low:
        low, high = low - 0.5 * max(abs(low), 1.0), high + 0.5 * max(abs(high), 1.0)
    labels = [
        f"{high - (high - low) * row / (_HEIGHT - 1):.4g}" if row % 4 == 0 else ""
        for row in range(_HEIGHT)
    ]
    margin = max(map(len, labels))
    columns = max(width, 30) - margin - 2
    first, now = seen[0][0], seen[-1][0]
    last = max(ahead[-1][0] if ahead else now, now)
    span = last - first or 1.0

    def column(x: float) -> int:
        return min(max(round((x - first) / span * (columns - 1)), 0), columns - 1)

    def row(y: float) -> int:
        return min(max(round((high - y) / (high - low) * (_HEIGHT - 1)), 0), _HEIGHT - 1)

    grid = [[" "] * columns for _ in range(_HEIGHT)]
    if goal is not None:
        grid[row(goal)] = [GOAL] * columns
    if ahead:
        for line in grid:
            line[column(now)] = NOW
        for at in range(column(now) + 1, columns):
            middle, bottom, top = (
                _between(ahead, first + span * at / (columns - 1), quarter) for quarter in (1, 2, 3)
            )
            for within in range(row(top), row(bottom) + 1):
                grid[within][at] = POSSIBLE
            grid[row(middle)][at] = LIKELY
    for x, y in seen:
        grid[row(y)][column(x)] = SEEN
    drawn = [
        f"{label:>{margin}} |{''.join(line).rstrip()}"
        for label, line in zip(labels, grid, strict=True)
    ]
    return [
        *drawn,
        f"{'':>{margin}} +{'-' * columns}",
        f"{'':>{margin}}  {_axis(first, now, last, columns, column)}",
    ]


def _between(ahead: Sequence[tuple[float, float, float, float]], x: float, which: int) -> float:
    """The value at x, interpolated between its neighbours."""
    after = next((i for i, point in enumerate(ahead) if point[0] >= x), len(ahead) - 1)
    before, behind = ahead[max(after - 1, 0)], ahead[after]
    part = (x - before[0]) / (behind[0] - before[0]) if behind[0] > before[0] else 0.0
    return before[which] + min(max(part, 0.0), 1.0) * (behind[which] - before[which])


def _axis(
    first: float, now: float, last: float, columns: int, column: Callable[[float], int]
) -> str:
    """Labels of the first x, the last x, and the present x if there is room."""
    begin, middle, end = (f"{math.floor(x):,}" for x in (first, now, last))
    line = begin.ljust(columns - len(end)) + end
    at = column(now) - len(middle) // 2
    if at > len(begin) + 1 and at + len(middle) < columns - len(end) - 1:
        line = line[:at] + middle + line[at + len(middle) :]
    return line
