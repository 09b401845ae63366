"""What is told of live runs joins what their stores have."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from tests.hub.user import User

from headgate import Client, Job
from headgate.hub.connection import connect
from headgate.recorded.runs import STORE

PAUSED = "paused"


def test_what_happened_before_a_watcher_came_is_in_the_store_once_it_is_attached(
    user: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(user.folder)
    with Client() as client:
        run = client.run(Job(name="a", run="exec sleep 600"))
    user.sees_state("a", "running", run=run.id)
    told: list[str] = []
    hub = connect()
    assert hub is not None
    with hub, closing(sqlite3.connect(run.path / STORE, isolation_level=None)) as store:
        store.execute("BEGIN IMMEDIATE")  # as a slow disk: the hub writes nothing meanwhile
        assert hub.ask("pause", run=run.id, jobs=["a"])["jobs"] == ["a"]
        assert PAUSED not in {event.kind for event in run.recorded_events(100)}
        hub.send("attach", run=run.id, written=True)
        while told.count("snapshot") < 2:
            told.append((hub.receive() or {})["type"])
        assert "attached" not in told
        store.execute("ROLLBACK")
        while (hub.receive() or {})["type"] != "attached":
            pass
        assert PAUSED in {event.kind for event in run.recorded_events(100)}
    user.types("stop", "--kill", "--run", run.id)
