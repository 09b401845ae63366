"""What the jobs of sweeps came to: a table to sort, and a line for each across its parameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headgate.model.sweeps import Value
from headgate.recorded.results import JobResult, metric_names, parameter_names, ranked
from headgate.reports.templates import Markup, render

_MOST_ROWS = 500
_MOST_LINES = 300
_MOST_METRICS = 8
_MOST_AXES = 10
_LOG_FROM = 20.0
"""An axis of positive numbers is logarithmic if the largest is this many times the smallest."""
_WIDTH, _HEIGHT = 1000, 260


def section(results: Sequence[JobResult]) -> Markup | None:
    """The results of the jobs of sweeps, the best first; None: there are no sweeps."""
    swept = ranked([result for result in results if result.sweep])
    if not swept:
        return None
    parameters, metrics = parameter_names(swept), metric_names(swept)[:_MOST_METRICS]
    columns = [("Job", "text", "")]
    columns += [(name, "", "parameter") for name in parameters]
    for name in metrics:
        columns += [(f"{name}, last", "", ""), (f"{name}, best", "", "")]
    predicts = any(result.predicted is not None for result in swept)
    columns += [("Predicted", "", "what it is to end with; nine of ten")] if predicts else []
    columns += [("State", "text", ""), ("Ran", "", "")]
    axes = [name for name in parameters if _varies(swept, name)][: _MOST_AXES - 1]
    return render(
        "results.html",
        results=swept[:_MOST_ROWS],
        left=max(len(swept) - _MOST_ROWS, 0),
        columns=columns,
        parameters=parameters,
        metrics=metrics,
        predicts=predicts,
        drawing=_drawing(swept, (*axes, *metrics[:1])) if axes and metrics else None,
    )


def _varies(results: Sequence[JobResult], name: str) -> bool:
    return len({result.parameters.get(name) for result in results} - {None}) > 1


def _drawing(results: Sequence[JobResult], names: Sequence[str]) -> dict[str, object] | None:
    """Parallel coordinates: an axis for each name, and a line for each job that has all of them."""
    whole = [result for result in results if None not in map(result.value, names)][:_MOST_LINES]
    if len(whole) < 2:
        return None
    steps = _WIDTH / (len(names) - 1)
    axes = [_Axis(name, round(at * steps, 1), whole) for at, name in enumerate(names)]
    lines = [
        {
            "name": result.name,
            "points": " ".join(f"{axis.x},{axis.y(result)}" for axis in axes),
            "said": ", ".join(f"{axis.name} {_said(result.value(axis.name))}" for axis in axes),
            "opacity": round(0.9 - 0.7 * rank / (len(whole) - 1), 3),
        }
        for rank, result in enumerate(whole)
    ]
    # the best line lies above the others
    return {"axes": axes, "lines": lines[::-1], "width": _WIDTH, "height": _HEIGHT}


class _Axis:
    """An axis of parallel coordinates.

    Args:
        name: Its parameter or metric.
        x: Its place.
        results: Jobs that all have a value of it.
    """

    def __init__(self, name: str, x: float, results: Sequence[JobResult]) -> None:
        self.name, self.x = name, x
        values = [value for result in results if (value := result.value(name)) is not None]
        numbers = [float(value) for value in values if not isinstance(value, str)]
        self._places: dict[Value, float] = {}
        self._is_log = False
        if len(numbers) < len(values):
            self._places = {text: at for at, text in enumerate(sorted(set(map(str, values))))}
            numbers = list(self._places.values())
            self.low, self.high = (next(iter(self._places)), list(self._places)[-1])
        else:
            self._is_log = min(numbers) > 0.0 and max(numbers) > _LOG_FROM * min(numbers)
            self.low, self.high = _said(min(numbers)), _said(max(numbers))
        self._least, self._span = self._scaled(min(numbers)), 0.0
        self._span = self._scaled(max(numbers)) - self._least

    def y(self, result: JobResult) -> float:
        """Where its line meets the axis; the smallest value is at the bottom."""
        value = result.value(self.name)
        number = self._places.get(str(value)) if self._places else value
        share = (self._scaled(float(number or 0.0)) - self._least) / (self._span or 1.0)
        return round(_HEIGHT * (1.0 - share), 1)

    def _scaled(self, number: float) -> float:
        return math.log(number) if self._is_log else number


def _said(value: Value | None) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
