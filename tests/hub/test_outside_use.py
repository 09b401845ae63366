"""What others use beside a run's jobs is recorded by who they are and what they use."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.arbiter.records import DiskMoved, ProcessMoved
from headgate.engines.base import LOCAL
from headgate.hub.parts import outside
from headgate.hub.parts.outside import OutsideUse
from headgate.hub.state.runs import LiveRuns
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.events import GpuMemoryUsed, MemoryUsed, TaskExited, TaskStarted
from headgate.model.identifiers import TaskId
from headgate.sampling.outside_programs import PROGRAMS, OutsideProgram
from headgate.sampling.process_use import DiskBytes, ProcessKey

VAE = OutsideProgram("ada", "vae", 7, 0, 0.0, is_mine=False, may_renice=False, job="vae")
GAN = OutsideProgram("ben", "gan.py", 8, 0, 0.0, is_mine=False, may_renice=False)


class Rows:
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.usage: list[tuple[float, str, float]] = []
        self.programs: list[dict[str, Any]] = []
        self.disk_read: list[float] = []

    def add(self, table: str, **row: Any) -> None:
        if table == "meta" and row["key"] == PROGRAMS:
            self.programs = json.loads(row["value"])
        elif "gpu_busy" in row:
            self.usage.append((row["t"], row["target"], row["gpu_busy"]))
        elif "disk_read" in row:
            self.disk_read.append(row["disk_read"])


def test_the_use_of_each_gpu_is_recorded_of_jobs_of_other_users_and_of_programs_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Reader:
        def look(self, own: object, *, has_arbiter: bool) -> list[OutsideProgram]:
            return []

        def moved_by(self, moved: object) -> list[OutsideProgram]:
            return []

        def program_of(self, pid: int) -> OutsideProgram | None:
            return {7: VAE, 8: GAN}.get(pid)

    monkeypatch.setattr(outside, "OutsideProgramsReader", Reader)
    rows, now, on_gpus = Rows(), iter((1.0, 2.0, 3.0)), dict[int, dict[int, float]]()
    run = SimpleNamespace(
        id="r", submission=SimpleNamespace(engine=LOCAL), recorder=rows, clock=lambda: next(now)
    )
    live = cast("LiveRuns", SimpleNamespace(runs={"r": run}))
    node = Node("m", 2, 1 << 30)
    part = OutsideUse(node, live, dict, lambda: on_gpus)
    part.hear(TaskStarted(TaskId("r/a/worker-0"), os.getpid()), ())
    for busy in ({}, {0: {7: 0.6}, 1: {7: 0.2, 8: 0.3, 9: 0.4}}, {}):
        on_gpus = busy
        part.hear(GpuMemoryUsed("m", {}, {}), ())
    assert rows.usage == [
        (1.0, "user:ada:vae/gpu-0@m", 0.0),
        (2.0, "user:ada:vae/gpu-0@m", 0.6),
        (1.0, "user:ada:vae/gpu-1@m", 0.0),
        (2.0, "user:ada:vae/gpu-1@m", 0.2),
        (1.0, "user:others/gpu-1@m", 0.0),
        (2.0, "user:others/gpu-1@m", pytest.approx(0.7)),  # of 9 nothing is seen
        (3.0, "user:ada:vae/gpu-0@m", 0.0),
        (3.0, "user:ada:vae/gpu-1@m", 0.0),
        (3.0, "user:others/gpu-1@m", 0.0),
    ]
    assert rows.programs == []  # not at each sample
    part.hear(TaskExited(TaskId("r/a/worker-0"), Exit(0)), ())
    assert {program["command"] for program in rows.programs} == {"vae", "gan.py"}


def test_bytes_that_the_arbiter_tells_count_at_its_own_rate_and_from_a_run_s_begin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Reader:
        def look(self, own: object, *, has_arbiter: bool) -> list[OutsideProgram]:
            looks.append(has_arbiter)
            return []

        def moved_by(self, moved: dict[ProcessKey, DiskBytes]) -> list[OutsideProgram]:
            return [replace(VAE, disk_read=bytes_moved.read) for bytes_moved in moved.values()]

    looks, now = list[bool](), [100.0]
    monkeypatch.setattr(outside, "OutsideProgramsReader", Reader)
    monkeypatch.setattr(outside, "time", SimpleNamespace(monotonic=lambda: now[0]))
    live = SimpleNamespace(runs={})
    part = OutsideUse(Node("m", 2, 1 << 30), cast("LiveRuns", live), dict, dict)
    told = DiskMoved((ProcessMoved(7, 1, 5000, 0),), 5.0)
    part.moved(told)  # nothing runs: nothing is kept
    rows = {name: Rows() for name in ("old", "new")}

    def begins(name: str) -> None:
        live.runs[name] = SimpleNamespace(
            id=name,
            submission=SimpleNamespace(engine=LOCAL),
            recorder=rows[name],
            clock=lambda: now[0],
        )
        part.hear(TaskStarted(TaskId(f"{name}/a/worker-0"), os.getpid()), ())

    begins("old")
    now[0] = 104.0
    begins("new")
    now[0] = 105.0
    part.moved(told)
    assert [row["disk_read"] for row in rows["old"].programs] == [5000.0]
    assert [row["disk_read"] for row in rows["new"].programs] == [1000.0]
    assert rows["old"].disk_read[-1] == 1000.0  # a second
    now[0] = 110.0
    part.moved(DiskMoved((), 5.0))
    assert rows["old"].disk_read[-1] == 0.0
    now[0] = 130.0  # the arbiter is gone
    part.hear(MemoryUsed("m", 1.0, {}), ())
    assert looks == [True, True, True, True, False]
