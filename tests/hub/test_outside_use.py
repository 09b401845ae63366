"""What others use beside a run's jobs is recorded by who they are and what they use."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.engines.base import LOCAL
from headgate.hub.parts import outside
from headgate.hub.parts.outside import OutsideUse
from headgate.hub.state.runs import LiveRuns
from headgate.model.cluster import Node
from headgate.model.events import GpuMemoryUsed, TaskStarted
from headgate.model.identifiers import TaskId
from headgate.sampling.outside_programs import PROGRAMS, OutsideProgram

VAE = OutsideProgram("ada", "vae", 7, 0, 0.0, is_mine=False, may_renice=False, job="vae")
GAN = OutsideProgram("ben", "gan.py", 8, 0, 0.0, is_mine=False, may_renice=False)


class Rows:
    """Keeps what is recorded."""

    def __init__(self) -> None:
        self.usage: list[tuple[float, str, float]] = []
        self.programs: list[dict[str, Any]] = []

    def add(self, table: str, **row: Any) -> None:
        if table == "meta" and row["key"] == PROGRAMS:
            self.programs = json.loads(row["value"])
        elif "gpu_busy" in row:
            self.usage.append((row["t"], row["target"], row["gpu_busy"]))


def test_the_use_of_each_gpu_is_recorded_of_jobs_of_other_users_and_of_programs_outside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Reader:
        def look(self, own: object, moved: object) -> list[OutsideProgram]:
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
    assert {program["command"] for program in rows.programs} == {"vae", "gan.py"}
