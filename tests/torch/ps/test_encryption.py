"""Strangers get nothing and disturb nothing."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import zmq

from headgate.hub.state.peers import Peers
from headgate.model.identifiers import TaskName
from headgate.torch.ps.transport.wire import _LAYOUT, Header, MessageKind, token

MakeJob = Callable[..., Any]
_QUIET_MILLISECONDS = 300


Stranger = Callable[..., zmq.Socket[bytes]]


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    """Connects to a job's server with these keys."""
    context: zmq.Context[Any] = zmq.Context()
    sockets: list[zmq.Socket[bytes]] = []

    def connect(running: Any, **keys: str) -> zmq.Socket[bytes]:
        client: zmq.Socket[bytes] = context.socket(zmq.DEALER)
        sockets.append(client)
        for name, key in keys.items():
            setattr(client, f"curve_{name}", key.encode())
        client.connect(endpoint(running))
        return client

    yield connect
    for opened in sockets:
        opened.close(linger=0)
    context.term()


def message(secrets: dict[str, Any], **header: int) -> list[bytes]:
    """A message as a worker of the job sends it."""
    return [
        _LAYOUT.pack(token(secrets), *Header(**{"kind": MessageKind.PING, "life": 1, **header}))
    ]


def endpoint(running: Any) -> str:
    return str(running.tasks["server-0"].of("listening")[0]["endpoints"][0])


def secrets(running: Any, worker: str = "worker-0") -> dict[str, Any]:
    return dict(running.peers.welcome(TaskName(worker), 1)["secrets"])


def rounds_go_on(running: Any) -> None:
    def act(backend: Any) -> Any:
        mine = torch.full((70_000,), float(backend.index + 1))
        backend.register([mine])
        backend.begin(1.0)
        backend.launch(0)
        return backend.finish().sums[0]

    for sums in running.together(act).values():
        assert sums.eq(3.0).all()


def test_who_has_the_keys_is_answered(job: MakeJob, stranger: Stranger) -> None:
    """The messages below are of the right form: sent with the right keys they are answered."""
    running = job(2, 1, encrypt=True)
    running.start()
    known = secrets(running)
    insider = stranger(
        running,
        serverkey=known["server_public"],
        publickey=known["client_public"],
        secretkey=known["client_secret"],
    )
    insider.send_multipart(message(known))
    assert insider.poll(10_000)


@pytest.mark.parametrize(
    "kind", ["no keys", "keys of its own", "keys of another job", "the servers' keys"]
)
def test_a_stranger_is_not_admitted(kind: str, job: MakeJob, stranger: Stranger) -> None:
    running = job(2, 1, encrypt=True)
    running.start()
    known = secrets(running)
    public, secret = (key.decode() for key in zmq.curve_keypair())
    other = Peers(running.peers.plan)
    other.start(TaskName("worker-0"), "a", "127.0.0.1")
    others = other.welcome(TaskName("worker-0"), 1)["secrets"]
    server = secrets(running, "server-0")
    keys = {
        "no keys": {},
        "keys of its own": {
            "serverkey": known["server_public"],
            "publickey": public,
            "secretkey": secret,
        },
        "keys of another job": {
            "serverkey": known["server_public"],
            "publickey": others["client_public"],
            "secretkey": others["client_secret"],
        },
        "the servers' keys": {
            "serverkey": known["server_public"],
            "publickey": server["server_public"],
            "secretkey": server["server_secret"],
        },
    }[kind]
    outsider = stranger(running, **keys)
    outsider.send_multipart(message(known))
    rounds_go_on(running)
    assert not outsider.poll(_QUIET_MILLISECONDS)
    rounds_go_on(running)


@pytest.mark.parametrize("encrypt", [True, False])
@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", b"\xff" + b"\0" * 8 + b"\x7f" + b"\x03" * 4000, b"\0" * 70_000],
)
def test_garbage_disturbs_nobody(said: bytes, encrypt: bool, job: MakeJob) -> None:
    running = job(2, 1, encrypt=encrypt)
    running.start()
    host, _, port = endpoint(running).removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(said)
        rounds_go_on(running)
    rounds_go_on(running)


def test_without_keys_only_messages_of_the_job_count(job: MakeJob, stranger: Stranger) -> None:
    running = job(2, 1)
    running.start()
    known = secrets(running)
    other = {**known, "client_public": zmq.curve_keypair()[0].decode()}
    outsider = stranger(running)
    whole = message(other, kind=MessageKind.PUSH)
    for frames in (whole, [*whole, b"1" * 4000], [b""], [b"", b""], [b"x" * 500_000], [b"\0"]):
        outsider.send_multipart(frames)
    rounds_go_on(running)
    assert not outsider.poll(_QUIET_MILLISECONDS)


def test_a_message_of_the_job_that_makes_no_sense_is_ignored(
    job: MakeJob, stranger: Stranger
) -> None:
    running = job(2, 1)
    running.start()
    known = secrets(running)
    insider = stranger(running)
    insider.send_multipart(message(known, kind=200))
    insider.send_multipart(message(known, kind=MessageKind.PUSH, sender=9))
    insider.send_multipart(message(known, kind=MessageKind.PUSH, life=7))
    rounds_go_on(running)
