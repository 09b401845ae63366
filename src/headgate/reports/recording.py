"""A run's store, read as a whole: what the page, the terminal and `metrics` are made from."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headgate import runs
from headgate.analysis.jobs import JobRecord, Phase, Progress, phases, running
from headgate.analysis.steps import divide
from headgate.analysis.usage import EMPTY, Array, Signal, completed, highest, readings, settings, total
from headgate.events import ENDED
from headgate.telemetry.columns import COLUMNS, Column
from headgate.telemetry.store import RunReader

NODE = "node:"
_SUMMED: frozenset[Column] = frozenset(
    {"cpu_cores", "memory_bytes", "cache_bytes", "disk_read", "disk_write", "net_in", "net_out", "gpu_memory_bytes"}
)
"""Columns that add up over the tasks of a job; of the others the largest counts."""

Usage = Mapping[Column, Signal]


@dataclass(frozen=True, slots=True, eq=False)
class NodeRecord:
    """What was recorded of a node; cores and rates are None where they are not known."""

    name: str
    usage: Usage
    cores: float | None = None
    memory_bytes: float | None = None
    nic_bytes_per_second: float | None = None
    disk_bytes_per_second: float | None = None
    description: str = ""

    def signal(self, column: Column) -> Signal:
        return self.usage.get(column, EMPTY)


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A run as it was recorded.

    Args:
        state: `running`, `done` or `interrupted`.
        began: Seconds since the epoch; None where it is not known.
        seconds: How long it took, or has taken so far.
        tasks: Usage by task, as `JOB/ROLE-INDEX`.
        events: In the order in which they happened.
    """

    id: str
    state: str
    meta: Mapping[str, str]
    began: float | None
    seconds: float
    jobs: tuple[JobRecord, ...]
    nodes: tuple[NodeRecord, ...]
    tasks: Mapping[str, Usage]
    events: Sequence[Mapping[str, Any]]

    def job(self, name: str) -> JobRecord | None:
        return next((job for job in self.jobs if job.name == name), None)


def read(store: Path, since: float | None = None) -> Recording:
    """Read a run's store, also one that is still written.

    Args:
        since: Divide steps only by those that were sampled in the last so many seconds.

    Raises:
        NotFoundError: There is no such file.
        StorageError: It cannot be read.
    """
    with RunReader(store) as reader:
        alive = runs.alive(store.parent)  # asked first: a run that ends right after has said so by then
        meta = reader.meta()
        events = list(reader.rows("events", order="t, rowid"))
        usage, last_use = _usage(reader)
        rows = list(reader.rows("jobs", order="position, rowid"))
        tasks = list(reader.rows("tasks"))
        _complete(usage, tasks)
        last_progress = reader.tuples("SELECT max(t) FROM progress")[0][0]
        times = [last_use, last_progress, *(event["t"] for event in events[-1:])]
        times += [row[key] for row in [*rows, *tasks] for key in ("submitted", "started", "ended") if key in row]
        latest = max((float(time) for time in times if time is not None), default=0.0)
        began, ended = _number(meta.get("began")), _number(meta.get("ended"))
        seconds = max(ended or 0.0, latest)
        state = meta.get("state", "running")
        if state == "running" and not alive:
            state = "interrupted"
        return Recording(
            id=meta.get("id", store.parent.name),
            state=state,
            meta=meta,
            began=began,
            seconds=seconds,
            jobs=tuple(_job(reader, row, tasks, events, usage, state, seconds, since) for row in rows),
            nodes=_nodes(meta, usage),
            tasks={target: signals for target, signals in usage.items() if not target.startswith(NODE)},
            events=events,
        )


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def loads(text: str | None) -> Any:
    """A JSON value of the store; None where it is missing or damaged."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return None


def _object(text: str | None) -> dict[str, Any]:
    value = loads(text)
    return value if isinstance(value, dict) else {}


def _usage(reader: RunReader) -> tuple[dict[str, dict[Column, Signal]], float | None]:
    """Usage by target, and the time of its last reading; only columns that hold anything are read."""
    counts = reader.tuples(f"SELECT {', '.join(f'count({column})' for column in COLUMNS)} FROM usage")[0]
    columns = [column for column, count in zip(COLUMNS, counts) if count]
    result: dict[str, dict[Column, Signal]] = {}
    last: float | None = None
    for (target,) in reader.tuples("SELECT DISTINCT target FROM usage"):
        sql = f"SELECT {', '.join(['t', *columns])} FROM usage WHERE target = ? ORDER BY t"
        table = np.array(reader.tuples(sql, (target,)), dtype=float)
        times = table[:, 0]
        last = float(times[-1]) if last is None else max(last, float(times[-1]))
        signals = {column: readings(times, table[:, index + 1]) for index, column in enumerate(columns)}
        result[target] = {column: signal for column, signal in signals.items() if len(signal)}
    return result, last


def _complete(usage: dict[str, dict[Column, Signal]], tasks: Sequence[Mapping[str, Any]]) -> None:
    """Add the CPU time that no reading saw, above all before the first and after the last one of an attempt."""
    for task in tasks:
        if (spent := _cpu_seconds(task)) is not None:
            of_task = usage.setdefault(task["id"], {})
            cpu = completed(of_task.get("cpu_cores", EMPTY), task["started"], task["ended"], spent)
            if len(cpu):
                of_task["cpu_cores"] = cpu


def _cpu_seconds(task: Mapping[str, Any]) -> float | None:
    """CPU time of a task's last attempt, as it was counted; None where it was not, or while it runs."""
    started, ended = task["started"], task["ended"]
    # While an attempt runs, the row still has the end of the one before.
    if started is None or ended is None or ended < started:
        return None
    spent = _object(task["exit"]).get("cpu_seconds")
    return float(spent) if isinstance(spent, int | float) else None


def _spent(
    tasks: Iterable[Mapping[str, Any]], usage: Mapping[str, Usage], ran: Sequence[tuple[float, float]]
) -> float | None:
    """CPU seconds of a job, all attempts of its tasks together: as counted, or else from the readings."""
    parts: list[float] = []
    for task in tasks:
        cpu = usage.get(task["id"], {}).get("cpu_cores", EMPTY)
        cpu = cpu.during(ran) if ran else cpu
        counted = _cpu_seconds(task)
        if counted is not None:
            parts.append(cpu.within(-np.inf, task["started"]).integral + counted)
        elif len(cpu):
            parts.append(cpu.integral)
    return sum(parts) if parts else None


def _nodes(meta: Mapping[str, str], usage: Mapping[str, Usage]) -> tuple[NodeRecord, ...]:
    described = loads(meta.get("node"))
    nodes = {node["name"]: node for node in (described if isinstance(described, list) else [described]) if node}
    names = dict.fromkeys([*nodes, *(target.removeprefix(NODE) for target in usage if target.startswith(NODE))])
    result = []
    for name in names:
        node = nodes.get(name, {})
        result.append(
            NodeRecord(
                name=name,
                usage=usage.get(NODE + name, {}),
                cores=node.get("cores"),
                memory_bytes=node.get("memory_bytes"),
                nic_bytes_per_second=node.get("nic_bytes_per_second"),
                disk_bytes_per_second=node.get("disk_bytes_per_second"),
                description=str(node.get("cpu_model") or ""),
            )
        )
    return tuple(result)


def _job(
    reader: RunReader,
    row: Mapping[str, Any],
    every_task: Sequence[Mapping[str, Any]],
    every_event: Sequence[Mapping[str, Any]],
    usage: Mapping[str, Usage],
    run_state: str,
    until: float,
    since: float | None,
) -> JobRecord:
    name = row["name"]
    tasks = {task["id"]: task for task in every_task if task["job"] == name}
    events = [event for event in every_event if event["job"] == name]
    state, reason = row["state"] or "waiting", row["reason"] or ""
    if run_state == "interrupted" and state not in ENDED:
        state, reason = "interrupted", "no end was recorded"
    submitted = row["submitted"] if row["submitted"] is not None else 0.0
    course = phases(
        [(event["t"], event["kind"], event["text"] or "") for event in events],
        submitted=submitted,
        started=row["started"],
        ended=row["ended"],
        state=state,
        until=row["ended"] if row["ended"] is not None else until,
    )
    endings = [_object(task["exit"]) for task in tasks.values()]
    peaks = [ending["memory_peak_bytes"] for ending in endings if ending.get("memory_peak_bytes")]
    return JobRecord(
        name=name,
        state=state,
        reason=reason,
        exit_code=row["exit_code"],
        spec=_object(row["spec"]),
        submitted=submitted,
        started=row["started"],
        ended=row["ended"],
        attempts=row["attempt"] or 0,
        phases=course,
        progress=_progress(reader, list(tasks)),
        usage=_together([usage.get(task, {}) for task in tasks], course),
        entitled=_entitled(reader, tasks, course, until),
        division=divide(_spans(reader, list(tasks), until - since if since is not None else 0.0)),
        profile=_object(row["profile"]) or None,
        plan=_object(row["plan"]) or None,
        memory_peak_bytes=max(peaks, default=None),
        cpu_seconds=_spent(tasks.values(), usage, running(course)),
        checkpoints=_of(reader, "checkpoints", list(tasks)),
        events=events,
    )


def _together(usages: Sequence[Usage], course: Sequence[Phase]) -> dict[Column, Signal]:
    """The usage of a job from that of its tasks, while they ran: no reading reaches back over a pause."""
    result: dict[Column, Signal] = {}
    for column in COLUMNS:
        signals = [usage[column] for usage in usages if column in usage]
        merged = total(signals) if column in _SUMMED else highest(signals)
        ran = running(course)
        clipped = merged.during(ran) if ran else merged
        if len(clipped):
            result[column] = clipped
    return result


def _entitled(
    reader: RunReader, tasks: Mapping[str, Mapping[str, Any]], course: Sequence[Phase], until: float
) -> Signal:
    shares = []
    for task in tasks:
        found = reader.tuples("SELECT t, entitled_cores FROM shares WHERE task = ? ORDER BY t", (task,))
        table = np.array(found, dtype=float).reshape(-1, 2)
        shares.append(settings(table[:, 0], table[:, 1], until))
    return total(shares).during(running(course))


def _marks(names: Sequence[str]) -> str:
    return ", ".join("?" * len(names))


def _of(reader: RunReader, table: str, tasks: Sequence[str]) -> list[dict[str, Any]]:
    return list(reader.rows(table, f"task IN ({_marks(tasks)})", tasks, "t")) if tasks else []


def _spans(reader: RunReader, tasks: Sequence[str], after: float) -> Iterable[tuple[object, str, float]]:
    where = f"task IN ({_marks(tasks)}) AND seconds IS NOT NULL AND t >= ?"
    sql = f"SELECT task, t, step, name, seconds FROM spans WHERE {where}"
    return (((task, t, step), name, seconds) for task, t, step, name, seconds in reader.tuples(sql, [*tasks, after]))


def _progress(reader: RunReader, tasks: Sequence[str]) -> Progress:
    sql = (
        "SELECT t, step, epoch, samples, loss, coalesce(count, 1), coalesce(nan, 0), epochs, task, metrics"
        f" FROM progress WHERE task IN ({_marks(tasks)}) ORDER BY t, rowid"
    )
    found = reader.tuples(sql, tasks)
    table: Array = np.array([row[:8] for row in found], dtype=float).reshape(-1, 8)
    metrics: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in found:
        if row[9]:
            for name, value in _object(row[9]).items():
                if isinstance(value, int | float) and np.isfinite(value):
                    metrics[name].append((row[0], float(value)))
    epochs = table[np.isfinite(table[:, 7]), 7]
    return Progress(
        t=table[:, 0],
        step=table[:, 1],
        epoch=table[:, 2],
        samples=table[:, 3],
        loss=table[:, 4],
        count=table[:, 5],
        task=tuple(row[8] for row in found),
        not_numbers=int(table[:, 6].sum()),
        epochs=int(epochs[-1]) if len(epochs) else None,
        metrics={
            name: (np.array([t for t, _ in pairs]), np.array([v for _, v in pairs])) for name, pairs in metrics.items()
        },
    )
