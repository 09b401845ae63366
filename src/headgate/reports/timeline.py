"""The timeline of a run: what its jobs were doing when."""

from __future__ import annotations

import bisect

from headgate.model.job_states import FAULTS, state_in_words
from headgate.model.units import say_seconds
from headgate.recorded.jobs import Phase, RecordedJob
from headgate.recorded.recording import Recording
from headgate.reports.templates import Markup, render
from headgate.reports.words import say_reason

_TICKS = (
    0.1,
    0.2,
    0.5,
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    14400,
    21600,
    43200,
    86400,
)
_CLOSEST = 1.4
"""Percent of the width within which two marks would overlap."""
_SAME_SECONDS = 0.5
"""An attempt that ends within this many seconds of a fault was ended by it."""


def timeline(run: Recording) -> Markup:
    """A bar for each job, over the whole run."""
    end = max(run.seconds, 1e-3)
    rows = [
        {"job": job, "checkpoints": _checkpoint_marks(job, end), "faults": _fault_marks(job, end)}
        for job in run.jobs
    ]
    return render(
        "timeline.html", rows=rows, ticks=_ticks(end), percent=lambda time: _percent(time, end)
    )


def _percent(time: float, end: float) -> float:
    return round(min(max(time / end, 0.0), 1.0) * 100, 3)


def _checkpoint_marks(job: RecordedJob, end: float) -> list[tuple[float, str]]:
    """Position and text of each checkpoint mark that the previous one does not cover."""
    marks: list[tuple[float, str]] = []
    for checkpoint in job.checkpoints:
        time = checkpoint.t or 0.0
        at = _percent(time, end)
        if not marks or at - marks[-1][0] >= _CLOSEST:
            marks.append((at, f"checkpoint at step {checkpoint.step}, {say_seconds(time)}"))
    return marks


def _fault_marks(job: RecordedJob, end: float) -> list[tuple[float, str]]:
    """Position and text of each fault mark."""
    faults = [event.t for event in job.events if event.kind in FAULTS]
    # An attempt followed by another one failed, even without an event.
    faults += [
        phase.end for phase, later in zip(job.phases, job.phases[1:]) if _failed(phase, later)
    ]
    faults = [
        time
        for time in faults
        if not any(abs(time - fault.t) < _SAME_SECONDS for fault in job.faults)
    ]
    if not faults and job.state in FAULTS:
        faults = [
            job.ended
            if job.ended is not None
            else max((phase.end for phase in job.phases), default=0.0)
        ]
    failed = "an attempt failed"
    if job.state in FAULTS:
        failed = state_in_words(job.state, say_reason(job.reason))
    marks = [(time, failed) for time in faults] + [(fault.t, fault.text) for fault in job.faults]
    return [(_percent(time, end), f"{label}, {say_seconds(time)}") for time, label in marks]


def _failed(phase: Phase, later: Phase) -> bool:
    return phase.state == "running" and later.state == "waiting"


def _ticks(end: float) -> list[tuple[float, str]]:
    """Position and text of about six ticks at round times."""
    step = _TICKS[min(bisect.bisect_left(_TICKS, end / 7), len(_TICKS) - 1)]
    times = [i * step for i in range(int(end / step) + 1)] if end / step < 100 else [0.0, end]
    # A tick at the very end would overflow; the run's length is shown at the top.
    return [(_percent(time, end), _clock(time, step)) for time in times if time <= end * 0.96]


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
