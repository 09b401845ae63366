"""The arbiter's socket: real connections of this user."""

from __future__ import annotations

import asyncio
import json
import os
import pwd
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.arbiter import daemon, listening
from headgate.arbiter.core import Arbiter
from headgate.arbiter.daemon import ArbiterDaemon, Boxes
from headgate.arbiter.listening import MOST_OF_USER
from headgate.arbiter.messages import MOST_BYTES
from headgate.arbiter.records import DiskMoved
from headgate.arbiter.store import ArbiterStore
from headgate.machine import arbiter_socket
from headgate.machine.arbiter_socket import Peer
from headgate.model.cluster import Gpu, Node
from headgate.model.sharing import SharingRules

NODE = Node("m", 8, 32 << 30, gpus=tuple(Gpu(i, "A100", 16 << 30) for i in range(4)))
USER = pwd.getpwuid(os.getuid()).pw_name
SECONDS = 120.0
"""Longest that anything is waited for."""


class Client:
    """A connection to the arbiter."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    def state(self, hub: str, *waiting: str, running: tuple[str, ...] = (), gpus: int = 4) -> None:
        def job(id: str) -> dict[str, object]:
            return {"id": id, "gpus": gpus}

        self.say({"hub": hub, "waiting": [*map(job, waiting)], "running": [*map(job, running)]})

    def say(self, message: object) -> None:
        self.writer.write(json.dumps(message).encode() + b"\n")

    async def hears(self, is_wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """The first message that is wanted."""
        while line := await self._reader.readline():
            message: dict[str, Any] = json.loads(line)
            if is_wanted(message):
                return message
        raise AssertionError("the connection was closed")

    async def granted(self) -> str:
        message = await self.hears(lambda message: message.get("type") == "ResourceGrant")
        return str(message["demand"]["id"])


class Serving:
    """An arbiter that serves, and its clients."""

    def __init__(self, folder: Path, boxes: Boxes | None = None) -> None:
        self._socket, self._clients = folder / "socket", list[Client]()
        self.store = ArbiterStore(folder / "arbiter.db", "boot")
        rules, state = SharingRules(), self.store.state()
        self.daemon = ArbiterDaemon(Arbiter(NODE, rules, 0.0, state), self.store, boxes)

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_unix_connection(self._socket))
        self._clients.append(client)
        return client

    async def __aenter__(self) -> Serving:
        await self.daemon.serve(self._socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.daemon.close()
        for client in self._clients:
            client.writer.close()
            with suppress(OSError):
                await client.writer.wait_closed()
        self.store.close()


def test_disks_are_read_only_while_a_hub_hears_it_and_told_if_nobody_used_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "_READ_SECONDS", 0.001)

    class DiskBoxes(Boxes):
        def __init__(self) -> None:
            self.read_thrice, self.readings, self.reads = threading.Event(), 0, 0

        def read(self) -> None:
            self.readings += 1
            if self.readings == 3:
                self.read_thrice.set()

        def moved(self) -> DiskMoved:
            self.reads += 1
            return DiskMoved((), 5.0)

    async def run() -> None:
        boxes = DiskBoxes()
        async with Serving(tmp_path, boxes) as serving:
            assert await asyncio.to_thread(boxes.read_thrice.wait, SECONDS)
            assert boxes.reads == 0
            hubs = [await serving.connect() for _ in range(2)]
            for name, hub in enumerate(hubs):
                hub.state(str(name))
                heard = await hub.hears(lambda message: message.get("type") == "DiskMoved")
                assert (heard["processes"], heard["seconds"]) == ([], 5.0)

    asyncio.run(asyncio.wait_for(run(), SECONDS))


def test_jobs_of_two_hubs_start_in_turn(tmp_path: Path) -> None:
    async def run() -> None:
        async with Serving(tmp_path) as serving:
            first, second = await serving.connect(), await serving.connect()
            first.state("1", "a")
            assert await first.granted() == "a"
            second.state("2", "b")
            waits = await second.hears(lambda message: message.get("type") == "JobWaits")
            assert (waits["kind"], waits["job"]) == ("no-room", [[USER, "2"], "b"])
            first.state("1")
            assert await second.granted() == "b"

    asyncio.run(asyncio.wait_for(run(), SECONDS))


def test_the_next_arbiter_grants_nothing_twice(tmp_path: Path) -> None:
    async def run() -> None:
        async with Serving(tmp_path) as serving:
            client = await serving.connect()
            client.state("1", "a")
            await client.granted()
        async with Serving(tmp_path) as serving:
            other, again = await serving.connect(), await serving.connect()
            other.state("2", "b")
            await other.hears(lambda message: message.get("kind") == "no-room")
            again.state("1", running=("a",))
            again.state("1")
            assert await other.granted() == "b"

    asyncio.run(asyncio.wait_for(run(), SECONDS))


def test_a_hub_that_comes_back_keeps_what_its_jobs_hold(tmp_path: Path) -> None:
    async def run() -> None:
        async with Serving(tmp_path) as serving:
            client, other = await serving.connect(), await serving.connect()
            client.state("1", "a")
            await client.granted()
            client.writer.close()
            other.state("2", "b")
            await other.hears(lambda message: message.get("kind") == "no-room")
            client = await serving.connect()
            client.state("1", "a")
            assert await client.granted() == "a"

    asyncio.run(asyncio.wait_for(run(), SECONDS))


def test_nothing_is_granted_that_cannot_be_written(tmp_path: Path) -> None:
    async def run() -> None:
        async with Serving(tmp_path) as serving:
            client = await serving.connect()
            client.state("1", "a", gpus=1)
            await client.granted()
            serving.store._db.execute("PRAGMA query_only = 1")
            client.state("1", "b", running=("a",), gpus=1)
            assert (await client.hears(lambda message: message.get("kind")))["kind"] == "held"
            serving.store._db.execute("PRAGMA query_only = 0")
            serving.daemon._keep_at = 0.0
            serving.daemon.take(None)
            assert await client.granted() == "b"

    asyncio.run(asyncio.wait_for(run(), SECONDS))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "headgate-test", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_nothing_is_granted_while_the_disk_is_full(small_disk: Path) -> None:
    async def run() -> None:
        async with Serving(small_disk) as serving:
            client, fill = await serving.connect(), small_disk / "fill"
            client.state("1", "a", gpus=1)
            await client.granted()
            with suppress(OSError), fill.open("wb", buffering=0) as file:
                for _ in range(2_048):
                    file.write(b"x" * 1024)
            jobs = [f"{i}-{'x' * 180}" for i in range(200)]
            client.state("1", *jobs, running=("a",), gpus=0)
            assert (await client.hears(lambda message: message.get("kind")))["kind"] == "held"
            fill.unlink()
            serving.daemon._keep_at = 0.0
            serving.daemon.take(None)
            assert await client.granted() == jobs[0]

    asyncio.run(asyncio.wait_for(run(), SECONDS))


@pytest.mark.parametrize("line", [b"no json\n", b"[]\n", b"x" * (MOST_BYTES + 2)])
def test_who_sends_nonsense_is_cut_off_and_others_go_on(tmp_path: Path, line: bytes) -> None:
    async def run() -> None:
        async with Serving(tmp_path) as serving:
            bad, good = await serving.connect(), await serving.connect()
            bad.writer.write(line)
            assert await bad.hears(lambda message: message.get("error"))
            good.state("1", "a")
            assert await good.granted() == "a"

    asyncio.run(asyncio.wait_for(run(), SECONDS))


def test_root_looks_reserves_and_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arbiter_socket, "peer", lambda _: Peer(1, 0, 0))

    async def run() -> None:
        async with Serving(tmp_path) as serving:
            client, hub = await serving.connect(), await serving.connect()
            hub.state("1", "a")
            await hub.granted()
            client.say({"type": "Look"})
            [seen] = (await client.hears(lambda message: "jobs" in message))["jobs"]
            assert (seen["user"], seen["gpus"]) == ("root", [0, 1, 2, 3])
            client.say({"type": "Drain", "drained": True})
            client.say({"type": "Book", "demand": {"id": "", "gpus": 2}, "seconds": 60})
            assert await client.hears(lambda message: message.get("type") == "Booking")
            hub.state("1", "b")
            waits = await hub.hears(lambda message: message.get("type") == "JobWaits")
            assert waits["kind"] == "held"

    asyncio.run(asyncio.wait_for(run(), SECONDS))


def test_others_than_administrators_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arbiter_socket, "peer", lambda _: Peer(1, 65_534, 65_534))

    async def run() -> None:
        async with Serving(tmp_path) as serving:
            for request in (
                {"type": "Drain", "drained": True},
                {"type": "OrderJob", "job": [["ada", "1"], "a"], "held": True},
                {"type": "Book", "demand": {"id": "", "gpus": 2}, "seconds": 60},
                {"type": "Unbook", "id": 1},
            ):
                client = await serving.connect()
                client.say(request)
                assert await client.hears(lambda message: message.get("error"))

    asyncio.run(asyncio.wait_for(run(), SECONDS))


def test_a_connection_is_of_one_hub(tmp_path: Path) -> None:
    async def run() -> None:
        async with Serving(tmp_path) as serving:
            client = await serving.connect()
            client.state("1", "a")
            client.state("2", "b")
            assert await client.hears(lambda message: message.get("error"))

    asyncio.run(asyncio.wait_for(run(), SECONDS))


def test_a_user_has_only_so_many_connections(tmp_path: Path) -> None:
    async def run() -> None:
        async with Serving(tmp_path) as serving:
            clients = [await serving.connect() for _ in range(MOST_OF_USER + 1)]
            assert await clients[-1].hears(lambda message: message.get("error"))
            clients[0].state("1", "a")
            assert await clients[0].granted() == "a"

    asyncio.run(asyncio.wait_for(run(), SECONDS))


def test_who_connects_all_the_time_is_refused_and_others_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uids = iter([1001] * 200 + [1002] * 10)
    monkeypatch.setattr(arbiter_socket, "peer", lambda _: Peer(1, next(uids), 1))
    # at one moment: a user may begin some more each second
    stopped = SimpleNamespace(monotonic=lambda: 1000.0, thread_time=time.thread_time)
    monkeypatch.setattr(listening, "time", stopped)

    async def run() -> None:
        async with Serving(tmp_path) as serving:
            refused = 0
            for _ in range(200):
                reader, writer = await asyncio.open_unix_connection(tmp_path / "socket")
                writer.write_eof()
                refused += b"too many connections" in await reader.read()
                writer.close()
            assert refused >= 150
            other = await serving.connect()
            other.state("1", "a")
            assert await other.granted() == "a"

    asyncio.run(asyncio.wait_for(run(), SECONDS))
