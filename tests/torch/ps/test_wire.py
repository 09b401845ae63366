"""Messages of a fixed header and raw frames."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from headgate.engines import launch
from headgate.hub.state.peers import Peers
from headgate.model.identifiers import TaskName
from headgate.model.plans import Plan
from headgate.torch import ps
from headgate.torch.ps.transport import wire
from headgate.torch.ps.transport.loop import Loop
from headgate.torch.ps.transport.wire import DTYPES, Header, Message, memory


@pytest.fixture
def loop() -> Iterator[Loop]:
    failed: list[BaseException] = []
    made = Loop("test", failed.append)
    yield made
    made.close()
    assert failed == []


def secrets(encrypt: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Those of a server and of a worker."""
    peers = Peers(Plan(strategy="ps", workers=1, servers=1, batch_per_worker=None), encrypt)
    for name in ("server-0", "worker-0"):
        peers.start(TaskName(name), "here", "127.0.0.1")
    server, worker = (
        peers.welcome(TaskName(name), 1)["secrets"] for name in ("server-0", "worker-0")
    )
    return dict(server), dict(worker)


class Ends:
    """Both ends of a connection, and what arrived at each."""

    def __init__(self, loop: Loop, encrypt: bool, address: str, beside: Path | None = None) -> None:
        self.loop = loop
        self.at_server: list[Message] = []
        self.at_worker: list[Message] = []
        self._arrived = threading.Condition()
        self.ready = threading.Event()
        loop.call(self._open, encrypt, address, beside)
        self.ready.wait(60)

    def _open(self, encrypt: bool, address: str, beside: Path | None) -> None:
        keys, self.known = secrets(encrypt)
        self.server, self.endpoints = wire.serve(self.loop, keys, address, beside)
        self.worker = wire.connect(self.loop, self.known, self.endpoints[-1])
        for socket, into in ((self.server, self.at_server), (self.worker, self.at_worker)):
            self.loop.add(socket.zmq, lambda socket=socket, into=into: self._receive(socket, into))  # type: ignore[misc]
        self.ready.set()

    def _receive(self, socket: wire.Socket, into: list[Message]) -> None:
        message = socket.receive()
        if message is not None:
            with self._arrived:
                into.append(message)
                self._arrived.notify_all()

    def arrived(self, into: list[Message], count: int) -> list[Message]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(into) >= count, 20)
        return into


@pytest.mark.parametrize(
    ("encrypt", "address"), [(True, "127.0.0.1"), (False, "127.0.0.1"), (False, "::1")]
)
def test_messages_arrive_as_they_were_sent(encrypt: bool, address: str, loop: Loop) -> None:
    ends = Ends(loop, encrypt, address)
    values = torch.randn(200_000, dtype=torch.float64)
    header = Header(5, 3, 1, 2, 4, 7, 1 << 40, 9, 11, 1 << 35, 1 << 33, 0.5, 1.25, 1 << 34)
    loop.call(lambda: ends.worker.send(header, memory(values), b"more"))
    (message,) = ends.arrived(ends.at_server, 1)
    assert message.header[:-1] == header[:-1]
    assert 0 < message.header.sent <= message.at
    assert torch.equal(message.tensor(), values)
    assert message.frames[1].bytes == b"more"
    message.tensor().add_(1.0)  # is the receiver's own
    loop.call(lambda: ends.server.send(Header(8), b"{}", route=message.route))
    assert ends.arrived(ends.at_worker, 1)[0].json() == {}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [0, 3, 40_000])
def test_every_type_and_size_of_payload_goes_through(
    dtype: torch.dtype, count: int, loop: Loop
) -> None:
    ends = Ends(loop, False, "127.0.0.1")
    values = (torch.randn(count) * 50).to(dtype)
    loop.call(lambda: ends.worker.send(Header(5, dtype=DTYPES.index(dtype)), memory(values)))
    assert torch.equal(ends.arrived(ends.at_server, 1)[0].tensor().to(dtype), values)


def test_a_lot_at_once_is_neither_lost_nor_reordered(loop: Loop) -> None:
    ends = Ends(loop, False, "127.0.0.1")
    payload = bytes(50_000)

    def send() -> None:
        for number in range(500):
            ends.worker.send(Header(5, round=number), payload)

    loop.call(send)
    assert [message.header.round for message in ends.arrived(ends.at_server, 500)] == list(
        range(500)
    )


def test_what_comes_from_another_job_is_no_message(loop: Loop) -> None:
    ends = Ends(loop, False, "127.0.0.1")
    _, foreign = secrets(False)

    def send() -> None:
        other = wire.connect(loop, foreign, ends.endpoints[0])
        loop.add(other.zmq, lambda: None)
        other.send(Header(5), b"1")
        ends.worker.send(Header(6), b"2")

    loop.call(send)
    ends.arrived(ends.at_server, 1)
    loop.call(lambda: ends.worker.send(Header(7)))
    assert [message.header.kind for message in ends.arrived(ends.at_server, 2)] == [6, 7]


def test_beside_a_server_nothing_is_encrypted_and_from_elsewhere_still_all(
    loop: Loop, tmp_path: Path
) -> None:
    ends = Ends(loop, True, "127.0.0.1", tmp_path / "s.sock")
    assert [endpoint.partition(":")[0] for endpoint in ends.endpoints] == ["tcp", "ipc"]
    assert wire.reaches(ends.endpoints[1])

    def send() -> None:
        bare = wire.connect(loop, ends.known | {"encrypt": False}, ends.endpoints[0])
        keyed = wire.connect(loop, ends.known, ends.endpoints[0])
        for number, socket in enumerate((bare, keyed, ends.worker)):
            loop.add(socket.zmq, lambda: None)
            socket.send(Header(5, sender=number), bytes(100_000))

    loop.call(send)
    assert {message.header.sender for message in ends.arrived(ends.at_server, 2)} == {1, 2}
    loop.call(lambda: ends.worker.send(Header(7)))
    assert ends.arrived(ends.at_server, 3)[2].header.kind == 7


def test_workers_take_the_address_of_a_server_whose_unix_socket_they_cannot_reach(
    loop: Loop, tmp_path: Path
) -> None:
    ends = Ends(loop, True, "127.0.0.1", tmp_path / "missing" / "s.sock")
    assert len(ends.endpoints) == 1
    assert not wire.reaches(f"ipc://{tmp_path}/s.sock")


def test_timers_fire_in_their_order(loop: Loop) -> None:
    fired: list[int] = []
    done = threading.Event()

    def second() -> None:
        fired.append(2)
        done.set()

    def start() -> None:
        loop.after(1.0, second)
        loop.after(0.01, lambda: fired.append(1))

    loop.call(start)
    assert done.wait(60)
    assert fired == [1, 2]


def test_a_loop_that_closes_while_messages_arrive_fails_nobody() -> None:
    failed: list[BaseException] = []
    for _ in range(20):
        loop = Loop("test", failed.append)
        ends = Ends(loop, True, "127.0.0.1")
        loop.call(ends.worker.send, Header(5), b"1")
        loop.close()
    assert failed == []


FINDS = """
import runpy, sys
before = [*sys.path]
runpy.run_path(sys.argv[1])
import zmq
print(zmq.__file__, zmq.zmq_version_info() > (4,), sys.path == before)
"""


def test_zmq_is_found_where_the_hub_says_and_leaves_no_trace_in_the_path(tmp_path: Path) -> None:
    folder = launch.transport(launch.inject(tmp_path))
    bare = [sys.executable, "-S"]  # without what this interpreter has installed, zmq among it
    env = {**os.environ, "HEADGATE_ZMQ": str(folder), "PYTHONPATH": ""}
    program = subprocess.run(
        [*bare, "-c", FINDS, ps.__file__], env=env, capture_output=True, text=True, check=False
    )
    assert program.stdout.split() == [str(folder / "zmq" / "__init__.py"), "True", "True"], (
        program.stderr
    )


def test_without_zmq_there_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("HEADGATE_ZMQ", raising=False)
    with pytest.raises(ImportError, match="pip install pyzmq"):
        ps._find_zmq()
