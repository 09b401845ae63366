"""A sampled step as a drawing: a bar for each worker and server, and below it a thin one for what went to and from each
peer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from headgate.analysis.sampled import Bar, SampledStep, TaskStep, Transfer
from headgate.analysis.steps import ORDER
from headgate.reports.markup import Markup, element
from headgate.reports.words import counted, say, say_moment, say_step_time

_TASKS = 24
"""Tasks that are drawn; what all of them did is in the table beside the drawing."""
_PEERS = 8
"""Peers that a task is drawn with: those with the most bytes."""
_BAR, _LANE, _SPACE, _AXIS = 20, 5, 8, 20  # pixels
_WIDE = 0.07
"""Part of the width from which on a bar has its name in it."""
_TITLES = {"typical": "A typical step", "slowest": "The slowest step"}


def span_colour(span: str) -> str:
    """The custom property of the style sheet that a span is drawn in."""
    return f"span-{span}" if span in ORDER else "span-other"


def drawing(step: SampledStep) -> Markup:
    """The step, with its title and, on hovering, the figures of each bar."""
    shown = step.tasks[:_TASKS]
    begin = min([0.0, *(bar.begin for task in shown for bar in task.bars if bar.name != "idle")])
    ends = [bar.end for task in shown for bar in task.bars if bar.name not in ("idle", "other")]
    end = max([step.seconds, *ends, *(each.end for task in shown for each in task.transfers), 1e-9])
    names, shapes, y = [], [], 0
    for task in shown:
        peers = _peers(task.transfers)
        height = _BAR + 2 * _LANE * len(peers) + _SPACE
        name = task.task.rsplit("/", 1)[-1]
        names.append(element("span", name, style=f"height:{height}px"))
        inside = [_bar(task, bar, y, begin, end) for bar in task.bars]
        lanes = [lane for number, peer in enumerate(peers) for lane in _lanes(task, peer, y, number, begin, end)]
        shapes.append(element("g", inside, lanes, data_task=name))
        y += height
    left = len(step.tasks) - len(shown)
    said = f"step {step.step:,}, {say_step_time(step.seconds)}, at {say_moment(max(step.start, 0.0))}"
    return element(
        "figure",
        element("figcaption", element("h3", _TITLES[step.kind]), element("small", said)),
        element(
            "div",
            element("div", names, class_="names"),
            element(
                "svg",
                _grid(y, begin, end),
                shapes,
                width="100%",
                height=y + _AXIS,
                role="img",
                aria_label=f"{_TITLES[step.kind]}: {said}. The table below has its figures.",
            ),
            class_="lanes",
        ),
        element("p", f"{counted(left, 'more task')} in the store.", class_="note") if left else None,
        class_="sampled",
        data_step=step.kind,
    )


def keys(steps: Sequence[SampledStep]) -> Markup:
    """What the colours stand for."""
    seen = {bar.name for step in steps for task in step.tasks for bar in task.bars}
    named = [name for name in ORDER if name in seen] + sorted(seen - set(ORDER))
    each = [
        element("span", element("span", class_="swatch", style=f"--c:var(--{span_colour(name)})"), name)
        for name in named
    ]
    thin = any(task.transfers for step in steps for task in step.tasks)
    said = "Thin bars: from the first to the last byte to (push) and from (pull) each peer." if thin else None
    return element("p", [element("span", key, class_="span-key") for key in each], said, class_="keys")


def _peers(transfers: Sequence[Transfer]) -> list[str]:
    sizes: dict[str, float] = {}
    for each in transfers:
        sizes[each.peer] = sizes.get(each.peer, 0.0) + each.bytes
    most = sorted(sizes, key=lambda peer: -sizes[peer])[:_PEERS]
    return [peer for peer in sizes if peer in most]


def _percent(time: float, begin: float, end: float) -> float:
    return min(max((time - begin) / (end - begin), 0.0), 1.0) * 100


def _place(since: float, until: float, begin: float, end: float) -> tuple[float, float]:
    """Left edge and width in percent; never too thin to be seen."""
    left = _percent(since, begin, end)
    return left, max(_percent(until, begin, end) - left, 0.15)


def _bar(task: TaskStep, bar: Bar, y: int, begin: float, end: float) -> Markup | None:
    if bar.end <= begin or bar.begin >= end:
        return None
    left, width = _place(bar.begin, bar.end, begin, end)
    name = task.task.rsplit("/", 1)[-1]
    part = f", {say(bar.seconds / task.seconds, '%')} of its time" if task.seconds > 0 else ""
    moved = [f"{say(count, 'B')} {way}" for count, way in ((bar.bytes_in, "in"), (bar.bytes_out, "out")) if count]
    told = ", ".join([f"{name} {bar.name}: {say_step_time(bar.seconds)}{part}", *moved])
    # A text of its own cannot be cut off, but whatever lies in an inner svg is.
    return element(
        "svg",
        element("title", f"{told}; {_span(bar.begin, bar.end)}"),
        element("rect", width="100%", height="100%", style=f"fill:var(--{span_colour(bar.name)})"),
        element("text", bar.name, x=5, y=14) if width >= _WIDE * 100 and bar.name not in ("other", "idle") else None,
        x=f"{left:.3f}%",
        y=y,
        width=f"{width:.3f}%",
        height=_BAR,
        data_span=bar.name,
        data_begin=repr(bar.begin),
        data_value=repr(bar.seconds),
    )


def _lanes(task: TaskStep, peer: str, y: int, number: int, begin: float, end: float) -> list[Markup]:
    name = task.task.rsplit("/", 1)[-1]
    result = []
    for each in task.transfers:
        if each.peer != peer:
            continue
        left, width = _place(each.begin, each.end, begin, end)
        at = y + _BAR + 1 + (2 * number + (each.way == "pull")) * _LANE
        seconds = each.end - each.begin
        rate = f", {say(each.bytes / seconds, 'B/s')}" if seconds > 0 else ""
        towards = f"{name} to {peer}" if each.way == "push" else f"{peer} to {name}"
        result.append(
            element(
                "rect",
                element("title", f"{towards}: {say(each.bytes, 'B')}{rate}; {_span(each.begin, each.end)}"),
                x=f"{left:.3f}%",
                y=at,
                width=f"{width:.3f}%",
                height=_LANE - 1,
                style=f"fill:var(--span-{each.way})",
                data_peer=peer,
                data_way=each.way,
                data_value=repr(each.bytes),
            )
        )
    return result


def _span(since: float, until: float) -> str:
    return f"from {_time(since)} to {_time(until)}"


def _time(seconds: float) -> str:
    return f"−{say_step_time(-seconds)}" if seconds < 0 else say_step_time(seconds)


def _grid(height: int, begin: float, end: float) -> list[Markup]:
    """About five lines at round times."""
    rough = (end - begin) / 5
    decade = 10.0 ** math.floor(math.log10(rough))
    gap = next(size * decade for size in (1, 2, 5, 10) if size * decade >= rough * 0.99)
    result = []
    for number in range(math.ceil(begin / gap), math.floor(end / gap) + 1):
        at = _percent(number * gap, begin, end)
        x = f"{at:.3f}%"
        result.append(element("line", x1=x, x2=x, y1=0, y2=height, class_="tick"))
        if at <= 94:  # a label at the very end would hang over the edge
            anchor = "start" if at < 3 else "middle"
            result.append(element("text", _time(number * gap), x=x, y=height + 14, text_anchor=anchor, class_="tick"))
    return result
