"""Hubs on a machine that users share start jobs as its arbiter grants them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from headgate.arbiter import asking
from headgate.arbiter.core import Arbiter
from headgate.arbiter.daemon import ArbiterDaemon
from headgate.arbiter.records import Demand, Hub
from headgate.arbiter.store import ArbiterStore
from headgate.controller import live_controller
from headgate.hub import arbiter_link
from headgate.hub.parts.sharing import MachineSharing
from headgate.hub.state.runs import LiveRuns
from headgate.model.actions import StartTask
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.events import Event, JobPlanned, JobSubmitted, NodeJoined, TaskExited
from headgate.model.identifiers import FIRST_WORKER, JobId
from headgate.model.jobs import Job
from headgate.model.limits import Limits
from headgate.model.plans import Plan
from headgate.model.sharing import SharingRules
from headgate.policies import make

GIB = 1 << 30
NODE = Node("m", 8, 32 * GIB)
PLAN = Plan(strategy="single", workers=1, batch_per_worker=None, worker_nodes=("m",))

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only its socket is trusted")


class SmallHub:
    """A controller, and the part of a hub that speaks with the arbiter."""

    def __init__(self, name: str, socket: Path) -> None:
        self.name, self.started = name, set[str]()
        self._changed = asyncio.Event()
        self._controller = live_controller(make("headgate"))
        nobody = SimpleNamespace(tell_all=lambda _: None, runs={}, failed=None)
        self._part = MachineSharing(
            socket, NODE, self._demand, self.step, cast("LiveRuns", nobody), dict
        )
        self.step(NodeJoined(NODE))
        self._part.start()

    def _demand(self) -> Demand:
        return asking.demand(Hub("", self.name), self._controller, lambda _: 1.0, lambda _: None)

    def step(self, event: Event) -> None:
        actions, _ = self._controller.step(0.0, event)
        self.started |= {
            action.task.job.name for action in actions if isinstance(action, StartTask)
        }
        self._part.hear(event, actions)
        self._changed.set()

    def submit(self, name: str, gib: int) -> None:
        id = JobId.of("r", name)
        limits = Limits(memory_bytes=gib * GIB)
        self.step(JobSubmitted(id, Job(name=name, run="true", limits=limits)))
        self.step(JobPlanned(id, 1, PLAN))

    def end(self, name: str) -> None:
        self.step(TaskExited(JobId.of("r", name).task(FIRST_WORKER), Exit(code=0)))

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        self._part.close()


def test_hubs_start_jobs_as_granted_also_after_the_arbiter_was_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbiter_link, "_AGAIN_SECONDS", 0.01)
    socket = tmp_path / "socket"

    async def serve() -> tuple[ArbiterDaemon, ArbiterStore]:
        store = ArbiterStore(tmp_path / "db", "boot")
        daemon = ArbiterDaemon(Arbiter(NODE, SharingRules(), 0.0, store.state()), store)
        await daemon.serve(socket)
        return daemon, store

    async def run() -> None:
        daemon, store = await serve()
        first, second = SmallHub("1", socket), SmallHub("2", socket)
        first.submit("a", 20)
        await first.until(lambda: "a" in first.started)
        second.submit("b", 20)
        second.submit("c", 4)
        await second.until(lambda: "c" in second.started)
        await daemon.close()
        store.close()
        first.end("a")
        daemon, store = await serve()
        await second.until(lambda: "b" in second.started)
        first.close()
        second.close()
        await daemon.close()
        store.close()

    asyncio.run(asyncio.wait_for(run(), 20.0))
