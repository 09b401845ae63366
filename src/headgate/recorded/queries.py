"""Single figures from a run's store, without reading the whole run."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from headgate.model.identifiers import TaskOfRun
from headgate.recorded.reader import RunReader
from headgate.recorded.usage import EMPTY, Array, Signal, readings, total

Counter = Literal["step", "samples", "epoch"]


def mean_cores(
    reader: RunReader, target: str, since: float = 0.0, until: float = math.inf
) -> float:
    """Mean cores of a task or a node over its readings; 0: no readings."""
    sql = "SELECT avg(cpu_cores) FROM usage WHERE target = ? AND t BETWEEN ? AND ?"
    return float(reader.tuples(sql, (target, since, until))[0][0] or 0.0)


def most_memory(reader: RunReader, target: str) -> int | None:
    """Peak memory of a target in bytes; None: no readings."""
    sql = "SELECT max(memory_bytes) FROM usage WHERE target = ?"
    most = reader.tuples(sql, (target,))[0][0]
    return int(most) if most else None


def cores_of(reader: RunReader, job: str) -> Signal:
    """Cores used by all tasks of a job together, over all attempts."""
    sql = "SELECT target, t, cpu_cores FROM usage WHERE target GLOB ? ORDER BY t"
    tasks: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for target, t, cores in reader.tuples(sql, [f"{job}/*"]):
        tasks[target].append((t, math.nan if cores is None else cores))
    columns = (np.array(task, dtype=float).T for task in tasks.values())
    return total([readings(times, values) for times, values in columns]) if tasks else EMPTY


def mean_cores_together(
    reader: RunReader, tasks: Sequence[str], seconds: float
) -> list[tuple[float, float]]:
    """Mean cores used by tasks together in each stretch of `seconds`, with the time of its last
    reading.
    """
    of_each = (
        "SELECT max(t) AS t, avg(cpu_cores) AS cores, CAST(t / ? AS INT) AS part FROM usage WHERE "
        f"target IN ({', '.join('?' * len(tasks))}) AND cpu_cores IS NOT NULL GROUP BY target, part"
    )
    sql = f"SELECT max(t), sum(cores) FROM ({of_each}) GROUP BY part ORDER BY part"
    return [(float(t), float(cores)) for t, cores in reader.tuples(sql, [seconds, *tasks])]


def steps_of_workers(
    reader: RunReader, job: str, since: float = 0.0
) -> Mapping[TaskOfRun, list[tuple[float, int]]]:
    """Times and steps reported by each worker of a job."""
    sql = (
        "SELECT task, t, step FROM progress WHERE task LIKE ? AND t >= ? AND step IS NOT NULL "
        "ORDER BY t"
    )
    workers: dict[TaskOfRun, list[tuple[float, int]]] = defaultdict(list)
    for name, t, step in reader.tuples(sql, [f"{job}/%", since]):
        if (task := TaskOfRun(name)).name.is_worker:
            workers[task].append((t, step))
    return workers


def last_counts(reader: RunReader, task: str, counter: Counter, since: float, most: int) -> Array:
    """The last reports of a counter, in rows of time and count. For counters other than steps, only
    reports with a loss.
    """
    reported = f"{counter} IS NOT NULL" + (" AND loss IS NOT NULL" if counter != "step" else "")
    sql = (
        f"SELECT t, {counter} FROM progress WHERE task = ? AND {reported} AND t >= ? "
        f"ORDER BY t DESC, rowid DESC LIMIT {most}"
    )
    return np.array(reader.tuples(sql, (task, since))[::-1], dtype=float).reshape(-1, 2)
