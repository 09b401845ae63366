"""Hubs on a machine that users share start jobs as its arbiter grants them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from headgate.arbiter import asking
from headgate.arbiter import messages as arbiter_messages
from headgate.arbiter.core import Arbiter
from headgate.arbiter.daemon import ArbiterDaemon
from headgate.arbiter.messages import Request
from headgate.arbiter.records import Demand, DiskMoved, Hub, Resumes
from headgate.arbiter.store import ArbiterStore
from headgate.controller.core import live_controller
from headgate.hub import arbiter_link
from headgate.hub.parts import sharing
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
from headgate.model.reasons import Reason
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
        self.told: list[Reason] = []
        self.moved: list[DiskMoved] = []
        nobody = SimpleNamespace(tell_all=self._hear, runs={}, failed=None)
        self._part = MachineSharing(
            *(socket, NODE, self._demand, self.step, cast("LiveRuns", nobody), dict),
            moved=self.moved.append,
            tracker=lambda job: None,
        )
        self.step(NodeJoined(NODE))
        self._part.start()

    def _hear(self, reason: Reason) -> None:
        self.told.append(reason)
        self._changed.set()

    def _demand(self) -> Demand:
        return asking.demand(
            Hub("", self.name),
            self._controller,
            lambda _: 1.0,
            lambda _: None,
            lambda _: Resumes.NO,
        )

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


async def serve(socket: Path) -> tuple[ArbiterDaemon, ArbiterStore]:
    store = ArbiterStore(socket.with_name("db"), "boot")
    daemon = ArbiterDaemon(Arbiter(NODE, SharingRules(), 0.0, store.state()), store)
    await daemon.serve(socket)
    return daemon, store


def test_hubs_of_two_homes_have_two_names_also_where_the_homes_have_one_path(
    tmp_path: Path,
) -> None:
    home, link = tmp_path / "home", tmp_path / "link"
    home.mkdir()
    link.symlink_to(home)
    first = sharing.name(home)
    assert sharing.name(link) == first
    home.rename(tmp_path / "other")  # as another container sees it
    home.mkdir()
    assert sharing.name(home) != first


def test_hubs_start_jobs_as_granted_also_after_the_arbiter_was_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbiter_link, "_AGAIN_SECONDS", 0.01)
    socket = tmp_path / "socket"

    async def run() -> None:
        daemon, store = await serve(socket)
        first, second = SmallHub("1", socket), SmallHub("2", socket)
        first.submit("a", 20)
        await first.until(lambda: "a" in first.started)
        second.submit("b", 20)
        second.submit("c", 4)
        await second.until(lambda: "c" in second.started)
        await daemon.close()
        store.close()
        first.end("a")
        daemon, store = await serve(socket)
        await second.until(lambda: "b" in second.started)
        first.close()
        second.close()
        await daemon.close()
        store.close()

    asyncio.run(asyncio.wait_for(run(), 20.0))


def test_a_hub_that_an_arbiter_does_not_understand_tells_so_once_and_goes_on_when_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbiter_link, "_AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(arbiter_link, "VERSION", 2)
    asked: list[bytes] = []
    request = arbiter_messages.request

    def counted(line: bytes, user: str) -> Request:
        asked.append(line)
        return request(line, user)

    monkeypatch.setattr(arbiter_messages, "request", counted)

    async def run() -> None:
        daemon, store = await serve(tmp_path / "socket")
        hub = SmallHub("1", tmp_path / "socket")
        hub.submit("a", 4)
        await hub.until(lambda: bool(hub.told))
        while len(asked) < 4:
            await asyncio.sleep(0.01)
        [reason] = hub.told
        assert "speaks version 1 and was asked in version 2" in str(reason.facts["text"])
        assert not hub.started
        monkeypatch.setattr(arbiter_link, "VERSION", 1)
        await hub.until(lambda: "a" in hub.started)
        hub.close()
        await daemon.close()
        store.close()

    asyncio.run(asyncio.wait_for(run(), 20.0))


def test_what_a_later_arbiter_tells_more_is_passed_over(tmp_path: Path) -> None:
    async def run() -> None:
        daemon, store = await serve(tmp_path / "socket")
        hub = SmallHub("1", tmp_path / "socket")
        hub.submit("a", 4)
        await hub.until(lambda: "a" in hub.started)
        [writer] = daemon._hubs.values()
        waits = {"type": "JobWaits", "job": [["u", "1"], "a"], "kind": "later"}
        for later in ({"type": "Later"}, waits):
            writer.write(json.dumps(later).encode() + b"\n")
        hub.submit("b", 4)
        await hub.until(lambda: "b" in hub.started)
        assert not hub.told
        hub.close()
        await daemon.close()
        store.close()

    asyncio.run(asyncio.wait_for(run(), 20.0))
