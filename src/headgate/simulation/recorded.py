"""Turn a run of Headgate into a trace: the work of its jobs, without the influence of other
jobs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from headgate.model.errors import UsageError
from headgate.model.jobs import Job
from headgate.model.profiles import Profile
from headgate.model.progress_rule import ProgressRule
from headgate.recorded.descriptions import RunDescription
from headgate.recorded.queries import cores_of
from headgate.recorded.reader import RunReader
from headgate.recorded.rows import JobRow, ProgressRow, ShareRow, TaskRow
from headgate.recorded.usage import Array, Signal, completed
from headgate.simulation.traces import Trace, TraceJob, made

_LOSSES = 500
"""Most points of a loss curve: a policy sees means, not steps."""
_ONE_CORE = 1.2
"""Highest reading of a single thread: readings are inexact."""
_CLEARLY = 0.9
"""A job below this fraction of its available cores is not held back."""
_LEAST_SECONDS = 3.0
"""Least unrestricted readings that show a job's use."""
_SELDOM = 0.1
"""If a job is held back for at most this fraction of time, all its readings count."""
_HIGH = 0.9
"""Quantile of a held-back job's use that counts as the most it can use: single readings are far
off.
"""


def read(path: Path) -> Trace:
    """Read the completed jobs of a run from its folder or its `run.sqlite`.

    A job's work is its CPU time. It can use as many cores as it used on average while nothing held
    it back, or else at best. For a job of one task, the use before its first report, or before it
    used more than one core, counts as startup on one core. A job of several tasks has its last
    number of tasks. A job with exclusive GPUs keeps its run time. It arrives when it could have
    started, even if it then waited for room. Jobs that were not done are left out.

    Raises:
        NotFoundError: There is no such run.
        StorageError: It cannot be read.
        UsageError: None of its jobs was done.
    """
    store = path / "run.sqlite" if path.is_dir() else path
    with RunReader(store) as reader:
        rows = list(reader.records(JobRow, order="position"))
        ended = {row.name: row.ended for row in rows}
        jobs = [job for row in rows if (job := _job(reader, row, ended)) is not None]
    if not jobs:
        raise UsageError(f"{path} has no job that was done; expected a run with at least one")
    return made(store.absolute().parent.name, jobs)


def _job(reader: RunReader, row: JobRow, ended: Mapping[str, float | None]) -> TraceJob | None:
    if row.state != "done" or row.started is None or row.ended is None:
        return None
    name, spec, profile = row.name, row.job(), row.cost()
    limits, tasks = spec.limits, list(reader.records(TaskRow, "job = ?", [name]))
    cores_used = cores_of(reader, name)
    spent = sum(task.counted("cpu_seconds") or 0.0 for task in tasks)
    # no reading covers its first moments
    used = completed(cores_used, row.started, row.ended, spent)
    core_seconds, seconds = max(used.integral, spent), row.ended - row.started
    last = max((task.attempt or 0 for task in tasks), default=0)
    at_last = [task.of_run() for task in tasks if (task.attempt or 0) == last]
    gpus = (limits.gpus or 0) * max(sum(task.name.is_worker for task in at_last), 1)
    progress = list(reader.records(ProgressRow, "task GLOB ?", [f"{name}/*"], order="t"))
    startup, begins = None, row.started
    if not gpus and core_seconds > 0:
        startup = 0.0
        if progress and len(tasks) == 1:
            begins = _begins(cores_used, progress[0].t)
            startup = float(used.cumulative(np.array([begins]))[0])
    follows = _on_torch(profile)
    cores = (
        _most(reader, name, _from(cores_used, begins), follows)
        or core_seconds / max(seconds, 1e-9)
        or 1.0
    )
    if startup is not None:
        # A job that mostly waited takes no longer alone than it took: readings may have missed its
        # computing.
        seconds = min((core_seconds - startup) / cores, row.ended - begins)
    # the worker whose reports count for the job
    lead = min((report.task for report in progress), default="")
    points = [report for report in progress if report.loss is not None and report.task == lead]
    points = points[:: max(math.ceil(len(points) / _LOSSES), 1)]
    foretold = _goes_by_losses(spec.progress)
    return TraceJob(
        name=name,
        submitted=min(_due(row.submitted or 0.0, spec, ended), row.started),
        seconds=max(seconds, 1e-3),
        gpus=gpus,
        cores=cores,
        workers=max(len(at_last), 1),
        model=name,
        priority=spec.priority,
        cores_limit=limits.cores,
        memory_bytes=limits.memory_bytes,
        gpu_memory_bytes=limits.gpu_memory_bytes,
        share=spec.share,
        threads_follow=follows,
        steps=max((report.step for report in progress if report.step is not None), default=None),
        epochs=max(
            (report.epochs for report in progress if report.epochs is not None), default=None
        ),
        losses=_losses(points, used, startup or 0.0, row.started, row.ended),
        told=tuple((point.step, point.epoch) for point in points) if foretold else (),
        tells_parts=profile is not None and profile.framework == "torch",
        startup_core_seconds=startup,
    )


def _due(submitted: float, spec: Job, ended: Mapping[str, float | None]) -> float:
    """When a job could have started: after its delay, or after the jobs that it comes after."""
    ends = [end for name in spec.forerunners if (end := ended.get(name)) is not None]
    return max([submitted, *ends]) + spec.at


def _begins(used: Signal, time: float) -> float:
    """When a job begins its work: at its first report, or when it first uses more than one core."""
    return float(min([time, *used.start[used.value > _ONE_CORE][:1]]))


def _from(used: Signal, begins: float) -> Signal:
    """Readings without those before a time; all if there are none after it."""
    kept = used.start >= begins
    return Signal(used.start[kept], used.end[kept], used.value[kept]) if kept.any() else used


def _on_torch(profile: Profile | None) -> bool:
    """Whether a job's thread count follows its share. It does for PyTorch with a library of
    Headgate's, which also profiles the job. TensorFlow, JAX and other scripts keep their initial
    threads.
    """
    if profile is None:
        return False
    backend = profile.framework_version.partition(" on ")[2]
    return profile.framework == "torch" or backend.startswith("torch ")


def _goes_by_losses(rule: ProgressRule) -> bool:
    """Whether a job's end depends only on its losses and epochs: not on another metric, a goal or
    early stopping.
    """
    return rule.metric == "loss" and rule.goal is None and rule.stopping is None


# --- use ------------------------------------------------------------------------------------------


def _most(reader: RunReader, job: str, used: Signal, follows: bool) -> float | None:
    """Cores that a job can use: its mean use while alone, or always if it was seldom held back;
    else its best use. None: unknown.
    """
    seconds, middle = used.end - used.start, (used.start + used.end) / 2
    if not seconds.sum() > 0:
        return None
    room, free = _room(reader, job, middle, follows)
    if seconds[free].sum() >= _LEAST_SECONDS:
        return float(np.average(used.value[free], weights=seconds[free]))
    held = ~free & (used.value >= _CLEARLY * room)
    if seconds[held].sum() <= _SELDOM * seconds.sum():
        return float(np.average(used.value, weights=seconds))
    order = np.argsort(used.value)
    passed = np.cumsum(seconds[order])
    return float(used.value[order][np.searchsorted(passed, _HIGH * passed[-1])])


def _room(
    reader: RunReader, job: str, at: Array, follows: bool
) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Cores available to a job at some times regardless of others (0: unknown), and whether it was
    alone: with all cores of its nodes and threads for them.
    """
    cores = {node.name: node.cores or 0.0 for node in RunDescription.read(reader).nodes}
    tasks = list(reader.records(TaskRow))
    node_of = {task.id: task.node for task in tasks if task.job == job}
    room, alone = np.zeros_like(at), np.ones(len(at), dtype=bool)
    for task in tasks:
        if task.job != job and task.node in node_of.values() and task.started is not None:
            alone &= (at < task.started) | (at > (task.ended or math.inf))
    for id, node in node_of.items():
        rows = list(reader.records(ShareRow, "task = ?", [id], order="t"))
        if not rows:
            continue
        entitled = np.array([row.entitled_cores for row in rows], dtype=float)
        array = np.array([row.threads for row in rows], dtype=float)
        had = array if follows else np.full_like(array, array[0])
        # A task without a weight is entitled to all cores, and so are the others.
        sure = np.where(
            [row.cpu_weight is not None for row in rows], np.minimum(entitled, had), 0.0
        )
        has_whole_node = (had >= array) & (entitled >= _CLEARLY * cores.get(node or "", 0.0))
        last = np.maximum(np.searchsorted([row.t for row in rows], at, side="right") - 1, 0)
        room, alone = room + sure[last], alone & has_whole_node[last]
    return room, alone


def _losses(
    points: Sequence[ProgressRow], used: Signal, startup: float, started: float, ended: float
) -> tuple[tuple[float, float], ...]:
    """Losses by the done fraction of the work after startup."""
    at = np.array([point.t for point in points], dtype=float)
    total_work = used.integral - startup
    done = (
        (used.cumulative(at) - startup) / total_work
        if total_work > 0
        else (at - started) / max(ended - started, 1e-9)
    )
    return tuple(
        (float(min(max(f, 0.0), 1.0)), float(point.loss or 0.0))
        for f, point in zip(done, points, strict=True)
    )
