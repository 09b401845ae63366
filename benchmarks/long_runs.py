"""How long commands take that look at a long run: `headgate status` must not depend on its length.

    python benchmarks/long_runs.py [--hours 1,4,24] [--jobs 10] [--repetitions 3] [--json PATH]

A made-up store has what a run of so many jobs leaves: a reading a second of each task and of the
node, two reports a second of each job with one sampled step of five spans, and a decision about
each share a minute. Told are CPU seconds of the whole command, so that other load on the machine
counts little.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import _frame

from headgate.recorded.store import Recorder
from headgate.recorded.tables import TABLES

COMMANDS = (("status",), ("explain",))
SPANS = {"input": 0.02, "forward": 0.1, "backward": 0.2, "optimizer": 0.05, "other": 0.01}


def make(store: Path, hours: float, jobs: int) -> None:
    """A run of that length that was interrupted at its end."""
    recorder, end = Recorder(store), int(hours * 3600)
    node = json.dumps([{"name": "made-up", "cores": float(jobs) / 2}])
    for key, value in {
        "id": store.parent.name,
        "began": "0",
        "state": "running",
        "node": node,
    }.items():
        recorder.add("meta", key=key, value=value)
    names = [f"job{index}" for index in range(jobs)]
    for position, name in enumerate(names):
        began = {"started": 1.0, "attempt": 1}
        recorder.add(
            "jobs",
            name=name,
            position=position,
            spec={"name": name},
            state="running",
            submitted=0.0,
            **began,
        )
        recorder.add("tasks", id=f"{name}/worker-0", job=name, node="made-up", **began)
        recorder.add("events", t=1.0, job=name, kind="running", text="started")
    recorder.close()
    rows: dict[str, Iterator[dict[str, object]]] = {
        "usage": _usage(names, end),
        "progress": _progress(names, end),
        "spans": _spans(names, end),
        "shares": _shares(names, end),
    }
    with sqlite3.connect(store) as db:
        for table, made in rows.items():
            columns = [column.split()[0] for column in TABLES[table]]
            marks = ", ".join("?" * len(columns))
            db.executemany(
                f"INSERT INTO {table} VALUES ({marks})",
                ([row.get(c) for c in columns] for row in made),
            )


def _usage(names: list[str], end: int) -> Iterator[dict[str, object]]:
    draw = random.Random(0)
    for t in range(2, end):
        for name in names:
            ran = 0.4 + 0.1 * draw.random()
            read = {
                "cpu_cores": ran,
                "cpu_waiting": 0.4,
                "cpu_ready": 0.9,
                "cpu_throttled": 0.0,
                "memory_bytes": 5e8,
            }
            yield {
                "t": float(t),
                "target": f"{name}/worker-0",
                **read,
                "cache_bytes": 1e7,
                "disk_read": 0.0,
            }
        yield {
            "t": float(t),
            "target": "node:made-up",
            "cpu_cores": 0.46 * len(names),
            "cpu_stolen": 0.0,
        }


def _progress(names: list[str], end: int) -> Iterator[dict[str, object]]:
    for half in range(4, 2 * end):
        for name in names:
            step = half * 2
            yield {
                "t": half / 2,
                "task": f"{name}/worker-0",
                "step": step,
                "loss": 1.0 + 1.0 / step,
                "count": 2,
            }


def _spans(names: list[str], end: int) -> Iterator[dict[str, object]]:
    for t in range(2, end):
        for name in names:
            for span, seconds in SPANS.items():
                yield {
                    "t": float(t),
                    "task": f"{name}/worker-0",
                    "step": 4 * t,
                    "name": span,
                    "seconds": seconds,
                }


def _shares(names: list[str], end: int) -> Iterator[dict[str, object]]:
    for t in range(1, end, 60):
        for name in names:
            share = {"cpu_weight": 100.0, "entitled_cores": 0.5, "threads": 1, "reason": "made up"}
            yield {"t": float(t), "task": f"{name}/worker-0", **share}


def main() -> None:
    parser = _frame.parser(__doc__ or "", 3)
    parser.add_argument("--hours", default="1,4,24", help="lengths of the run")
    parser.add_argument("--jobs", type=int, default=10)
    options = parser.parse_args()
    found = []
    _frame.heading(options.repetitions)
    print(
        f"{'hours':>6}  {'store':>8}  "
        + "  ".join(f"{' '.join(command):>10}" for command in COMMANDS)
    )
    for hours in map(float, options.hours.split(",")):
        with tempfile.TemporaryDirectory() as home:
            store = Path(home) / "runs" / "20260314-090000-000" / "run.sqlite"
            for index in range(options.jobs):
                (store.parent / "jobs" / f"job{index}").mkdir(parents=True)
            make(store, hours, options.jobs)
            took = {
                " ".join(command): _seconds(home, command, options.repetitions)
                for command in COMMANDS
            }
            size = store.stat().st_size
        found.append({"hours": hours, "jobs": options.jobs, "store_bytes": size, "seconds": took})
        cells = "  ".join(f"{statistics.median(times):8.2f} s" for times in took.values())
        print(f"{hours:6g}  {size / 2**20:4.0f} MiB  {cells}")
    _frame.write(options.json, "long_runs", {"runs": found})


def _seconds(home: str, command: tuple[str, ...], repetitions: int) -> list[float]:
    environment = {**os.environ, "HEADGATE_HOME": home}
    took = []
    for _ in range(repetitions):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "headgate", *command],
            env=environment,
            check=True,
            capture_output=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return took


if __name__ == "__main__":
    main()
