"""A run of Headgate as a trace: what its jobs did, without what the others did to them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from headgate.analysis.usage import EMPTY, Signal, readings, total
from headgate.errors import UsageError
from headgate.simulation.traces import Trace, TraceJob, made
from headgate.telemetry.store import RunReader

_LOSSES = 500
"""Points of a loss curve that are kept: a policy sees means, not steps."""
_ONE_CORE = 1.2
"""Cores that one thread is read to use at most: readings are not exact."""


def read(path: Path) -> Trace:
    """The jobs of a run that came to an end, from its folder or its `run.sqlite`.

    A job's work is the CPU time that it used; it is taken to be able to use as many cores as it ever did between two
    readings. What one of a single task used before it told anything or used more than one core, when it imported its
    framework, it does on one core. One that had GPUs to itself is taken to run as long as it did. Jobs that were not
    done are left out.

    Raises:
        NotFoundError: There is no such run.
        StorageError: It cannot be read.
        UsageError: None of its jobs was done.
    """
    store = path / "run.sqlite" if path.is_dir() else path
    with RunReader(store) as reader:
        jobs = [job for row in reader.rows("jobs", order="position") if (job := _job(reader, row)) is not None]
    if not jobs:
        raise UsageError(f"{path} has no job that was done; expected a run with at least one")
    return made(store.absolute().parent.name, jobs)


def _job(reader: RunReader, row: dict[str, Any]) -> TraceJob | None:
    if row["state"] != "done" or row["started"] is None or row["ended"] is None:
        return None
    name, spec = row["name"], json.loads(row["spec"] or "{}")
    limits = spec.get("limits") or {}
    used = _cores(reader, name)
    core_seconds = max(used.integral, _cpu_seconds(reader, name))
    seconds = row["ended"] - row["started"]
    gpus = int(limits.get("gpus") or 0)
    cores = used.maximum or core_seconds / max(seconds, 1e-9) or 1.0
    progress = list(reader.rows("progress", "task GLOB ?", [f"{name}/*"], order="t"))
    startup = None
    if not gpus and core_seconds > 0:
        tasks = {each["id"] for each in reader.rows("tasks", "job = ?", [name])}
        startup = _startup(used, progress[0]["t"]) if progress and len(tasks) == 1 else 0.0
        seconds = (core_seconds - startup) / cores
    return TraceJob(
        name=name,
        submitted=row["started"],
        seconds=max(seconds, 1e-3),
        gpus=gpus,
        cores=cores,
        model=name,
        priority=float(spec.get("priority") or 1.0),
        memory_bytes=limits.get("memory_bytes"),
        steps=max((each["step"] for each in progress if each["step"] is not None), default=None),
        epochs=max((each["epochs"] for each in progress if each["epochs"] is not None), default=None),
        losses=_losses(progress, used, startup or 0.0, row["started"], row["ended"]),
        startup_core_seconds=startup,
    )


def _startup(used: Signal, told: float) -> float:
    """Core-seconds until the first report, or until more than one core is used for the first time."""
    wide = used.start[used.value > _ONE_CORE]
    return float(used.cumulative(np.array([min([told, *wide[:1]])]))[0])


def _cores(reader: RunReader, job: str) -> Signal:
    rows = reader.tuples("SELECT target, t, cpu_cores FROM usage WHERE target GLOB ? ORDER BY t", [f"{job}/*"])
    tasks: dict[str, list[tuple[float, float]]] = {}
    for target, t, cores in rows:
        tasks.setdefault(target, []).append((t, math.nan if cores is None else cores))
    columns = (np.array(each, dtype=float).T for each in tasks.values())
    return total([readings(times, values) for times, values in columns]) if tasks else EMPTY


def _cpu_seconds(reader: RunReader, job: str) -> float:
    exits = [row["exit"] for row in reader.rows("tasks", "job = ?", [job])]
    return sum(float(json.loads(text).get("cpu_seconds") or 0.0) for text in exits if text)


def _losses(
    progress: list[dict[str, Any]], used: Signal, startup: float, started: float, ended: float
) -> tuple[tuple[float, float], ...]:
    """Losses by the fraction of the work after its startup that was done."""
    points = [(row["t"], row["loss"]) for row in progress if row["loss"] is not None]
    if not points:
        return ()
    points = points[:: max(math.ceil(len(points) / _LOSSES), 1)]
    at = np.array([t for t, _ in points])
    whole = used.integral - startup
    done = (used.cumulative(at) - startup) / whole if whole > 0 else (at - started) / max(ended - started, 1e-9)
    return tuple((float(min(max(f, 0.0), 1.0)), float(loss)) for f, (_, loss) in zip(done, points, strict=True))
