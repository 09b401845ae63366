"""Embed plots in the page: frame, legend, and the data for the page's script."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from headgate.recorded.usage import Array
from headgate.reports.figures import Plot
from headgate.reports.templates import Markup, render
from headgate.reports.words import say, say_loss


def _rounded(values: Array) -> list[float | None]:
    """Six significant digits: plots show no more, and a day of samples stays small."""
    return [None if not math.isfinite(value) else _shortest(value) for value in values.tolist()]


def _shortest(value: float) -> float | int:
    short = float(f"{value:.6g}")
    return int(short) if short == int(short) else short


def payload(plots: Iterable[Plot]) -> list[dict[str, Any]]:
    """The data for the page's script; `x` is the middle of each bucket."""
    result = []
    for plot in plots:
        lines = []
        for line in plot.lines:
            entry: dict[str, Any] = {
                "label": line.label,
                "colour": line.colour,
                "dash": line.dash,
                "mean": _rounded(line.data.mean),
            }
            if line.stepped:
                entry["stepped"] = True
            if line.notes:
                entry["notes"] = _thinned(line.notes, plot.edges)
            if line.band and not np.array_equal(line.data.low, line.data.high, equal_nan=True):
                entry["low"], entry["high"] = _rounded(line.data.low), _rounded(line.data.high)
            lines.append(entry)
        middles = (plot.edges[:-1] + plot.edges[1:]) / 2
        result.append(
            {
                "key": plot.key,
                "unit": plot.unit,
                "x": plot.x,
                "from": 0,
                "to": float(plot.edges[-1]),
                "first": float(middles[0]),
                "width": float(plot.edges[1] - plot.edges[0]),
                "count": len(middles),
                "top": plot.top,
                "lines": lines,
            }
        )
    return result


def _thinned(notes: Iterable[tuple[float, str]], edges: Array) -> list[tuple[int, str]]:
    """The last note of each bucket, with the bucket's number."""
    last = len(edges) - 2
    return list(
        {
            min(int(np.searchsorted(edges, t, side="right")) - 1, last): text for t, text in notes
        }.items()
    )


_OPTIONS = {
    "log": ("log scale", "A logarithmic scale, without values that are not positive"),
    "relative": ("relative", "From 1, the first loss, to 0, the lowest"),
}


def _told_in(value: float | None, unit: str) -> str:
    if unit in ("loss", ""):
        return say_loss(value)
    # A plot of cores has the unit in its title.
    return say(value, "" if unit == "cores" else unit)


def _unit_of(plot: Plot) -> str:
    """The unit in the title of a plot."""
    return (
        "CPU seconds"
        if plot.x == "cpu"
        else {"B": "", "B/s": "", "%": "", "loss": ""}.get(plot.unit, plot.unit)
    )


def frames(plots: Sequence[Plot], kind: str = "plots") -> Markup | None:
    """Title, legend and drawing area of each plot; None: no plots.

    Args:
        plots: In their order.
        kind: Their layout, a class of the style sheet.
    """
    given = {"unit_of": _unit_of, "told_in": _told_in, "options": _OPTIONS}
    return render("plots.html", plots=plots, kind=kind, **given) if plots else None
