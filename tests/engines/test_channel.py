"""The engine's end of the task channel: who may speak, and what becomes of what does not fit."""

from __future__ import annotations

import json
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.engines import channel
from headgate.engines.channel import Connection, listen

HELLO = b'{"type": "hello", "task": "r/j/worker-0", "key": "secret"}\n'


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    connection = Connection(ours, {"r/j/worker-0": "secret"}.get)
    with theirs:
        yield connection, theirs
    connection.close()


Pair = tuple[Connection, socket.socket]


def test_hello_with_its_key_admits_a_task(pair: Pair) -> None:
    connection, task = pair
    task.sendall(HELLO + b'{"type": "a"}\n{"type": "b"}\n')
    assert connection.task is None
    messages = connection.receive()
    assert messages is not None
    assert [message["type"] for message in messages] == ["hello", "a", "b"]
    assert connection.task == "r/j/worker-0"


@pytest.mark.parametrize(
    "first",
    [
        b'{"type": "hello", "task": "r/j/worker-0", "key": "wrong"}',
        b'{"type": "hello", "task": "r/j/worker-0", "key": null}',
        b'{"type": "hello", "task": "r/j/worker-0", "key": "\\ud800"}',
        b'{"type": "hello", "task": "r/j/worker-0"}',
        b'{"type": "hello", "task": "r/j/worker-1", "key": "secret"}',
        b'{"type": "hello", "task": ["r/j/worker-0"], "key": "secret"}',
        b'{"type": "hello", "task": null, "key": null}',
        b'{"type": "progress", "task": "r/j/worker-0", "key": "secret"}',
        b"{}",
    ],
)
def test_anything_else_before_it_is_refused(pair: Pair, first: bytes) -> None:
    connection, task = pair
    task.sendall(first + b"\n" + HELLO)
    assert connection.receive() is None
    assert connection.task is None


def test_nothing_is_not_the_end(pair: Pair) -> None:
    connection, task = pair
    with pytest.raises(BlockingIOError):
        connection.receive()
    task.sendall(HELLO[:10])
    assert connection.receive() == []
    task.sendall(HELLO[10:])
    assert connection.receive()
    task.close()
    assert connection.receive() is None


@pytest.mark.parametrize(("begins", "limit"), [(b"", "_HELLO_BYTES"), (HELLO, "LINE_BYTES")])
def test_a_line_that_never_ends_is_the_end(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, begins: bytes, limit: str
) -> None:
    monkeypatch.setattr(channel, limit, 1000)
    connection, task = pair
    task.sendall(begins + b"x" * 1001)
    assert connection.receive() is None
    assert connection.is_endless


@pytest.mark.parametrize(
    "line", [b"{", b"[1]", b"\xff", b'{"step": ' + b"9" * 5000 + b"}", b"[" * 3000]
)
def test_a_line_that_is_no_message_is_told_as_such_and_the_next_one_is_heard(
    pair: Pair, line: bytes
) -> None:
    connection, task = pair
    task.sendall(HELLO + line + b'\n{"type": "a"}\n')
    messages = connection.receive()
    assert messages is not None
    assert [message["type"] for message in messages] == ["hello", "unreadable", "a"]
    assert len(messages[1]["line"]) < 400


def test_a_task_that_does_not_read_never_sees_a_torn_line(pair: Pair) -> None:
    connection, task = pair
    message = {"type": "threads", "filler": "x" * 1000}
    sent = [connection.send(message)]
    while sent[-1]:
        sent.append(connection.send(message))
    assert not connection.send(message), "the one before is not through"
    task.settimeout(60)
    received = b""
    while received.count(b"\n") < len(sent) - 1:
        received += task.recv(1 << 20)
    assert connection.send({"type": "stop"})
    while not received.endswith(b'"stop"}\n'):
        received += task.recv(1 << 20)
    kinds = [json.loads(line)["type"] for line in received.splitlines()]
    assert set(kinds[:-1]) == {"threads"}
    assert len(sent) - 1 <= len(kinds) - 1 <= len(sent) + 1


def test_a_task_that_is_gone_takes_nothing(pair: Pair) -> None:
    connection, task = pair
    task.close()
    assert not connection.send({"type": "stop"})


def test_a_socket_that_was_left_is_replaced_and_is_its_user_s(tmp_path: Path) -> None:
    path = tmp_path / "channel.sock"
    listen(path).close()
    with listen(path), socket.socket(socket.AF_UNIX) as client:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        client.connect(str(path))
