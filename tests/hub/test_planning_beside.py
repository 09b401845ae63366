"""Plans are made beside the hub's loop where that takes its time, and what cannot be planned costs
nothing else.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from tests.planning.jobs import profile

from headgate.hub.parts.planning import InitialPlanner
from headgate.hub.state.run import LiveRun
from headgate.hub.state.runs import LiveRuns
from headgate.hub.submission import Submission
from headgate.model.actions import PlanJob
from headgate.model.cluster import Cluster, Node
from headgate.model.events import Event, JobPlanned, StopRequested
from headgate.model.identifiers import JobId
from headgate.model.jobs import Job
from headgate.model.records import text_of


class PlanningHub:
    """An `InitialPlanner` of a run, and what it tells the controller."""

    def __init__(
        self, home: Path, jobs: int, nodes: int, mode: Literal["run", "profile"] = "run"
    ) -> None:
        self.told: list[Event] = []
        self.cluster = Cluster(tuple(Node(f"n{i}", 2.0, 2**30) for i in range(nodes)))
        self.jobs = tuple(Job(name=f"j{i}", run="true") for i in range(jobs))
        submission = Submission(self.jobs, {}, str(home), ("headgate",), mode=mode)
        self.run = LiveRun(submission, self.cluster.nodes, "none", time.monotonic(), lambda _: None)
        live_runs = LiveRuns(lambda: "none", lambda _: None)
        live_runs.runs[self.run.id] = self.run
        nodes_of = SimpleNamespace(cluster=lambda _: self.cluster)
        here = self.cluster.nodes[0]
        self._initial_planner = InitialPlanner(
            home, live_runs, cast(Any, nodes_of), here, self.told.append, lambda job, plan: None
        )

    def asks(self) -> None:
        """Ask for plans of all jobs."""
        for job in self.jobs:
            self._initial_planner.plan(PlanJob(JobId(f"{self.run.id}/{job.name}"), job, 1))

    async def settles(self) -> None:
        """Wait until each job has its answer."""
        async with asyncio.timeout(60):
            while len(self.told) < len(self.jobs):
                await asyncio.sleep(0.01)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize(
    ("jobs", "nodes", "at_once"), [(1, 3, True), (100, 3, True), (1, 2000, False), (60, 10, False)]
)
def test_plans_that_take_long_are_made_beside_the_loop(
    home: Path, jobs: int, nodes: int, at_once: bool
) -> None:
    async def plan() -> None:
        hub = PlanningHub(home, jobs, nodes)
        hub.asks()
        await asyncio.sleep(0)
        assert len(hub.told) == (jobs if nodes == 3 else 0)
        await hub.settles()
        assert all(isinstance(told, JobPlanned) for told in hub.told)
        hub.run.close()

    asyncio.run(plan())


def test_a_stored_profile_counts_for_a_run_and_not_for_one_that_measures(home: Path) -> None:
    known = text_of(profile(dense_bytes=1_000_000, memory_peak_bytes=64 << 20))

    async def plan(mode: Literal["run", "profile"]) -> list[int]:
        hub = PlanningHub(home, 1, 3, mode)
        hub.run.jobs["j0"].profile = known
        hub.asks()
        await hub.settles()
        hub.run.close()
        return [told.plan.tasks for told in hub.told if isinstance(told, JobPlanned)]

    [tasks] = asyncio.run(plan("run"))
    assert tasks > 1
    assert asyncio.run(plan("profile")) == [1]


def test_a_job_that_cannot_be_planned_is_stopped_and_says_so(home: Path) -> None:
    async def plan() -> None:
        hub = PlanningHub(home, 1, 3)
        live = hub.run.jobs["j0"]
        live.profile = "{"
        hub.asks()
        await hub.settles()
        assert hub.told == [StopRequested(JobId(f"{hub.run.id}/j0"))]
        hub.run.close()

    asyncio.run(plan())
