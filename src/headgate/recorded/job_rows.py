"""Assemble one job from a run's store."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from headgate.model.identifiers import TaskOfRun
from headgate.model.job_states import ENDED
from headgate.model.reasons import Reason, ReasonKind
from headgate.recorded import stepping
from headgate.recorded.descriptions import RunDescription
from headgate.recorded.faults import survived
from headgate.recorded.jobs import (
    Phase,
    RecordedDecision,
    RecordedJob,
    RecordedTask,
    Usage,
    phases,
    running,
)
from headgate.recorded.progress import NO_PROGRESS, ProgressSeries, together
from headgate.recorded.proofs import Proof
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import (
    AsideRow,
    CheckpointRow,
    EventRow,
    JobRow,
    ProofRow,
    TaskRow,
    as_object,
)
from headgate.recorded.stepping import Stepping
from headgate.recorded.steps import divide
from headgate.recorded.usage import EMPTY, Array, Signal, highest, settings, total
from headgate.sampling.columns import COLUMNS, Column

_HIGHEST: frozenset[Column] = frozenset(
    {"cpu_fullest_core", "cpu_ready", "main_ready", "gpu_busy", "psi_cpu", "psi_memory", "psi_io"}
)
"""Columns in which a job counts its largest task; all others are summed."""
_AT_ONCE_SECONDS = 0.1
"""A decision reaches the tasks of a job one after the other, each with its own time, within this
many seconds.
"""
_SAME_CORES = 1e-6

_OfTask = TypeVar("_OfTask", AsideRow, CheckpointRow)
_ShareRow = tuple[float, TaskOfRun, float, str]
"""Time, task, cores and reason."""


def job(
    reader: RunReader,
    description: RunDescription,
    row: JobRow,
    task_rows: Sequence[TaskRow],
    events: Sequence[EventRow],
    usage: Mapping[str, Usage],
    steps: Stepping,
    run_state: str,
    until: float,
    after: float,
    most: int | None,
    shell_threads: str,
) -> RecordedJob:
    """Assemble a job from its row.

    Args:
        description: The run's.
        row: Row of the job.
        task_rows: Rows of its tasks.
        events: Its events, in the order of time.
        usage: Use by task.
        steps: Sampled steps of all tasks.
        run_state: State of the run.
        until: Seconds of the run up to which it is known.
        after: Second of the run from which on it is read.
        most: As of `recording.read`.
        shell_threads: As of `RecordedJob`.
    """
    name = row.name
    tasks_by_id = {TaskOfRun(task.id): task for task in task_rows}
    tasks = {id: tasks_by_id[id] for id in sorted(tasks_by_id, key=lambda id: id.name.order)}
    state, reason = row.state or "waiting", row.because()
    if run_state == "interrupted" and state not in ENDED:
        state, reason = "interrupted", Reason.of(ReasonKind.NO_END)
    submitted = row.submitted if row.submitted is not None else 0.0
    course = _course(
        row, [(event.t, event.kind, event.text or "") for event in events], state, until
    )
    attempt = next((phase.start for phase in course if phase.start < after < phase.end), after)
    course = tuple(
        replace(phase, start=max(phase.start, after)) for phase in course if phase.end > after
    )
    plan = row.chosen_plan()
    synchronous = plan is None or plan.synchronous
    begins = [start for start, _ in running(course)]
    reported = _progress(reader, list(tasks), after, attempt, begins, most)
    progress = together(reported, synchronous=synchronous)
    records = tuple(_task(reader, task, usage, steps, course, until) for task in tasks.values())
    entitled, decisions = _granted(reader, tasks, course, until)
    return RecordedJob(
        name=name,
        state=state,
        reason=reason,
        exit_code=row.exit_code,
        spec=row.job(),
        submitted=max(submitted, after),
        started=row.started,
        ended=row.ended,
        attempts=row.attempt or 0,
        phases=course,
        progress=progress,
        usage=_together([usage.get(task, {}) for task in tasks], course),
        entitled=entitled,
        decisions=decisions,
        division=divide(
            steps.sums[task.id] for task in records if task.is_worker and task.id in steps.sums
        ),
        profile=row.cost(),
        verified=row.verified,
        plan=plan,
        apart=row.is_apart(),
        memory_peak_bytes=max(
            (peak for task in records if (peak := task.memory_peak) is not None), default=None
        ),
        cpu_seconds=_spent(tasks.values(), usage, running(course)),
        checkpoints=[
            saved
            for saved in _of(reader, CheckpointRow, list(tasks))
            if (saved.t or 0.0) >= after and not saved.is_begun
        ],
        events=events,
        tasks=records,
        sampled=stepping.sampled(reader, steps, tasks, synchronous=synchronous)
        if len(tasks) > 1
        else (),
        traced=tuple(step for task in tasks for step in steps.traced.get(task, ())),
        faults=survived(event for event in events if (event.t or 0.0) >= after),
        proofs=_proofs(reader, name),
        asides=_asides(_of(reader, AsideRow, list(tasks))),
        shell_threads=shell_threads,
        placement_options=_placement_options(description),
    )


def _course(
    row: JobRow, events: Sequence[tuple[float, str, str]], state: str, until: float
) -> tuple[Phase, ...]:
    """The phases of a job from its row and events, up to its end or the latest known time."""
    return phases(
        events,
        submitted=row.submitted or 0.0,
        started=row.started,
        ended=row.ended,
        state=state,
        until=row.ended if row.ended is not None else until,
    )


def used_beside(
    row: JobRow,
    task_rows: Sequence[TaskRow],
    events: Sequence[EventRow],
    usage: Mapping[str, Usage],
    until: float,
    after: float,
) -> RecordedJob:
    """A job with only its use, for the accounts of its neighbours; arguments as of `job`."""
    submitted = row.submitted or 0.0
    course = _course(
        row, [(event.t, event.kind, "") for event in events], row.state or "waiting", until
    )
    course = tuple(
        replace(phase, start=max(phase.start, after)) for phase in course if phase.end > after
    )
    ran = running(course)
    tasks = {TaskOfRun(task.id): task for task in task_rows}
    records = tuple(
        RecordedTask(
            id,
            task.node or "",
            task.started,
            task.ended,
            usage.get(id, {}),
            None,
            None,
            gpus=task.held_gpus(),
        )
        for id, task in tasks.items()
    )
    return RecordedJob(
        name=row.name,
        state=row.state or "waiting",
        reason=row.because(),
        exit_code=row.exit_code,
        spec=row.job(),
        submitted=max(submitted, after),
        started=row.started,
        ended=row.ended,
        attempts=row.attempt or 0,
        phases=course,
        progress=NO_PROGRESS,
        usage={},
        entitled=EMPTY,
        decisions=(),
        division=None,
        profile=None,
        plan=None,
        memory_peak_bytes=None,
        cpu_seconds=_spent(tasks.values(), usage, ran),
        tasks=records,
    )


def _placement_options(description: RunDescription) -> tuple[str, ...]:
    """The options of a command that name the cluster, the engine and the nodes of a run."""
    options = {
        "--cluster": description.cluster,
        "--engine": description.engine,
        "--address": description.address,
        "--nodes": ",".join(description.only),
    }
    return tuple(word for pair in options.items() if pair[1] for word in pair)


def _proofs(reader: RunReader, victim: str) -> tuple[Proof, ...]:
    """What pauses of other jobs showed about a job: the latest readable proof for each."""
    rows = reader.records(ProofRow, "victim = ?", [victim], order="t, rowid")
    proofs = [proof for row in rows if (proof := row.proof()) is not None]
    return tuple({proof.culprit: proof for proof in proofs}.values())


def _task(
    reader: RunReader,
    row: TaskRow,
    usage: Mapping[str, Usage],
    steps: Stepping,
    course: Sequence[Phase],
    until: float,
) -> RecordedTask:
    id = TaskOfRun(row.id)
    return RecordedTask(
        id=id,
        node=row.node or "",
        started=row.started,
        ended=row.ended,
        usage=_together([usage.get(id, {})], course),
        division=divide([steps.sums[id]]) if id in steps.sums else None,
        memory_peak_bytes=row.counted("memory_peak_bytes"),
        cap=_held(reader, row, "cpu_cap_cores", course, until),
        threads=_held(reader, row, "threads", course, until),
        gpus=row.held_gpus(),
    )


def _together(usages: Sequence[Usage], course: Sequence[Phase]) -> dict[Column, Signal]:
    """The use of a job from that of its tasks while they ran; no reading reaches back over a
    pause.
    """
    result: dict[Column, Signal] = {}
    for column in COLUMNS:
        signals = [usage[column] for usage in usages if column in usage]
        merged = highest(signals) if column in _HIGHEST else total(signals)
        ran = running(course)
        clipped = merged.during(ran) if ran else merged
        if len(clipped):
            result[column] = clipped
    return result


def _asides(rows: Iterable[AsideRow]) -> dict[str, float]:
    """Seconds by activity, of the task with the most."""
    spent: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        spent[row.name][row.task] += row.seconds or 0.0
    return {name: max(by_task.values()) for name, by_task in spent.items()}


def _marks(names: Sequence[str]) -> str:
    return ", ".join("?" * len(names))


def _of(reader: RunReader, kind: type[_OfTask], tasks: Sequence[str]) -> list[_OfTask]:
    return list(reader.records(kind, f"task IN ({_marks(tasks)})", tasks, "t")) if tasks else []


def _progress(
    reader: RunReader,
    tasks: Sequence[str],
    after: float,
    attempt: float,
    begins: Sequence[float],
    most: int | None,
) -> ProgressSeries:
    """Reports after a time, and the last one before it in the current attempt, for counting its
    steps.
    """
    columns = (
        "t, step, epoch, samples, loss, coalesce(count, 1), coalesce(nan, 0), epochs, task, metrics"
    )
    before = f"SELECT {columns} FROM progress WHERE task = ? AND t >= ? AND t < ?"
    before += " ORDER BY t DESC, rowid DESC LIMIT 1"
    progress_rows = [row for task in tasks for row in reader.tuples(before, [task, attempt, after])]
    for task in tasks:
        # The first two reports of an attempt give the start of its first step.
        progress_rows += reader.thinned(
            "progress", task, columns, after=after, most=most, at=begins, in_a_row=2
        )
    progress_rows.sort(key=lambda row: row[0])
    table: Array = np.array([row[:8] for row in progress_rows], dtype=float).reshape(-1, 8)
    # without steps, samples count, or else epochs with a loss
    for counter in (3, 2):
        if not np.isfinite(table[:, 1]).any():
            table[:, 1] = np.where(np.isfinite(table[:, 4]), table[:, counter], np.nan)
    metrics: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in progress_rows:
        if row[9]:
            for name, value in as_object(row[9]).items():
                if isinstance(value, int | float) and abs(value) <= sys.float_info.max:
                    metrics[name].append((row[0], float(value)))
    epochs = table[np.isfinite(table[:, 7]), 7]
    return ProgressSeries(
        t=table[:, 0],
        step=table[:, 1],
        epoch=table[:, 2],
        samples=table[:, 3],
        loss=table[:, 4],
        count=table[:, 5],
        task=tuple(row[8] for row in progress_rows),
        not_number=table[:, 6],
        epochs=int(epochs[-1]) if len(epochs) else None,
        metrics={
            name: (np.array([t for t, _ in pairs]), np.array([v for _, v in pairs]))
            for name, pairs in metrics.items()
        },
    )


def _spent(
    tasks: Iterable[TaskRow], usage: Mapping[str, Usage], ran: Sequence[tuple[float, float]]
) -> float | None:
    """CPU seconds of a job over all attempts of its tasks, from counters or else from readings."""
    parts: list[float] = []
    for task in tasks:
        cpu = usage.get(task.id, {}).get("cpu_cores", EMPTY)
        cpu = cpu.during(ran) if ran else cpu
        attempt, counted = task.ended_attempt(), task.counted("cpu_seconds")
        if attempt is not None and counted is not None:
            parts.append(cpu.within(-np.inf, attempt[0]).integral + counted)
        elif len(cpu):
            parts.append(cpu.integral)
    return sum(parts) if parts else None


# --- grants and their reasons ---------------------------------------------------------------------


def _granted(
    reader: RunReader, tasks: Mapping[TaskOfRun, TaskRow], course: Sequence[Phase], until: float
) -> tuple[Signal, tuple[RecordedDecision, ...]]:
    """The entitled cores of a job while it ran, and the decisions about them.

    Args:
        tasks: Its rows, by id.
        until: Seconds of the run.
    """
    marks = ", ".join("?" * len(tasks))
    sql = (
        f"SELECT t, task, entitled_cores, coalesce(reason, '') FROM shares WHERE task IN ({marks})"
        " AND entitled_cores IS NOT NULL ORDER BY t, rowid"
    )
    rows: list[_ShareRow] = [
        (t, TaskOfRun(task), cores, why) for t, task, cores, why in reader.tuples(sql, list(tasks))
    ]
    return _entitled(rows, tasks, course, until), tuple(_decisions(rows, tasks))


def _held(
    reader: RunReader, task: TaskRow, column: str, course: Sequence[Phase], until: float
) -> Signal:
    """One setting of a task (`cpu_cap_cores`, `threads`) while it ran; empty while not set.

    Args:
        task: Its row.
        until: Seconds of the run.
    """
    sql = f"SELECT t, {column} FROM shares WHERE task = ? ORDER BY t, rowid"
    table = np.array(reader.tuples(sql, [task.id]), dtype=float).reshape(-1, 2)
    if not len(table):
        return EMPTY
    return settings(table[:, 0], table[:, 1], _last(task, table[-1, 0], until)).during(
        running(course)
    )


def _last(task: TaskRow, given: float, until: float) -> float:
    """When its last setting ended. While an attempt runs, the row still has the previous end."""
    ended = task.ended
    return until if ended is None or ended < given else float(ended)


def _entitled(
    rows: Sequence[_ShareRow],
    tasks: Mapping[TaskOfRun, TaskRow],
    course: Sequence[Phase],
    until: float,
) -> Signal:
    by_task: defaultdict[TaskOfRun, list[tuple[float, float]]] = defaultdict(list)
    for t, task, cores, _ in rows:
        by_task[task].append((t, cores))
    signals = []
    for task, given in by_task.items():
        table = np.array(given, dtype=float)
        signals.append(settings(table[:, 0], table[:, 1], _last(tasks[task], table[-1, 0], until)))
    return total(signals).during(running(course))


def _decisions(
    rows: Sequence[_ShareRow], tasks: Mapping[TaskOfRun, TaskRow]
) -> Iterator[RecordedDecision]:
    """Decisions that changed the cores of a job, or their reason."""
    held: dict[TaskOfRun, float] = {}
    last: RecordedDecision | None = None
    for index, (t, task, cores, reason) in enumerate(rows):
        held[task] = cores
        following = rows[index + 1] if index + 1 < len(rows) else None
        if following is not None and following[3] == reason and following[0] - t < _AT_ONCE_SECONDS:
            continue
        ends = {id: tasks[id].ended for id in held}
        held = {
            id: share
            for id, share in held.items()
            if (end := ends[id]) is None or end > t or id == task
        }
        total_cores = sum(held.values())
        before = last.cores if last is not None else None
        if last is None or last.reason != reason or abs(total_cores - last.cores) > _SAME_CORES:
            last = RecordedDecision(t, total_cores, before, reason)
            yield last
