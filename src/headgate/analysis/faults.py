"""The faults that a job survived, and what each cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from headgate.analysis.progress import Progress

KIND = "fault"
"""The kind of event that tells of a fault which the job survives."""

_BELONGS_SECONDS = 600.0
"""How long after a fault a task may tell what it cost."""


@dataclass(frozen=True, slots=True)
class Survived:
    """A fault of a task, a node or the network that the job survived.

    Args:
        t: When, seconds of the run.
        task: The task that was lost or that tells of it; None where no single one.
        text: What happened, and what tasks said of it, a line each.
        seconds: What it cost; of several tasks that waited, the longest wait. None where nothing tells.
        steps: Steps that were done again or are lost. None where nothing tells.
    """

    t: float
    job: str
    task: str | None
    text: str
    seconds: float | None = None
    steps: int | None = None


def survived(
    events: Iterable[Mapping[str, Any]], progress: Progress, checkpoints: Sequence[Mapping[str, Any]]
) -> tuple[Survived, ...]:
    """The faults among a job's events, in the order of time.

    An event without a cost tells what happened; those after it that have one are what tasks said of the same fault. A
    fault that threw the job back costs the time until it is as far again as it was.

    Args:
        events: The job's events, in the order of time.
        progress: What the job reported.
        checkpoints: Those that it saved, in the order of time.
    """
    result: list[Survived] = []
    open_since: float | None = None  # of the last fault that tells no cost itself
    for event in events:
        if event["kind"] != KIND:
            continue
        seconds, steps, text = event.get("seconds"), event.get("steps"), str(event["text"] or "")
        told = seconds is not None or steps is not None
        if told and open_since is not None and event["t"] - open_since <= _BELONGS_SECONDS:
            last = result[-1]
            lines = last.text if text in last.text.split("\n") else f"{last.text}\n{text}"
            result[-1] = replace(last, text=lines, seconds=_most(last.seconds, seconds), steps=_most(last.steps, steps))
            continue
        result.append(Survived(float(event["t"]), event["job"], event["task"], text, seconds, steps))
        open_since = None if told else float(event["t"])
    ends = [fault.t for fault in result[1:]] + [np.inf]
    return tuple(
        fault if fault.seconds is not None else _thrown_back(fault, until, progress, checkpoints)
        for fault, until in zip(result, ends)
    )


def _most(first: Any, second: Any) -> Any:
    return max((value for value in (first, second) if value is not None), default=None)


def _thrown_back(
    fault: Survived, until: float, progress: Progress, checkpoints: Sequence[Mapping[str, Any]]
) -> Survived:
    """What a fault cost by the steps that the job reported, where these went back after it."""
    known = np.isfinite(progress.step)
    t, step = progress.t[known], progress.step[known]
    before, after = step[t <= fault.t], (t > fault.t)
    if not len(before) or not after.any():
        return fault
    reached = float(before.max())
    later, steps = t[after], step[after]
    if not (steps < reached).any() or steps[0] >= reached:
        return fault
    again = later[steps >= reached]
    end = min(float(again[0]), until) if len(again) else until
    if not np.isfinite(end):
        return fault
    saved = [point["step"] for point in checkpoints if point["t"] <= fault.t and point["step"] is not None]
    from_step = min(max(saved, default=0), int(reached))
    return replace(
        fault,
        seconds=end - fault.t,
        steps=_most(fault.steps, int(reached) - from_step),
    )
