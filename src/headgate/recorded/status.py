"""The present state of a run's jobs: the latest records of each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from headgate.model.identifiers import FIRST_WORKER, TaskName, TaskOfRun
from headgate.recorded import at_stake, runs
from headgate.recorded.reader import RunReader
from headgate.recorded.results import trials_of
from headgate.recorded.rows import JobRow, TaskRow
from headgate.recorded.runs import JobSummary, RunSummary
from headgate.recorded.tables import NODE
from headgate.sampling.columns import Column

_USED: tuple[Column, ...] = (
    "cpu_cores",
    "memory_bytes",
    "gpu_busy",
    "gpu_memory_bytes",
    "net_in",
    "net_out",
)
_GRANTED = ("entitled_cores", "threads", "cpu_weight", "cpu_cap_cores", "gpu_fraction")
_STEPS = ("step", "epoch", "epochs", "steps")
OF_NODE: tuple[Column, ...] = (*_USED, "disk_read", "disk_write", "psi_cpu", "psi_memory", "psi_io")
"""What is read of a node; see `NodeReading`."""
_SUMMED = ("cpu_cores", "memory_bytes", "gpu_memory_bytes")


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """A task of a job's last attempt: its node, its share and its latest use.

    `gpus` are numbers on its node; rates are in bytes a second; `gpu_busy` is a fraction of time.
    """

    task: TaskName
    node: str
    pid: int | None
    state: str
    entitled_cores: float | None
    threads: int | None
    cpu_weight: float | None
    cpu_cap_cores: float | None
    gpu_fraction: float | None
    gpus: tuple[int, ...]
    cpu_cores: float | None
    memory_bytes: float | None
    gpu_busy: float | None
    gpu_memory_bytes: float | None
    net_in: float | None
    net_out: float | None


@dataclass(frozen=True, slots=True)
class NodeReading:
    """A node of a run: what it has, and what was used of it last by all that runs there.

    Rates are in bytes a second, `gpu_busy` is a part of time, and so are `psi_cpu`, `psi_memory`
    and `psi_io`, in which a task waited for that; None where it is not known.
    """

    name: str
    description: str
    cores: float | None
    gpus: int | None
    total_memory_bytes: float | None
    nic_bytes_per_second: float | None
    cpu_cores: float | None
    memory_bytes: float | None
    disk_read: float | None
    disk_write: float | None
    net_in: float | None
    net_out: float | None
    gpu_busy: float | None
    gpu_memory_bytes: float | None
    psi_cpu: float | None
    psi_memory: float | None
    psi_io: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus(JobSummary):
    """A job with its latest progress, share and use.

    Among several workers, steps come from the first running worker that reports any, and the loss
    is the mean of their latest ones.

    Args:
        nan: Whether the latest loss was NaN or infinite.
        decision: Time (seconds of the run) and reason of the latest decision about its share.
        verdict: What held it back most; None: unknown.
        verified: Whether its workers train the same as one; None: unknown.
        at_stake: What a stop now would lose of it; see `AtStake`. None: its script has saved no
            checkpoint by itself.
        trial: Its sweep and its parameters in that; see `SweepTrial`. None: it is of no sweep.
    """

    step: int | None
    epoch: int | None
    epochs: int | None
    steps: int | None
    loss: float | None
    nan: bool
    entitled_cores: float | None
    threads: int | None
    cpu_weight: float | None
    cpu_cap_cores: float | None
    gpu_fraction: float | None
    cpu_cores: float | None
    memory_bytes: float | None
    gpu_memory_bytes: float | None
    gpus: tuple[int, ...]
    gpu_busy: float | None
    decision: Mapping[str, Any] | None
    tasks: tuple[TaskStatus, ...]
    verdict: Mapping[str, Any] | None = None
    verified: Mapping[str, Any] | None = None
    at_stake: Mapping[str, Any] | None = None
    trial: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus(RunSummary):
    """A run with the state of its jobs, and its warnings.

    A warning has `t`, `job`, `task`, `text` and `why`: kind and facts of its reason.
    """

    jobs: tuple[JobStatus, ...] = ()
    warnings: tuple[Mapping[str, Any], ...] = ()


def read(
    folder: Path,
    choose: Callable[[Sequence[JobSummary]], Sequence[JobSummary]] = lambda jobs: jobs,
    verdicts: Mapping[str, Mapping[str, Any]] | None = None,
) -> RunStatus:
    """Read the status of a run.

    Args:
        folder: The run's folder.
        choose: Selects the jobs to read.
        verdicts: What held jobs back, by name.

    Raises:
        NotFoundError, StorageError: The store does not exist, or cannot be read.
    """
    summary, stakes = runs.summary(folder), at_stake.of_run(folder)
    with RunReader(folder / runs.STORE) as reader:
        verified, trials = (
            {row.name: row.verified for row in reader.records(JobRow)},
            trials_of(reader),
        )
        jobs = [
            replace(
                _job(reader, job, verified.get(job.name), (verdicts or {}).get(job.name)),
                trial=trials.get(job.name),
            )
            for job in choose(summary.jobs)
        ]
        jobs = [
            replace(job, at_stake=asdict(stakes[job.name])) if job.name in stakes else job
            for job in jobs
        ]
        warnings = [
            {**{name: row[name] for name in ("t", "job", "task", "text")}, "why": _why(row)}
            for row in reader.rows("events", "kind = 'warning'", order="rowid")
        ]
    facts = _fields(summary, RunSummary) | {"jobs": tuple(jobs), "warnings": tuple(warnings)}
    return RunStatus(**facts)


def nodes(folder: Path) -> tuple[NodeReading, ...]:
    """The nodes of a run, with what was used of each last.

    Raises:
        NotFoundError, StorageError: Its store is not there, or cannot be read.
    """
    from headgate.recorded.descriptions import RunDescription
    from headgate.recorded.recording import recorded_nodes  # takes its time

    with RunReader(folder / runs.STORE) as reader:
        described = recorded_nodes(
            RunDescription.read(reader), {key: {} for key in reader.keys("usage")}
        )
        return tuple(
            NodeReading(
                name=node.name,
                description=node.description,
                cores=node.cores,
                gpus=node.gpus,
                total_memory_bytes=node.memory_bytes,
                nic_bytes_per_second=node.nic_bytes_per_second,
                **_newest(reader, "usage", "target", NODE + node.name, OF_NODE),
            )
            for node in described
        )


def _fields(record: object, kind: type[Any]) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(kind)}


def _job(
    reader: RunReader, job: JobSummary, verified: str | None, verdict: Mapping[str, Any] | None
) -> JobStatus:
    attempt = "SELECT max(attempt) FROM tasks WHERE job = ?"
    rows = list(reader.records(TaskRow, f"job = ? AND attempt = ({attempt})", [job.name, job.name]))
    tasks = tuple(
        _task(reader, row) for row in sorted(rows, key=lambda row: row.of_run().name.order)
    )
    left = [task for task in tasks if task.state == "running"] or tasks
    names = [TaskOfRun.of(job.name, task.task) for task in left]
    every = [TaskOfRun.of(job.name, task.task) for task in tasks]
    workers = [task for task in names if task.name.is_worker]
    # an evaluator outlives the workers
    workers = workers or [task for task in every if task.name.is_worker]
    workers = workers or names or [TaskOfRun.of(job.name, FIRST_WORKER)]
    steps = (_newest(reader, "progress", "task", worker, _STEPS) for worker in workers)
    known_steps = (columns for columns in steps if set(columns.values()) != {None})
    last = [loss for worker in workers if (loss := _last_loss(reader, worker)) is not None]
    losses = [(loss, count) for loss, count, _ in last if loss is not None]
    count = sum(n for _, n in losses)
    gpus = {gpu for task in left for gpu in task.gpus}
    busy = (task.gpu_busy for task in left if task.gpu_busy is not None)
    shared = ("cpu_weight", "cpu_cap_cores", "gpu_fraction")
    facts: dict[str, Any] = {
        **next(known_steps, dict.fromkeys(_STEPS)),
        **{name: _sum(left, name) for name in ("entitled_cores", "threads", *_SUMMED)},
        **{name: getattr(left[0], name) if left else None for name in shared},
    }
    return JobStatus(
        **_fields(job, JobSummary),
        **facts,
        loss=sum(loss * n for loss, n in losses) / count if count else None,
        nan=any(nan for *_, nan in last),
        gpus=tuple(sorted(gpus)),
        gpu_busy=max(busy, default=None),
        decision=_decision(reader, names),
        tasks=tasks,
        verdict=verdict,
        verified=json.loads(verified) if verified else None,
    )


def _task(reader: RunReader, row: TaskRow) -> TaskStatus:
    granted = reader.query(
        "SELECT * FROM shares WHERE task = ? ORDER BY rowid DESC LIMIT 1", [row.id]
    )
    return TaskStatus(
        task=row.of_run().name,
        node=row.node or "",
        pid=row.pid,
        state="running" if row.ended is None else "ended",
        gpus=tuple(sorted(row.held_gpus())),
        **{name: granted[0].get(name) if granted else None for name in _GRANTED},
        **_newest(reader, "usage", "target", row.id, _USED),
    )


def _newest(
    reader: RunReader, table: str, column: str, id: str, names: Sequence[str]
) -> dict[str, Any]:
    """The last known value of each of these columns, for one task."""
    # Recent values are in the newest rows; a table of weeks is not searched for values that never
    # existed.
    rows = reader.query(
        f"SELECT * FROM {table} WHERE {column} = ? ORDER BY t DESC, rowid DESC LIMIT 100", [id]
    )
    return {
        name: next((row[name] for row in rows if row[name] is not None), None) for name in names
    }


def _decision(reader: RunReader, tasks: Sequence[str]) -> dict[str, Any] | None:
    marks = ", ".join("?" * len(tasks))
    sql = (
        f"SELECT * FROM shares WHERE task IN ({marks}) AND reason IS NOT NULL ORDER BY rowid DESC "
        "LIMIT 1"
    )
    rows = reader.query(sql, tasks)
    return {"t": rows[0]["t"], "reason": rows[0]["reason"], "why": _why(rows[0])} if rows else None


def _why(row: Mapping[str, Any]) -> Any:
    """Kind and facts of a row's reason; None: an earlier version wrote the row."""
    text = row.get("why")
    return json.loads(text) if text else None


def _last_loss(reader: RunReader, id: str) -> tuple[float | None, int, bool] | None:
    """The last loss of a task, the number of losses in that mean, and whether it was NaN or
    infinite.
    """
    rows = reader.query(
        "SELECT * FROM progress WHERE task = ? AND (loss IS NOT NULL OR nan) "
        "ORDER BY t DESC, rowid DESC LIMIT 1",
        [id],
    )
    if not rows:
        return None
    [row] = rows
    return None if row["nan"] else row["loss"], row["count"] or 1, bool(row["nan"])


def _sum(tasks: Iterable[TaskStatus], name: str) -> Any:
    known = [value for task in tasks if (value := getattr(task, name)) is not None]
    return sum(known) if known else None
