"""A run's store, read as a whole: what the page, the terminal and `metrics` are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headgate import runs
from headgate.analysis.jobs import RecordedJob, RecordedNode, Usage
from headgate.analysis.usage import EMPTY, Signal, completed, readings
from headgate.identifiers import TaskOfRun
from headgate.reports import stepping
from headgate.reports.job_rows import cpu_seconds, job, loads
from headgate.telemetry.columns import COLUMNS, Column
from headgate.telemetry.store import RunReader

NODE = "node:"


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A run as it was recorded.

    Args:
        state: `running`, `done` or `interrupted`.
        began: Seconds since the epoch; None where it is not known.
        seconds: How long it took, or has taken so far.
        tasks: Usage by task.
        events: In the order in which they happened.
    """

    id: str
    state: str
    meta: Mapping[str, str]
    began: float | None
    seconds: float
    jobs: tuple[RecordedJob, ...]
    nodes: tuple[RecordedNode, ...]
    tasks: Mapping[TaskOfRun, Usage]
    events: Sequence[Mapping[str, Any]]

    def job(self, name: str) -> RecordedJob | None:
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
        steps = stepping.read(reader, seconds - since if since is not None else 0.0)
        return Recording(
            id=meta.get("id", store.parent.name),
            state=state,
            meta=meta,
            began=began,
            seconds=seconds,
            jobs=tuple(job(reader, row, tasks, events, usage, steps, state, seconds) for row in rows),
            nodes=_nodes(meta, usage),
            tasks={TaskOfRun(target): signals for target, signals in usage.items() if not target.startswith(NODE)},
            events=events,
        )


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _usage(reader: RunReader) -> tuple[dict[str, dict[Column, Signal]], float | None]:
    """Usage by target, and the time of its last reading; only columns that hold anything are read."""
    present = [column for column in COLUMNS if column in reader.columns("usage")]
    counts = reader.tuples(f"SELECT {', '.join(f'count({column})' for column in present)} FROM usage")[0]
    columns = [column for column, count in zip(present, counts) if count]
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
        if (spent := cpu_seconds(task)) is not None:
            of_task = usage.setdefault(task["id"], {})
            cpu = completed(of_task.get("cpu_cores", EMPTY), task["started"], task["ended"], spent)
            if len(cpu):
                of_task["cpu_cores"] = cpu


def _nodes(meta: Mapping[str, str], usage: Mapping[str, Usage]) -> tuple[RecordedNode, ...]:
    described = loads(meta.get("node"))
    nodes = {node["name"]: node for node in (described if isinstance(described, list) else [described]) if node}
    names = dict.fromkeys([*nodes, *(target.removeprefix(NODE) for target in usage if target.startswith(NODE))])
    result = []
    for name in names:
        node = nodes.get(name, {})
        result.append(
            RecordedNode(
                name=name,
                usage=usage.get(NODE + name, {}),
                cores=node.get("cores"),
                memory_bytes=node.get("memory_bytes"),
                nic_bytes_per_second=node.get("nic_bytes_per_second"),
                disk_bytes_per_second=node.get("disk_bytes_per_second"),
                gpus=len(node["gpus"]) if "gpus" in node else None,
                description=str(node.get("cpu_model") or ""),
            )
        )
    return tuple(result)
