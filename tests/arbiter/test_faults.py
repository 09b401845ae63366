"""Hubs that freeze or lie, users who are deleted, arbiters that are upgraded."""

from __future__ import annotations

import asyncio
import json
import pwd
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.arbiter.core_machine import NODE, Machine, grants, job
from tests.arbiter.serving import served

from headgate.arbiter import daemon, messages, user_names
from headgate.arbiter.core import Arbiter
from headgate.arbiter.daemon import ArbiterDaemon, Boxes
from headgate.arbiter.events import Drained, HubJoined, JobOrdered
from headgate.arbiter.records import (
    ArbiterState,
    Demand,
    Hub,
    JobDemand,
    MachineJob,
    ResourceGrant,
    Span,
    WaitKind,
)
from headgate.arbiter.store import ArbiterStore
from headgate.controller.gpu_memory import WorkerSlot
from headgate.model.sharing import Amounts, SharingRules, UserShare
from headgate.testing.wait import until

ADA, BOB = Hub("ada"), Hub("bob")

# --- administrators' orders


def test_a_held_job_stays_held_in_its_next_attempt() -> None:
    arbiter = Arbiter(NODE, SharingRules())
    arbiter.step(0.0, Demand(ADA, (job("r/a#1"),)))
    arbiter.step(1.0, JobOrdered(MachineJob(ADA, "r/a#1"), held=True))
    arbiter.step(2.0, Demand(ADA))  # it failed, and is tried again in a while
    arbiter.step(60.0, Demand(ADA, (job("r/a#2"), job("r/b#1"))))
    assert [grant.job.id for grant in grants(arbiter)] == ["r/b#1"]
    arbiter.step(61.0, JobOrdered(MachineJob(ADA, "r/a#2")))
    assert {grant.job.id for grant in grants(arbiter)} == {"r/a#2", "r/b#1"}


@pytest.mark.parametrize("order", ["held", "first"])
def test_an_order_about_a_job_ends_with_the_job(order: str) -> None:
    arbiter = Arbiter(NODE, SharingRules())
    arbiter.step(0.0, Drained(True))
    arbiter.step(0.0, Demand(ADA, (job("r/a#1"),)))
    arbiter.step(0.0, JobOrdered(MachineJob(ADA, "r/a#1"), **{order: True}))
    for now in (1.0, 590.0):
        arbiter.step(now, Demand(ADA))
        assert getattr(arbiter.state(now), order) == {MachineJob(ADA, "r/a")}
    arbiter.step(700.0, Demand(ADA))
    assert not getattr(arbiter.state(700.0), order)


# --- several hubs of a user


def test_hubs_of_one_user_share_the_users_part_and_have_nothing_twice() -> None:
    rules = SharingRules(parts=(UserShare(user="ada", largest=Amounts(gpus=2)),))
    machine = Machine(Arbiter(NODE, rules))
    machine.take(Drained(True))
    for name in ("1", "2"):
        machine.submit("ada", replace(job(f"a{name}"), cores=8.0), job(f"b{name}"), name=name)
    machine.take(Drained(False))
    assert machine.runs == {"a1", "a2"}
    assert {machine.waits[id].kind for id in ("b1", "b2")} == {WaitKind.OWN_LIMIT}
    assert {gpu for grant in grants(machine.arbiter) for gpu in grant.gpus} == {0, 1}
    part = machine.parts["ada"]
    assert part.hub_cores == pytest.approx({"1": part.cores / 2, "2": part.cores / 2})
    machine.waiting[Hub("ada", "2")].clear()
    machine.end("a2", at=1.0)
    assert machine.parts["ada"].hub_cores == {}


# --- hubs that lie


def test_a_user_who_states_that_nothing_is_left_does_not_keep_a_large_job_off_for_long() -> None:
    machine = Machine(Arbiter(NODE, SharingRules()))
    machine.submit("ada", *(replace(job(f"a{i}"), left=Span(0.0, 0.0, 0.0)) for i in range(40)))
    machine.submit("bob", job("b", 2))
    while "b" not in machine.times:
        [next_end, *_] = sorted(machine.runs, key=lambda id: machine.times[id][0])
        machine.end(next_end, at=machine.now + 50.0)
        assert machine.now < 1_000.0


def test_who_states_little_memory_gets_none_that_others_were_granted() -> None:
    machine = Machine(Arbiter(NODE, SharingRules()))
    machine.submit("ada", job("a", 0, memory=24))
    machine.submit("eve", replace(job("e", 0), memory_bytes=1))
    assert machine.parts["eve"].most_memory_bytes <= NODE.memory_bytes - (24 << 30)
    assert machine.parts["ada"].memory_bytes == 24 << 30


# --- hubs that are frozen


def test_a_frozen_hub_keeps_what_its_jobs_hold_and_gets_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_READ_SECONDS", 0.02)
    monkeypatch.setattr(daemon, "_SILENT_SECONDS", 0.3)
    with served(tmp_path, monkeypatch, SharingRules()) as arbiter:
        frozen = arbiter.hub("ada")
        wants = [{"id": "a", "gpus": 1}, {"id": "b", "gpus": 2}]
        frozen.state(*wants)
        assert frozen.hears("ResourceGrant")["demand"]["id"] == "a"
        other = arbiter.hub("root")
        other.state({"id": "c", "gpus": 1})
        assert other.hears("ResourceGrant")["demand"]["id"] == "c"
        until(lambda: Hub("ada", "h") not in arbiter.daemon._heard, what="its silence is seen")
        other.state({"id": "d", "gpus": 1}, running=[{"id": "c", "gpus": 1}])
        waits = other.hears("JobWaits")
        assert waits["kind"] == "no-room"  # `a` holds the other GPU
        other.state({"id": "d", "gpus": 1})
        assert other.hears("ResourceGrant")["demand"]["id"] == "d"
        other.state({"id": "e", "gpus": 1})
        assert other.hears("ResourceGrant")["demand"]["id"] == "e"
        frozen.state(*wants[1:], running=wants[:1])  # it goes on
        assert frozen.hears("JobWaits")["kind"] == "no-room"


# --- users who are deleted


class MadeUsers:
    """Users as a directory has them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **uids: int) -> None:
        self.uids = uids
        monkeypatch.setattr(pwd, "getpwnam", lambda name: self._entry(name, self.uids.get(name)))
        monkeypatch.setattr(pwd, "getpwuid", self._by_uid)

    def _by_uid(self, uid: int) -> pwd.struct_passwd:
        names = [name for name, number in self.uids.items() if number == uid]
        return self._entry(*([names[0], uid] if names else ["", None]))

    def _entry(self, name: str, uid: int | None) -> pwd.struct_passwd:
        if uid is None:
            raise KeyError(name)
        return pwd.struct_passwd((name, "x", uid, uid, "", "/", "/bin/sh"))


def test_a_deleted_user_keeps_the_name_until_another_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = MadeUsers(monkeypatch, ada=4_001)
    assert user_names.name_of(4_001, {}) == "ada"
    del users.uids["ada"]
    assert user_names.identify(4_001, 4_001, {"ada": 4_001}) == ("ada", frozenset())
    assert user_names.name_of(4_001, {}) == "#4001"
    assert user_names.uid_of("ada", {"ada": 4_001}) == 4_001
    assert user_names.uid_of("ada", {}) is None
    users.uids |= {"ada": 4_002}
    assert user_names.name_of(4_001, {"ada": 4_001}) == "#4001"


class MadeBoxes(Boxes):
    """Users by number whose processes live."""

    def __init__(self, *uids: int) -> None:
        self.uids = set(uids)

    def is_empty(self, hub: Hub, uid: int) -> bool:
        return uid not in self.uids


def test_what_a_deleted_user_held_is_free_at_restart_once_no_process_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_READ_SECONDS", 0.01)
    users = MadeUsers(monkeypatch, ada=4_001, bob=4_002)
    store = ArbiterStore(tmp_path / "db", "boot")
    before = Arbiter(NODE, SharingRules(), 0.0)
    for hub in (ADA, BOB):
        before.step(0.0, HubJoined(hub, uid=users.uids[hub.user]))
        before.step(0.0, Demand(hub, (job(hub.user),)))
    store.keep(before.state(0.0))
    store.close()
    users.uids.clear()

    async def run() -> None:
        store = ArbiterStore(tmp_path / "db", "boot")
        after = Arbiter(NODE, SharingRules(), 0.0, store.state())
        boxes = MadeBoxes(4_001)
        serving = ArbiterDaemon(after, store, boxes)
        await serving.serve(tmp_path / "socket")
        await _until(lambda: [grant.job.hub.user for grant in grants(after)] == ["ada"])
        boxes.uids.clear()
        await _until(lambda: not list(grants(after)))
        await serving.close()
        store.close()

    asyncio.run(asyncio.wait_for(run(), 20.0))


async def _until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


# --- arbiters that are upgraded


def test_a_file_of_an_earlier_arbiter_is_read_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "arbiter.db"
    grant = ResourceGrant(MachineJob(ADA, "a"), job("a"), (WorkerSlot("m", (0,)),), 1.0)
    store = ArbiterStore(path, "1")
    store.keep(ArbiterState((grant,), drained=True, uids={"ada": 1}))
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE acts")
        db.execute("UPDATE grants SET grant = json_remove(grant, '$.stated_end', '$.demand.name')")
        db.execute("UPDATE state SET value = json_remove(value, '$.limits', '$.uids')")
        db.execute("PRAGMA user_version = 0")
    db.close()
    store = ArbiterStore(path, "1")
    assert store.state() == ArbiterState((grant,), drained=True)
    assert store.acts(None, 5) == ()
    store.keep(ArbiterState((grant,)))
    store.close()


def test_fields_of_a_later_version_are_left_out() -> None:
    later = {"hub": "1", "waiting": [{"id": "a", "later": 1}], "later": [1]}
    heard = messages.request(json.dumps(later).encode(), "ada")
    assert heard == Demand(Hub("ada", "1"), (JobDemand("a"),))


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_a_hub_of_another_version_hears_which_one_is_spoken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: Any
) -> None:
    with served(tmp_path, monkeypatch, SharingRules()) as arbiter:
        hub = arbiter.hub("ada")
        hub.socket.sendall(json.dumps({"hub": "h", "version": version}).encode() + b"\n")
        answer = json.loads(hub.socket.makefile().readline())
        assert "speaks version 1" in answer["error"]
        assert "install the same Headgate" in answer["error"]


def test_an_arbiter_goes_on_though_its_machine_has_another_name() -> None:
    before = Arbiter(NODE, SharingRules())
    before.step(0.0, Demand(ADA, (job("a", 4),)))
    after = Arbiter(replace(NODE, name="renamed"), SharingRules(), 1.0, before.state(1.0))
    after.step(1.0, Demand(BOB, (job("b", 4),)))
    assert [grant.job.id for grant in grants(after)] == ["a"]
    after.step(2.0, Demand(ADA))
    assert [grant.job.id for grant in grants(after)] == ["b"]
