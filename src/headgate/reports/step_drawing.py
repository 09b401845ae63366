"""Draw a sampled step: a bar for each worker and server, with a thin bar below for each peer's
traffic.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from headgate.recorded.sampled import Bar, SampledStep, StepTransfer, TaskStep
from headgate.recorded.steps import ORDER
from headgate.reports.templates import Markup, render
from headgate.reports.words import say, say_moment, say_step_time

_TASKS = 24
"""Most tasks drawn; the table beside the drawing has all."""
_PEERS = 8
"""Most peers drawn for a task: those with the most bytes."""
_BAR, _LANE, _SPACE, _AXIS = 20, 5, 8, 20  # pixels
_WIDE = 0.07
"""Fraction of the width from which on a bar contains its name."""
_TITLES = {"typical": "A typical step", "slowest": "The slowest step"}


def span_colour(span: str) -> str:
    """The custom property of the style sheet for a span's colour."""
    return f"span-{span}" if span in ORDER else "span-other"


def drawing(step: SampledStep) -> Markup:
    """The step, with its title and, on hovering, the figures of each bar."""
    shown = step.tasks[:_TASKS]
    begin = min([0.0, *(bar.begin for task in shown for bar in task.bars if bar.name != "idle")])
    ends = [bar.end for task in shown for bar in task.bars if bar.name not in ("idle", "other")]
    end = max(
        [
            step.seconds,
            *ends,
            *(transfer.end for task in shown for transfer in task.transfers),
            1e-9,
        ]
    )
    tasks, y = [], 0
    for task in shown:
        peers = _peers(task.transfers)
        height = _BAR + 2 * _LANE * len(peers) + _SPACE
        bars = [
            _bar(task, bar, begin, end) for bar in task.bars if bar.end > begin and bar.begin < end
        ]
        lanes = [
            lane
            for number, peer in enumerate(peers)
            for lane in _lanes(task, peer, y, number, begin, end)
        ]
        tasks.append({"name": _name(task), "y": y, "height": height, "bars": bars, "lanes": lanes})
        y += height
    return render(
        "step.html",
        step=step,
        title=_TITLES[step.kind],
        said=(
            f"step {step.step:,}, {say_step_time(step.seconds)}, at "
            f"{say_moment(max(step.start, 0.0))}"
        ),
        tasks=tasks,
        left=len(step.tasks) - len(shown),
        height=y,
        axis_height=_AXIS,
        bar_height=_BAR,
        lane_height=_LANE - 1,
        grid=_grid(begin, end),
        span_colour=span_colour,
    )


def keys(steps: Sequence[SampledStep]) -> Markup:
    """The legend of the colours."""
    tasks = [task for step in steps for task in step.tasks]
    spans = ordered({bar.name for task in tasks for bar in task.bars})
    has_transfers = any(task.transfers for task in tasks)
    return render("keys.html", spans=spans, has_transfers=has_transfers, span_colour=span_colour)


def ordered(spans: Collection[str]) -> list[str]:
    """Spans in the order of a step; spans with names of their own come last."""
    return [name for name in ORDER if name in spans] + sorted(set(spans) - set(ORDER))


def _name(task: TaskStep) -> str:
    return task.task.name


def _peers(transfers: Sequence[StepTransfer]) -> list[str]:
    sizes: dict[str, float] = {}
    for transfer in transfers:
        sizes[transfer.peer] = sizes.get(transfer.peer, 0.0) + transfer.bytes
    most = sorted(sizes, key=lambda peer: -sizes[peer])[:_PEERS]
    return [peer for peer in sizes if peer in most]


def _percent(time: float, begin: float, end: float) -> float:
    return min(max((time - begin) / (end - begin), 0.0), 1.0) * 100


def _place(since: float, until: float, begin: float, end: float) -> tuple[float, float]:
    """Left edge and width in percent; never too thin to see."""
    left = _percent(since, begin, end)
    return left, max(_percent(until, begin, end) - left, 0.15)


def _bar(task: TaskStep, bar: Bar, begin: float, end: float) -> dict[str, object]:
    left, width = _place(bar.begin, bar.end, begin, end)
    part = f", {say(bar.seconds / task.seconds, '%')} of its time" if task.seconds > 0 else ""
    moved = [
        f"{say(count, 'B')} {way}"
        for count, way in ((bar.bytes_in, "in"), (bar.bytes_out, "out"))
        if count
    ]
    title = ", ".join([f"{_name(task)} {bar.name}: {say_step_time(bar.seconds)}{part}", *moved])
    return {
        "span": bar.name,
        "told": f"{title}; {_span(bar.begin, bar.end)}",
        "left": f"{left:.3f}",
        "width": f"{width:.3f}",
        "is_named": width >= _WIDE * 100 and bar.name not in ("other", "idle"),
        "begin": bar.begin,
        "value": bar.seconds,
    }


def _lanes(
    task: TaskStep, peer: str, y: int, number: int, begin: float, end: float
) -> list[dict[str, object]]:
    name = _name(task)
    result: list[dict[str, object]] = []
    for transfer in task.transfers:
        if transfer.peer != peer:
            continue
        left, width = _place(transfer.begin, transfer.end, begin, end)
        seconds = transfer.end - transfer.begin
        rate = f", {say(transfer.bytes / seconds, 'B/s')}" if seconds > 0 else ""
        towards = f"{name} to {peer}" if transfer.way == "push" else f"{peer} to {name}"
        result.append(
            {
                "peer": peer,
                "way": transfer.way,
                "told": f"{towards}: {say(transfer.bytes, 'B')}{rate}; "
                f"{_span(transfer.begin, transfer.end)}",
                "left": f"{left:.3f}",
                "width": f"{width:.3f}",
                "y": y + _BAR + 1 + (2 * number + (transfer.way == "pull")) * _LANE,
                "bytes": transfer.bytes,
            }
        )
    return result


def _span(since: float, until: float) -> str:
    return f"from {_time(since)} to {_time(until)}"


def _time(seconds: float) -> str:
    return f"−{say_step_time(-seconds)}" if seconds < 0 else say_step_time(seconds)


def _grid(begin: float, end: float) -> list[tuple[str, str]]:
    """Positions of about five lines at round times, and their labels."""
    rough = (end - begin) / 5
    decade = 10.0 ** math.floor(math.log10(rough))
    gap = next(size * decade for size in (1, 2, 5, 10) if size * decade >= rough * 0.99)
    numbers = range(math.ceil(begin / gap), math.floor(end / gap) + 1)
    places = [(_percent(number * gap, begin, end), number * gap) for number in numbers]
    # A label at the very end would overflow.
    return [(f"{at:.3f}", _time(time) if at <= 94 else "") for at, time in places]
