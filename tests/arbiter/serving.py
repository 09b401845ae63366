"""An arbiter that serves from a thread, and hubs that state jobs to it, for what its users type."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.arbiter import user_names
from headgate.arbiter.core import Arbiter
from headgate.arbiter.daemon import ArbiterDaemon
from headgate.arbiter.events import ArbiterEvent
from headgate.arbiter.store import ArbiterStore
from headgate.machine import arbiter_socket
from headgate.machine.arbiter_socket import Peer
from headgate.model.cluster import Gpu, Node
from headgate.model.sharing import SharingRules

NODE = Node("m", 8, 32 << 30, gpus=tuple(Gpu(i, "A100", 16 << 30) for i in range(2)))


class Connected:
    """A hub of a user, or a stand-in for one."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60.0)
        self.socket.connect(str(path))
        self._lines = self.socket.makefile("rb")

    def state(self, *waiting: Mapping[str, Any], running: Sequence[Mapping[str, Any]] = ()) -> None:
        message = {"hub": "h", "waiting": list(waiting), "running": list(running)}
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def hears(self, kind: str) -> dict[str, Any]:
        """The next message of a kind."""
        for line in self._lines:
            message: dict[str, Any] = json.loads(line)
            if message.get("type") == kind:
                return message
        raise AssertionError("the connection was closed")

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


class ServedArbiter:
    """An arbiter in a thread; `peers` says who connects next: user ID and groups by name."""

    def __init__(self, folder: Path, rules: SharingRules) -> None:
        self.path, self.user, self.groups = folder / "arbiter.sock", "ada", frozenset[str]()
        self.hubs: list[Connected] = []
        self._folder, self._rules, self._later = folder, rules, 0.0
        self._loop = asyncio.new_event_loop()
        self._serves = threading.Event()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def hub(self, user: str) -> Connected:
        """A hub of a user, connected."""
        self.user = user
        connected = Connected(self.path)
        self.hubs.append(connected)
        return connected

    def later(self, seconds: float) -> None:
        """Have the arbiter's clock go before."""
        self._later += seconds

    def take(self, event: ArbiterEvent) -> None:
        """Have the arbiter act on an event."""

        async def taken() -> None:
            self.daemon.take(event)

        asyncio.run_coroutine_threadsafe(taken(), self._loop).result(20.0)

    async def _run(self) -> None:
        store = ArbiterStore(self._folder / "arbiter.db", "boot")
        self.daemon = ArbiterDaemon(
            Arbiter(NODE, self._rules, 0.0, store.state()),
            store,
            clock=lambda: time.time() + self._later,
        )
        await self.daemon.serve(self.path)
        self._serves.set()
        await self._ended.wait()
        await self.daemon.close()
        store.close()

    def start(self) -> None:
        self._thread.start()
        assert self._serves.wait(60.0)

    def end(self) -> None:
        for hub in self.hubs:
            hub.close()
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(60.0)
        self._loop.close()


@contextmanager
def served(
    folder: Path, monkeypatch: pytest.MonkeyPatch, rules: SharingRules
) -> Iterator[ServedArbiter]:
    """An arbiter that takes each new connection for one of its `user`."""
    arbiter = ServedArbiter(folder, rules)
    monkeypatch.setattr(user_names, "identify", lambda *_: (arbiter.user, arbiter.groups))
    monkeypatch.setattr(
        arbiter_socket,
        "peer",
        lambda _: Peer(1, 0 if arbiter.user == "root" else 1000 + len(arbiter.user), 1),
    )
    monkeypatch.setenv("HEADGATE_ARBITER", str(arbiter.path))
    arbiter.start()
    try:
        yield arbiter
    finally:
        arbiter.end()
