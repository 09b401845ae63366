"""Faults that a job survived, and their cost."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from headgate.recorded.rows import EventRow

KIND = "fault"
"""Kind of an event about a fault that the job survives."""

_BELONGS_SECONDS = 600.0
"""How long after a fault a task may still report its cost."""


@dataclass(frozen=True, slots=True)
class Survived:
    """A fault of a task, a node or the network that the job survived.

    Args:
        t: Its time, in seconds of the run.
        job: The job; None: the run as a whole reported it, for example a lost node.
        task: The lost or reporting task; None: no single task.
        texts: What happened, and what tasks said, each once.
        seconds: Its cost: the longest wait among several tasks; None: unknown.
        steps: Steps repeated or lost; None: unknown.
    """

    t: float
    job: str | None
    task: str | None
    texts: tuple[str, ...]
    seconds: float | None = None
    steps: int | None = None

    @property
    def text(self) -> str:
        """What happened, and what tasks said, on one line each."""
        return "\n".join(self.texts)


def survived(events: Iterable[EventRow]) -> tuple[Survived, ...]:
    """The faults among events, in the order of time.

    An event without a cost says what happened. Later events with a cost belong to the same fault.
    With a task, it is the task's own report. Without a task, it is the job's cost: the time until
    it had caught up.

    Args:
        events: Events of a job, in the order of time.
    """
    result: list[Survived] = []
    open_since: float | None = None  # time of the last fault without a cost of its own
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
            result[-1] = replace(
                last,
                texts=tuple(dict.fromkeys((*last.texts, text))),
                seconds=_most(last.seconds, seconds),
                steps=_most(last.steps, steps),
            )
            continue
        result.append(Survived(event.t, event.job, event.task, (text,), seconds, steps))
        open_since = None if has_cost else event.t
    return tuple(result)


def _most(first: Any, second: Any) -> Any:
    return max((value for value in (first, second) if value is not None), default=None)
