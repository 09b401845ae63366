"""Read a run's whole store, for the page, the terminal and `metrics`."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from headgate.model.identifiers import TaskOfRun
from headgate.model.job_states import FAULTS
from headgate.recorded import runs, stepping
from headgate.recorded.descriptions import NodeDescription, RunDescription
from headgate.recorded.job_rows import job, used_beside
from headgate.recorded.jobs import Neighbour, RecordedJob, RecordedNode, Usage
from headgate.recorded.reader import RunReader
from headgate.recorded.results import JobResult, of_store, trials_of
from headgate.recorded.rows import EventRow, JobRow, TaskRow
from headgate.recorded.tables import NEIGHBOUR, NODE, ON_GPU
from headgate.recorded.usage import EMPTY, Signal, completed, readings
from headgate.sampling.columns import COLUMNS, Column
from headgate.scripts import variables

_OfJob = TypeVar("_OfJob", EventRow, TaskRow)
BESIDE: frozenset[Column] = frozenset(
    {"cpu_cores", "disk_read", "disk_write", "net_in", "net_out", "gpu_busy", "gpu_memory_bytes"}
)
"""Columns of neighbours that a job's account needs."""
_MOST_STEPS, _READINGS_A_STEP = 2000, 4
"""Most sampled steps of each task. Each has several rows, and a day of them would take minutes to
read.
"""
_MANY = 4
"""Jobs are left out only if there are this many times more."""
_MANY_JOBS = 40
"""With more jobs than this, of others than the one that matters only their use is read."""
_LAST_ROWS = 1000
"""Number of last rows among which the latest time is, because rows may come a moment late."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A recorded run.

    Args:
        folder: Folder of its store.
        state: `running`, `done` or `interrupted`.
        began: Seconds since the epoch; None: unknown.
        seconds: Its length so far.
        tasks: Use by task.
        events: In the order in which they happened.
        since: Second of the run from which it was read. Jobs and their use begin there at the
            earliest.
        whole: Jobs that were read completely; of others only their use beside these was read. None:
            all were.
        unread: Number of the others.
        results: What its jobs came to; empty if it has no sweep, or few jobs were to be read.
    """

    id: str
    folder: Path
    state: str
    description: RunDescription
    began: float | None
    seconds: float
    jobs: tuple[RecordedJob, ...]
    nodes: tuple[RecordedNode, ...]
    tasks: Mapping[TaskOfRun, Usage]
    events: Sequence[EventRow]
    since: float = 0.0
    whole: frozenset[str] | None = None
    unread: int = 0
    results: tuple[JobResult, ...] = ()

    def job(self, name: str) -> RecordedJob | None:
        return next((job for job in self.jobs if job.name == name), None)


def read(
    store: Path,
    since: float | None = None,
    most: int | None = None,
    few: int | None = None,
    about: str | None = None,
) -> Recording:
    """Read a run's store, also while it is written. Of a long run only some sampled steps are read.

    Args:
        since: Read only the last seconds, as many as this: the time for it does not grow with the
            run. None: all.
        most: Read about this many readings and reports of each task, and a quarter as many sampled
            steps, spread over its time. Means stay exact; extremes may be missed. None: all.
        few: Read only this many jobs completely if there are over four times as many: equal parts
            of running, failed, waiting and other jobs. None: all.
        about: Read only this job completely if there are over 40. None: all.

    Raises:
        NotFoundError: The file does not exist.
        StorageError: It cannot be read.
    """
    with RunReader(store) as reader:
        # checked first: a run that ends right after has written its end by then
        alive = runs.alive(store.parent)
        description = RunDescription.read(reader)
        events = list(reader.records(EventRow, order="t, rowid"))
        rows = list(reader.records(JobRow, order="position, rowid"))
        tasks = list(reader.records(TaskRow))
        times = [
            _latest(reader, "usage"),
            _latest(reader, "progress"),
            *(event.t for event in events[-1:]),
        ]
        times += [time for row in rows for time in (row.submitted, row.started, row.ended)]
        times += [time for task in tasks for time in (task.started, task.ended)]
        latest = max((float(time) for time in times if time is not None), default=0.0)
        seconds, state = max(description.ended or 0.0, latest), description.state
        if state == "running" and not alive:
            state = "interrupted"
        after = max(seconds - since, 0.0) if since is not None else 0.0
        whole_jobs = _chosen(rows, few) if few is not None and len(rows) > _MANY * few else None
        if about is not None and len(rows) > _MANY_JOBS:
            whole_jobs = frozenset({about} & {row.name for row in rows})
        unread = len(rows) - len(whole_jobs) if whole_jobs is not None else 0
        if whole_jobs is not None:
            tasks = _beside(tasks, whole_jobs)
            names = {task.job for task in tasks}.union(whole_jobs)
            rows = [row for row in rows if row.name in names]
        others = {
            task.id for task in tasks if whole_jobs is not None and task.job not in whole_jobs
        }
        usage = _usage(
            reader, after, most, None if whole_jobs is None else [task.id for task in tasks], others
        )
        _complete(usage, [task for task in tasks if (task.started or 0.0) >= after])
        tasks_of, events_of = _by_job(tasks), _by_job(events)
        shell_threads = (variables.read(store.absolute().parent) or {}).get("OMP_NUM_THREADS") or ""
        steps = stepping.read(
            reader, after, _MOST_STEPS if most is None else most // _READINGS_A_STEP
        )
        return Recording(
            id=description.id or store.parent.name,
            folder=store.absolute().parent,
            state=state,
            description=description,
            began=description.began,
            seconds=seconds,
            jobs=tuple(
                job(
                    reader,
                    description,
                    row,
                    tasks_of[row.name],
                    events_of[row.name],
                    usage,
                    steps,
                    state,
                    seconds,
                    after,
                    most,
                    shell_threads,
                )
                if whole_jobs is None or row.name in whole_jobs
                else used_beside(
                    row, tasks_of[row.name], events_of[row.name], usage, seconds, after
                )
                for row in rows
            ),
            nodes=recorded_nodes(description, usage),
            tasks={
                TaskOfRun(target): signals
                for target, signals in usage.items()
                if not target.startswith((NODE, NEIGHBOUR))
            },
            events=events,
            since=after,
            whole=whole_jobs,
            unread=unread,
            results=of_store(reader, alive) if few is None and trials_of(reader) else (),
        )


def _chosen(rows: Sequence[JobRow], few: int) -> frozenset[str]:
    """Names of the few jobs, among very many, that are read completely."""
    kinds: list[list[str]] = [[], [], [], []]
    for row in rows:
        state = row.state
        if state in ("running", "paused", "stopping"):
            kind = 0
        elif state in FAULTS:
            kind = 1
        else:
            kind = 2 if state == "waiting" else 3
        kinds[kind].append(row.name)
    left, chosen = few, list[str]()
    for place, names in enumerate(kinds):
        chosen += names[: left // (len(kinds) - place)]
        left = few - len(chosen)
    return frozenset(chosen)


def _beside(tasks: Sequence[TaskRow], whole: Collection[str]) -> list[TaskRow]:
    """The tasks of some jobs, and those of others that ran at the same time."""
    began = min((task.started or 0.0 for task in tasks if task.job in whole), default=math.inf)
    ended = [
        task.ended if task.ended is not None else math.inf for task in tasks if task.job in whole
    ]
    end = max(ended, default=0.0)
    return [
        task
        for task in tasks
        if task.job in whole
        or ((task.ended is None or task.ended > began) and (task.started or 0.0) < end)
    ]


def _by_job(rows: Sequence[_OfJob]) -> dict[str | None, list[_OfJob]]:
    """Rows by the name of their job, in their order."""
    by_job: dict[str | None, list[_OfJob]] = defaultdict(list)
    for row in rows:
        by_job[row.job].append(row)
    return by_job


def _latest(reader: RunReader, table: str) -> float | None:
    """The time of its last rows."""
    latest = reader.tuples(
        f"SELECT max(t) FROM (SELECT t FROM {table} ORDER BY rowid DESC LIMIT {_LAST_ROWS})"
    )[0][0]
    return float(latest) if latest is not None else None


def _usage(
    reader: RunReader,
    after: float,
    most: int | None,
    tasks: Sequence[str] | None,
    others: Collection[str],
) -> dict[str, dict[Column, Signal]]:
    """Use by target after a time, in columns with any data.

    Args:
        tasks: Tasks to read, besides the nodes; None: all.
        others: Tasks without an account of their own: only columns that concern their neighbours
            are read.
    """
    columns = [column for column in COLUMNS if column in reader.columns("usage")]
    if most is None:  # a day of numbers: read no unneeded column
        counts = ", ".join(f"count({column})" for column in columns)
        held = reader.tuples(
            f"SELECT {counts} FROM usage WHERE rowid >= ?", (reader.first_row("usage", after),)
        )[0]
        columns = [column for column, count in zip(columns, held) if count]
    result: dict[str, dict[Column, Signal]] = {}
    targets = reader.keys("usage")
    if tasks is not None:
        targets = [*(name for name in targets if name.startswith((NODE, NEIGHBOUR))), *tasks]
    for target in targets:
        read = [column for column in columns if target not in others or column in BESIDE]
        rows = reader.thinned("usage", target, ", ".join(["t", *read]), after=after, most=most)
        table = np.array(rows, dtype=float).reshape(-1, 1 + len(read))
        signals = {
            column: readings(table[:, 0], table[:, index + 1]) for index, column in enumerate(read)
        }
        if len(table):
            result[target] = {column: signal for column, signal in signals.items() if len(signal)}
    return result


def _complete(usage: dict[str, dict[Column, Signal]], tasks: Sequence[TaskRow]) -> None:
    """Add CPU time that no reading covered, mostly before the first and after the last one of an
    attempt.
    """
    for task in tasks:
        attempt, spent = task.ended_attempt(), task.counted("cpu_seconds")
        if attempt is not None and spent is not None:
            of_task = usage.setdefault(task.id, {})
            cpu = completed(of_task.get("cpu_cores", EMPTY), *attempt, spent)
            if len(cpu):
                of_task["cpu_cores"] = cpu


def recorded_nodes(
    description: RunDescription, usage: Mapping[str, Usage]
) -> tuple[RecordedNode, ...]:
    """The nodes of a run, with what was used of each, by target."""
    nodes = {node.name: node for node in description.nodes}
    for target in usage:
        if target.startswith(NODE):
            nodes.setdefault(name := target.removeprefix(NODE), NodeDescription(name=name))
    neighbours: defaultdict[str, dict[str, Neighbour]] = defaultdict(dict)
    for target, signals in usage.items():
        if target.startswith(NEIGHBOUR):
            who, _, name = target.removeprefix(NEIGHBOUR).rpartition("@")
            job, _, gpu = who.partition(ON_GPU)
            neighbour = neighbours[name].setdefault(job, Neighbour())
            if gpu.isdigit():
                by_gpu = {**neighbour.by_gpu, int(gpu): signals.get("gpu_busy", EMPTY)}
                neighbours[name][job] = replace(neighbour, by_gpu=by_gpu)
            else:
                neighbours[name][job] = replace(neighbour, usage=signals)
    return tuple(
        RecordedNode(
            name=node.name,
            usage=usage.get(NODE + node.name, {}),
            cores=node.cores,
            memory_bytes=node.memory_bytes,
            nic_bytes_per_second=node.nic_bytes_per_second,
            disk_bytes_per_second=node.disk_bytes_per_second,
            gpus=len(node.gpus) if node.gpus is not None else None,
            gpu_bytes=node.gpu_bytes,
            description=node.cpu_model,
            core_gflops=node.core_gflops,
            neighbours=neighbours[node.name],
        )
        for node in nodes.values()
    )
