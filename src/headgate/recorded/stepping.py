"""Sampled steps from a run's store."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from headgate.model.identifiers import TaskOfRun
from headgate.recorded.reader import RunReader
from headgate.recorded.sampled import (
    Bar,
    ReportedStep,
    SampledStep,
    StepTransfer,
    TracedStep,
    assemble,
    choose,
    lay_out,
)
from headgate.recorded.steps import ORDER, StepSums, Sums

_MOST_ROWS = 30
"""Rows of a task's steps that were sampled one after the other."""
_MOST_PARAMETERS = 500
"""Most parameters of one query."""
_BLOCK_ROWS, _SPANS = 500, 6
"""Consecutive rows of spans read at each place of a long run, and about how many rows a step
has.
"""
_LEAST_STEPS = 100
"""If a task has fewer steps in the blocks of a long run, all its steps are read."""
_PLACE = {name: index for index, name in enumerate(ORDER)}


_Rows = tuple[str, Sequence[object]]
"""A condition on rows, and its parameters."""


@dataclass(frozen=True, slots=True)
class Stepping:
    """Sampled steps of all tasks of a run: their sums and their reports."""

    sums: dict[TaskOfRun, StepSums]
    told: dict[TaskOfRun, list[ReportedStep]]
    traced: dict[TaskOfRun, list[TracedStep]]


def read(reader: RunReader, after: float, most: int) -> Stepping:
    """Read the steps reported after a time, in seconds of the run.

    SQLite does the sums: a day of a job with ten tasks has some million spans.

    Args:
        most: Read about this many steps of each task, evenly spread, if there are more than twice
            as many.
    """
    steps_by_task: dict[TaskOfRun, list[ReportedStep]] = defaultdict(list)
    waited: dict[str, list[float | None]] = defaultdict(list)
    counts: dict[str, list[float]] = defaultdict(list)
    spans: dict[str, dict[str, Sums]] = defaultdict(dict)
    parts = list(_parts(reader, after, most))
    count = "coalesce(steps, 1)" if _has(reader, "spans", "steps") else "1"
    for rows, parameters in parts:
        known = f"FROM spans WHERE {rows} AND seconds IS NOT NULL AND task IS NOT NULL"
        sql = (
            "SELECT t, task, step, total(seconds), sum(CASE name WHEN 'input' THEN seconds "
            f"END), max({count}) {known}"
        )
        for t, task, step, seconds, input_seconds, steps in reader.tuples(
            f"{sql} GROUP BY task, t, step", parameters
        ):
            steps_by_task[TaskOfRun(task)].append(
                ReportedStep(t, TaskOfRun(task), step or 0, seconds)
            )
            waited[task].append(input_seconds)
            counts[task].append(steps)
        sql = (
            f"SELECT task, name, total(seconds * {count}), sum(bytes_in * {count}), "
            f"sum(bytes_out * {count}) {known} GROUP BY task, name"
        )
        for task, name, *sums in reader.tuples(sql, parameters):
            before = spans[task].get(name, (0.0, None, None))
            spans[task][name] = (
                before[0] + sums[0],
                _added(before[1], sums[1]),
                _added(before[2], sums[2]),
            )
    return Stepping(
        sums={
            task: StepSums(
                np.array([reported_step.seconds for reported_step in steps_by_task[task]]),
                np.array(waited[task], float),
                spans[task],
                np.array(counts[task], float),
            )
            for task in steps_by_task
        },
        told=dict(steps_by_task),
        traced=_traced(reader, steps_by_task, parts),
    )


def _added(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _parts(reader: RunReader, after: float, most: int) -> Iterator[_Rows]:
    """Conditions for the rows of spans to read, with their parameters. If there are too many:
    evenly spread blocks, and all rows of tasks that are rare in these.
    """
    first = reader.first_row("spans", after)
    tasks = [id for (id,) in reader.tuples("SELECT id FROM tasks")]
    rows = reader.tuples("SELECT max(rowid) FROM spans")[0][0] or 0
    if rows - first <= 2 * most * len(tasks) * _SPANS:
        yield "rowid >= ? AND t >= ?", [first, after]
        return
    blocks = max(most * len(tasks) * _SPANS // _BLOCK_ROWS, 1)
    starts = np.linspace(first, rows - _BLOCK_ROWS, blocks).astype(int)
    chosen = [row for start in starts for row in _whole_messages(reader, int(start))]
    among, sampled = (
        "rowid IN (SELECT value FROM json_each(?)) AND t >= ?",
        [json.dumps(chosen), after],
    )
    part_counts = dict(
        reader.tuples(
            f"SELECT task, count(DISTINCT t) FROM spans WHERE {among} GROUP BY task", sampled
        )
    )
    rare = json.dumps([task for task in tasks if part_counts.get(task, 0) < _LEAST_STEPS])
    yield f"{among} AND task NOT IN (SELECT value FROM json_each(?))", [*sampled, rare]
    if rare != "[]":
        yield (
            "rowid >= ? AND t >= ? AND task IN (SELECT value FROM json_each(?))",
            [first, after, rare],
        )


def _whole_messages(reader: RunReader, start: int) -> list[int]:
    """Rows of a block, without messages that cross its ends."""
    rows = reader.tuples(
        "SELECT rowid, t, task FROM spans WHERE rowid BETWEEN ? AND ?",
        (start, start + _BLOCK_ROWS - 1),
    )
    return [row for row, *message in rows if message not in (list(rows[0][1:]), list(rows[-1][1:]))]


def _traced(
    reader: RunReader,
    steps_by_task: Mapping[TaskOfRun, Sequence[ReportedStep]],
    parts: Sequence[_Rows],
) -> dict[TaskOfRun, list[TracedStep]]:
    """Some steps of each task with their spans, in consecutive groups that are evenly spread."""
    chosen = {
        (reported_step.t, reported_step.task, reported_step.step): reported_step
        for steps in steps_by_task.values()
        for reported_step in _some(steps)
    }
    workers = "workers" if _has(reader, "spans", "workers") else "NULL"
    spans: dict[ReportedStep, dict[str, float]] = defaultdict(dict)
    readers: dict[ReportedStep, int] = {}
    sql = (
        f"SELECT t, task, coalesce(step, 0), name, seconds, {workers} FROM spans WHERE "
        "seconds IS NOT NULL"
    )
    for t, task, step, name, seconds, beside in _told_at(
        reader, "spans", sql, list(chosen.values()), parts
    ):
        if (traced_step := chosen.get((t, task, step))) is not None:
            spans[traced_step][name] = spans[traced_step].get(name, 0.0) + seconds
            if beside is not None:
                readers[traced_step] = int(beside)
    transfers = _transfers(reader, list(spans)) if spans else {}
    traced_by_task: dict[TaskOfRun, list[TracedStep]] = defaultdict(list)
    for span in sorted(spans):
        traced_by_task[span.task].append(
            TracedStep(span, spans[span], tuple(transfers.get(span, ())), readers.get(span))
        )
    return dict(traced_by_task)


def _some(steps: Sequence[ReportedStep]) -> Sequence[ReportedStep]:
    breaks = np.flatnonzero(np.diff([step.step for step in steps]) != 1) + 1
    rows = np.split(np.arange(len(steps)), breaks)
    chosen = np.linspace(0, len(rows) - 1, min(_MOST_ROWS, len(rows))).astype(int)
    return [steps[index] for row in chosen for index in rows[row][:_MOST_ROWS]]


def sampled(
    reader: RunReader, stepping: Stepping, tasks: Collection[TaskOfRun], *, synchronous: bool
) -> tuple[SampledStep, ...]:
    """A typical and the slowest step of a job, with everything in them.

    Args:
        tasks: The job's tasks.
        synchronous: Whether its workers do the same steps.
    """
    every = [reported_step for task in tasks for reported_step in stepping.told.get(task, ())]
    workers = [reported_step for reported_step in every if reported_step.task.name.is_worker]
    servers = [reported_step for reported_step in every if not reported_step.task.name.is_worker]
    return tuple(
        assemble(chosen, list(drawn(reader, chosen.told)), synchronous=synchronous)
        for chosen in choose(workers, servers, synchronous=synchronous)
    )


def drawn(
    reader: RunReader, reported_steps: Sequence[ReportedStep]
) -> Iterator[tuple[ReportedStep, tuple[Bar, ...], Sequence[StepTransfer]]]:
    """Sampled steps with their spans in the order of time, and their traffic."""
    bars, transfers = _bars(reader, reported_steps), _transfers(reader, reported_steps)
    for step in reported_steps:
        yield step, bars.get(step, ()), transfers.get(step, ())


def _bars(
    reader: RunReader, reported_steps: Sequence[ReportedStep]
) -> dict[ReportedStep, tuple[Bar, ...]]:
    begin = "begin" if _has(reader, "spans", "begin") else "NULL"
    of = {
        (reported_step.t, reported_step.task, reported_step.step): reported_step
        for reported_step in reported_steps
    }
    rows: dict[ReportedStep, list[tuple[str, float | None, float, float, float]]] = defaultdict(
        list
    )
    sql = (
        f"SELECT t, task, coalesce(step, 0), name, {begin}, seconds, coalesce(bytes_in, 0), "
        "coalesce(bytes_out, 0) FROM spans WHERE seconds IS NOT NULL"
    )
    for t, task, step, name, *fields in _told_at(reader, "spans", sql, reported_steps):
        if (reported_index := of.get((t, task, step))) is not None:
            rows[reported_index].append((name, fields[0], fields[1], fields[2], fields[3]))
    # Without begin times, spans follow each other in the usual order.
    ordered = {
        bar_index: sorted(bar_rows, key=lambda row: _PLACE.get(row[0], len(ORDER)))
        for bar_index, bar_rows in rows.items()
    }
    return {bar_index: lay_out(bar_rows) for bar_index, bar_rows in ordered.items()}


def _transfers(
    reader: RunReader, reported_steps: Sequence[ReportedStep]
) -> dict[ReportedStep, list[StepTransfer]]:
    result: dict[ReportedStep, list[StepTransfer]] = defaultdict(list)
    if not _has(reader, "transfers", "peer"):
        return result
    of = {
        (reported_step.t, reported_step.task, reported_step.step): reported_step
        for reported_step in reported_steps
    }
    sql = (
        "SELECT t, task, coalesce(step, 0), peer, push_begin, push_end, push_bytes, pull_begin, "
        "pull_end, pull_bytes FROM transfers WHERE peer IS NOT NULL"
    )
    for t, task, step, peer, *numbers in sorted(
        _told_at(reader, "transfers", sql, reported_steps), key=lambda row: str(row[3])
    ):
        if (reported_index := of.get((t, task, step))) is None:
            continue
        ways: tuple[tuple[Literal["push", "pull"], list[float | None]], ...] = (
            ("push", numbers[:3]),
            ("pull", numbers[3:]),
        )
        for way, (begin, end, size) in ways:
            if begin is not None and end is not None:
                result[reported_index].append(
                    StepTransfer(peer, way, min(begin, end), max(begin, end), size or 0.0)
                )
    return result


def _told_at(
    reader: RunReader,
    table: str,
    sql: str,
    reported_steps: Sequence[ReportedStep],
    parts: Sequence[_Rows] = (),
) -> Iterator[tuple[Any, ...]]:
    """Rows of a table at the times of these steps; only from `parts`, if given."""
    times = sorted({reported_step.t for reported_step in reported_steps})
    if times and not parts:
        parts = [
            (
                "rowid BETWEEN ? AND ?",
                [reader.first_row(table, times[0]), reader.last_row(table, times[-1])],
            )
        ]
    for first in range(0, len(times), _MOST_PARAMETERS):
        some = times[first : first + _MOST_PARAMETERS]
        marks = ", ".join("?" * len(some))
        for rows, parameters in parts:
            yield from reader.tuples(f"{sql} AND {rows} AND t IN ({marks})", [*parameters, *some])


def _has(reader: RunReader, table: str, column: str) -> bool:
    """Whether a table has a column: earlier versions may lack it."""
    return bool(reader.tuples("SELECT 1 FROM pragma_table_info(?) WHERE name = ?", (table, column)))
