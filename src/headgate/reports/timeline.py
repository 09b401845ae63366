"""When each job waited, ran, saved a checkpoint and met a fault."""

from __future__ import annotations

import bisect

from headgate.analysis.jobs import FAULTS, JobRecord, Phase
from headgate.reports.figures import job_colour
from headgate.reports.markup import Markup, element
from headgate.reports.recording import Recording
from headgate.units import say_seconds

_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_CLOSEST = 1.4
"""Percent of the width below which two marks would cover each other."""
_SAME_SECONDS = 0.5
"""An attempt that ends so close to a fault that was told ended by it."""


def timeline(run: Recording) -> Markup:
    """A bar a job, over the whole run."""
    end = max(run.seconds, 1e-3)
    rows = [_row(job, index, end) for index, job in enumerate(run.jobs)]
    return element(
        "div",
        element("div", rows, _axis(end), class_="gantt"),
        element(
            "p",
            element("span", class_="key waiting"),
            "waiting",
            element("span", class_="key running"),
            "running",
            element("span", class_="key checkpoint"),
            "checkpoint",
            element("span", class_="key fault"),
            "fault",
            class_="keys",
        ),
    )


def _percent(time: float, end: float) -> float:
    return round(min(max(time / end, 0.0), 1.0) * 100, 3)


def _row(job: JobRecord, index: int, end: float) -> Markup:
    colour, _ = job_colour(index)
    marks: list[Markup] = []
    last = -1.0
    for checkpoint in job.checkpoints:
        at = _percent(checkpoint["t"] or 0.0, end)
        if at - last >= _CLOSEST:
            last = at
            what = f"checkpoint at step {checkpoint['step']}, {say_seconds(checkpoint['t'] or 0.0)}"
            marks.append(element("i", class_="checkpoint", style=f"left:{at}%", title=what))
    faults = [event["t"] for event in job.events if event["kind"] in FAULTS]
    # An attempt that was followed by another one failed, even where no event says so.
    faults += [phase.end for phase, later in zip(job.phases, job.phases[1:]) if _failed(phase, later)]
    faults = [time for time in faults if not any(abs(time - fault.t) < _SAME_SECONDS for fault in job.faults)]
    if not faults and job.state in FAULTS:
        faults = [job.ended if job.ended is not None else max((phase.end for phase in job.phases), default=0.0)]
    failed = f"{job.state}: {job.reason}" if job.state in FAULTS else "an attempt failed"
    told = [(time, failed) for time in faults] + [(fault.t, fault.text) for fault in job.faults]
    for time, what in told:
        at = _percent(time, end)
        marks.append(element("i", "×", class_="fault", style=f"left:{at}%", title=f"{what}, {say_seconds(time)}"))
    return element(
        "div",
        element("span", element("span", class_="swatch", style=f"--c:var(--{colour})"), job.name, class_="label"),
        element("span", [_bar(phase, end) for phase in job.phases], marks, class_="track"),
        element("span", job.state, class_=f"state {job.state}"),
        class_="row",
        style=f"--c:var(--{colour})",
    )


def _failed(phase: Phase, later: Phase) -> bool:
    return phase.state == "running" and later.state == "waiting"


def _bar(phase: Phase, end: float) -> Markup:
    left, right = _percent(phase.start, end), _percent(phase.end, end)
    attempt = f", attempt {phase.attempt}" if phase.attempt > 1 else ""
    reason = f" ({phase.reason})" if phase.reason else ""
    span = f"from {say_seconds(phase.start)} to {say_seconds(phase.end)}"
    return element(
        "i",
        f"attempt {phase.attempt}" if phase.attempt > 1 and right - left > 12 else None,
        class_=f"bar {phase.state}",
        style=f"left:{left}%;width:{max(right - left, 0.2):.3f}%",
        title=f"{phase.state}{attempt}: {span}, {say_seconds(phase.end - phase.start)}{reason}",
        data_start=repr(phase.start),
        data_stop=repr(phase.end),
    )


def _axis(end: float) -> Markup:
    """About six ticks at round times."""
    step = _TICKS[min(bisect.bisect_left(_TICKS, end / 7), len(_TICKS) - 1)]
    times = [i * step for i in range(int(end / step) + 1)] if end / step < 100 else [0.0, end]
    ticks = [element("span", _clock(time, step), style=f"left:{_percent(time, end)}%") for time in times]
    # A tick at the very end would hang over the edge; the run's length is told at the top.
    shown = [tick for tick, time in zip(ticks, times) if time <= end * 0.96]
    return element(
        "div",
        element("span"),
        element("span", shown, class_="ticks"),
        element("span"),
        class_="row axis",
        aria_hidden="true",
    )


def _clock(time: float, step: float) -> str:
    if time == 0:
        return "0"
    if step < 60 and time < 60:
        return f"{time:g} s"
    minutes, seconds = divmod(round(time), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}:{minutes:02d} h"
    return f"{minutes}:{seconds:02d} min"
