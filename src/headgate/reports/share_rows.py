"""What a job was granted, and why, as a run's store has it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headgate.analysis.jobs import Phase, RecordedDecision, running
from headgate.analysis.usage import EMPTY, Signal, settings, total
from headgate.identifiers import TaskOfRun
from headgate.telemetry.store import RunReader

_AT_ONCE_SECONDS = 0.1
"""A decision is brought to the tasks of a job one after the other, each with a time of its own."""
_SAME_CORES = 1e-6

Row = tuple[float, TaskOfRun, float, str]
"""Time, task, cores and reason."""


def granted(
    reader: RunReader, tasks: Mapping[TaskOfRun, Mapping[str, Any]], course: Sequence[Phase], until: float
) -> tuple[Signal, tuple[RecordedDecision, ...]]:
    """The cores that a job was entitled to while it ran, and what was decided about them.

    Args:
        tasks: Its rows, by id.
        until: Seconds of the run.
    """
    marks = ", ".join("?" * len(tasks))
    sql = (
        f"SELECT t, task, entitled_cores, coalesce(reason, '') FROM shares WHERE task IN ({marks})"
        " AND entitled_cores IS NOT NULL ORDER BY t, rowid"
    )
    rows: list[Row] = [(t, TaskOfRun(task), cores, why) for t, task, cores, why in reader.tuples(sql, list(tasks))]
    return _entitled(rows, tasks, course, until), tuple(_decisions(rows, tasks))


def held(reader: RunReader, task: Mapping[str, Any], column: str, course: Sequence[Phase], until: float) -> Signal:
    """One setting of a task (`cpu_cap_cores`, `threads`) while it ran; empty while it had none.

    Args:
        task: Its row.
        until: Seconds of the run.
    """
    sql = f"SELECT t, {column} FROM shares WHERE task = ? ORDER BY t, rowid"
    table = np.array(reader.tuples(sql, [task["id"]]), dtype=float).reshape(-1, 2)
    if not len(table):
        return EMPTY
    return settings(table[:, 0], table[:, 1], _last(task, table[-1, 0], until)).during(running(course))


def _last(task: Mapping[str, Any], given: float, until: float) -> float:
    """When its last setting ended. While an attempt runs, the row still has the end of the attempt before."""
    ended = task["ended"]
    return until if ended is None or ended < given else float(ended)


def _entitled(
    rows: Sequence[Row], tasks: Mapping[TaskOfRun, Mapping[str, Any]], course: Sequence[Phase], until: float
) -> Signal:
    by_task: defaultdict[TaskOfRun, list[tuple[float, float]]] = defaultdict(list)
    for t, task, cores, _ in rows:
        by_task[task].append((t, cores))
    signals = []
    for task, given in by_task.items():
        table = np.array(given, dtype=float)
        signals.append(settings(table[:, 0], table[:, 1], _last(tasks[task], table[-1, 0], until)))
    return total(signals).during(running(course))


def _decisions(rows: Sequence[Row], tasks: Mapping[TaskOfRun, Mapping[str, Any]]) -> Iterator[RecordedDecision]:
    """The decisions that changed the cores of a job, or the reason for them."""
    held: dict[TaskOfRun, float] = {}
    last: RecordedDecision | None = None
    for index, (t, task, cores, reason) in enumerate(rows):
        held[task] = cores
        following = rows[index + 1] if index + 1 < len(rows) else None
        if following is not None and following[3] == reason and following[0] - t < _AT_ONCE_SECONDS:
            continue
        ends = {id: tasks[id]["ended"] for id in held}
        held = {id: each for id, each in held.items() if ends[id] is None or ends[id] > t or id == task}
        whole = sum(held.values())
        before = last.cores if last is not None else None
        if last is None or last.reason != reason or abs(whole - last.cores) > _SAME_CORES:
            last = RecordedDecision(t, whole, before, reason)
            yield last
