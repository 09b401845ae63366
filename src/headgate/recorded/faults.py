"""The faults that a job survived, and what each cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from headgate.recorded.rows import EventRow

KIND = "fault"
"""The kind of event that tells of a fault that the job survives."""

_BELONGS_SECONDS = 600.0
"""How long after a fault a task may still tell its cost."""


@dataclass(frozen=True, slots=True)
class Survived:
    """A fault of a task, a node or the network that the job survived.

    Args:
        t: When, seconds of the run.
        job: The job; None if the run as a whole tells of the fault, such as a lost node.
        task: The task that was lost or that tells of it; None where no single one.
        text: What happened, and what tasks said of it, a line each.
        seconds: What it cost; of several tasks that waited, the longest wait. None where nothing
            tells.
        steps: Steps that were done again or are lost. None where nothing tells.
    """

    t: float
    job: str | None
    task: str | None
    text: str
    seconds: float | None = None
    steps: int | None = None


def survived(events: Iterable[EventRow]) -> tuple[Survived, ...]:
    """The faults among events, in the order of time.

    An event without a cost tells what happened. The events after it with a cost belong to the same
    fault: those of a task are what the task said. An event without a task is the cost to the job:
    the time until it was as far again.

    Args:
        events: Those of a job, in the order of time.
    """
    result: list[Survived] = []
    open_since: float | None = None  # of the last fault that tells no cost itself
    for event in events:
        if event.kind != KIND:
            continue
        seconds, steps, text = event.seconds, event.steps, event.text or ""
        has_cost = seconds is not None or steps is not None
        near = open_since is not None and (
            event.task is None or event.t - open_since <= _BELONGS_SECONDS
        )
        if has_cost and near:
            last = result[-1]
            lines = last.text if text in last.text.split("\n") else f"{last.text}\n{text}"
            result[-1] = replace(
                last,
                text=lines,
                seconds=_most(last.seconds, seconds),
                steps=_most(last.steps, steps),
            )
            continue
        result.append(Survived(event.t, event.job, event.task, text, seconds, steps))
        open_since = None if has_cost else event.t
    return tuple(result)


def _most(first: Any, second: Any) -> Any:
    return max((value for value in (first, second) if value is not None), default=None)
