"""A node comes while jobs wait for an engine to set aside what they take: where they are to start
instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headgate.engines.base import EngineSpec, Slot
from headgate.hub.parts.engines import Engines, TaskReservations
from headgate.hub.parts.nodes import Nodes
from headgate.hub.state.runs import LiveRuns
from headgate.model.actions import StartTask
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.events import NodeJoined, TaskExited, Wake
from headgate.model.identifiers import JobId, TaskId
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shares import Share

ENGINE = EngineSpec("elsewhere")
GIB = 2**30


def node(name: str, cores: float = 2.0) -> Node:
    return Node(name, cores=cores, memory_bytes=8 * GIB)


def plan(*workers: str, servers: tuple[str, ...] = (), **fields: Any) -> Plan:
    strategy: Any = "ps" if servers else "allreduce" if len(workers) > 1 else "single"
    names: dict[str, Any] = {
        "worker_nodes": workers,
        "server_nodes": servers,
        "servers": len(servers),
    }
    return Plan(strategy=strategy, workers=len(workers), batch_per_worker=None, **names, **fields)


class Hub:
    """As much of a hub as it takes, with an engine whose jobs wait when they are said to."""

    def __init__(self, *nodes: Node) -> None:
        self.waiting: set[JobId] = set()
        self.jobs: dict[str, Any] = {}
        self.submission = SimpleNamespace(engine=ENGINE, only=())
        self.run = SimpleNamespace(submission=self.submission)
        live_runs = cast(
            LiveRuns,
            SimpleNamespace(find=lambda id: (self.run, self.jobs[id.split("/")[1]]), runs={}),
        )
        self.given_back: list[str] = []
        engine = SimpleNamespace(
            waiting=lambda: frozenset(self.waiting),
            reserve=self._reserve,
            release=lambda job, attempt, tasks: self.given_back.extend(tasks),
        )
        self.engines = SimpleNamespace(of=lambda _: engine, spec_of=lambda _: ENGINE)
        self.set_aside: dict[str, tuple[str, float]] = {}
        self.nodes = Nodes(node("here"), live_runs, lambda _: None)
        self.nodes.add(ENGINE, cast(Any, SimpleNamespace(nodes=nodes)))
        self.reservations = TaskReservations(
            live_runs, cast(Engines, self.engines), self.nodes, lambda _: None, lambda _: None
        )

    def _reserve(self, job: JobId, attempt: int, slots: Mapping[str, Slot]) -> None:
        self.set_aside |= {task: (slot.node, slot.cores) for task, slot in slots.items()}

    def starts(self, name: str, plan: Plan, waits: bool = False, **limits: Any) -> None:
        """A job is started by a plan; where it `waits`, the engine cannot set aside what it
        takes.
        """
        spec = Job(name=name, run="true", limits=Limits(**limits))
        self.jobs[name] = SimpleNamespace(
            spec=spec, attempt=1, current=SimpleNamespace(plan=plan, tasks={})
        )
        tasks = [(f"server-{i}", node) for i, node in enumerate(plan.server_nodes)]
        tasks += [(f"worker-{i}", node) for i, node in enumerate(plan.worker_nodes)]
        if waits:
            self.waiting.add(JobId(f"r/{name}"))
        starts = [
            StartTask(
                TaskId(f"r/{name}/{task}"),
                JobId(f"r/{name}"),
                spec,
                plan,
                node,
                1,
                Share(),
                1,
                1.0,
                Reason(ReasonKind.TEXT, {"text": ""}),
                gpus=None,
            )
            for task, node in tasks
        ]
        self.reservations.reserve(starts)

    def ends(self, name: str, *ended: str) -> None:
        """Some of a job's tasks end, and the others go on."""
        tasks = {task.rsplit("/", 1)[1] for task in self.set_aside if task.startswith(f"r/{name}/")}
        self.jobs[name].current.tasks = {
            task: SimpleNamespace(state="ended" if task in ended else "running") for task in tasks
        }
        self.reservations.hear(TaskExited(TaskId(f"r/{name}/worker-0"), Exit(code=0)), ())

    def meets(self, *nodes: Node) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
        """Nodes come; where the workers and servers of jobs go to for the last of them, by job."""
        for each in nodes:
            self.nodes.came(ENGINE, each)
            moves = self.reservations.offer(NodeJoined(each).node)
        assert all(move.waits for move in moves)
        return {
            move.job.split("/")[1]: (move.plan.worker_nodes, move.plan.server_nodes)
            for move in moves
        }


def test_a_job_goes_to_a_node_that_has_room_for_all_of_it() -> None:
    hub = Hub(node("a"), node("b"))
    hub.starts("runs", plan("a", "b"), cores=4.0)
    hub.starts("waits", plan("a", "b"), waits=True, cores=2.0)
    hub.starts("too", plan("a"), waits=True, cores=1.0)
    assert hub.meets(node("c")) == {"waits": (("c", "c"), ())}  # which leaves nothing for the other


@pytest.mark.parametrize("cores", [1.0, 2.0])
def test_one_that_needs_more_than_that_goes_there_and_to_others_that_have_room(
    cores: float,
) -> None:
    hub = Hub(node("a"), node("b"))
    hub.starts("runs", plan("a"), cores=cores)
    hub.starts("waits", plan("a", "b", cores_per_worker=2.0), waits=True)
    assert hub.meets(node("small", 1.0)) == {}  # not even one of its workers fits
    assert hub.meets(node("c")) == {"waits": (("c", "b"), ())}


def test_servers_are_placed_with_the_workers() -> None:
    hub = Hub(node("a", 3.0))
    hub.starts("runs", plan("a"), cores=2.0)
    shape: dict[str, Any] = {"cores_per_worker": 1.0, "cores_per_server": 1.0, "synchronous": True}
    hub.starts("waits", plan("a", "a", servers=("a",), **shape), waits=True)
    assert hub.meets(node("c")) == {"waits": (("a", "c"), ("c",))}


def test_what_one_that_has_left_its_job_took_is_room() -> None:
    hub = Hub(node("a"), node("b"))
    hub.starts("runs", plan("a", "b", cores_per_worker=2.0))
    hub.starts("waits", plan("a", "b", cores_per_worker=2.0), waits=True)
    hub.ends("runs", "worker-1")
    assert hub.given_back == ["r/runs/worker-1"]
    assert hub.meets(node("c")) == {"waits": (("c", "b"), ())}


def test_what_finds_no_room_anywhere_stays() -> None:
    hub = Hub(node("a"), node("b"))
    hub.starts("runs", plan("a", "b"), cores=4.0)
    hub.starts("waits", plan("a", "b", cores_per_worker=2.0), waits=True)
    assert hub.meets(node("c")) == {}
    assert hub.meets(node("d")) == {"waits": (("d", "c"), ())}


def test_an_event_that_starts_nothing_looks_at_no_reservation() -> None:
    hub = Hub(node("a"))
    hub.starts("runs", plan("a"))
    hub.engines.spec_of = lambda _: pytest.fail("it looked")
    hub.reservations.hear(Wake(), ())
