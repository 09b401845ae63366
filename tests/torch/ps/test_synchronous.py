"""Workers that add up over parameter servers, in one process: what they get, how it went there, and
what they do when something is lost on the way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from headgate.task import Stop
from headgate.testing import wait
from headgate.torch.backend import RoundResult
from headgate.torch.ps.rounds import client, pushing
from headgate.torch.ps.rounds.dense import Dense
from headgate.torch.ps.transport import wire
from headgate.torch.ps.transport.loop import Loop

MakeJob = Callable[..., Any]


def add(*buffers: torch.Tensor, weight: float = 1.0) -> Callable[[Dense], RoundResult]:
    """One round in which worker w contributes w + 1 times the buffers."""

    def act(backend: Dense) -> RoundResult:
        mine = [buffer * (backend.index + 1) for buffer in buffers]
        backend.register(mine)
        return once(mine, weight)(backend)

    return act


def once(buffers: list[torch.Tensor], weight: float = 1.0) -> Callable[[Dense], RoundResult]:
    def act(backend: Dense) -> RoundResult:
        backend.traced = True
        backend.begin(weight)
        for index in range(len(buffers)):
            backend.launch(index)
        return backend.finish()

    return act


def push_and_block(backend: Dense, unblock: threading.Event) -> None:
    """Push what the buffers hold, and then read nothing until the event is set."""
    blocked = threading.Event()

    def block() -> None:
        blocked.set()
        unblock.wait(60)

    backend.begin(1.0)
    for index in range(len(backend._registered.buffers)):
        backend.launch(index)
    # a timer ends its turn of the loop: in the next, views come before what sockets have received
    backend._loop.call(backend._loop.after, 0.0, block)
    assert blocked.wait(60)


def unblock_at_view(backend: Dense, unblock: threading.Event) -> None:
    """Let it go on once it has been handed a view, which it then enters before it reads sums."""
    wait.until(lambda: backend._loop._calls, what="a view of a blocked worker")
    unblock.set()


def equal(sums: Any, buffers: list[torch.Tensor], times: float) -> bool:
    return all(
        torch.allclose(total, buffer * times) for total, buffer in zip(sums, buffers, strict=True)
    )


@pytest.mark.parametrize(
    ("workers", "servers", "apart", "encrypt"),
    [
        (1, 1, True, False),
        (2, 1, True, True),
        (3, 2, True, False),
        (2, 2, False, False),
        (4, 3, False, True),
    ],
)
def test_every_worker_gets_the_sum(
    workers: int, servers: int, apart: bool, encrypt: bool, job: MakeJob
) -> None:
    running = job(workers, servers, encrypt=encrypt)
    running.start(apart)
    buffers = [
        torch.randn(300_001),
        torch.randn(3),
        torch.randn(200_000, dtype=torch.float64),
        torch.empty(0),
    ]
    for _ in range(3):
        for result in running.together(add(*buffers)).values():
            assert result.members == tuple(range(workers))
            assert equal(result.sums, buffers, workers * (workers + 1) / 2)


def test_workers_begin_with_what_the_lowest_has(job: MakeJob) -> None:
    running = job(3, 2)
    running.start()

    def begin(backend: Dense) -> tuple[list[torch.Tensor], Any]:
        mine = [
            torch.randn(70_001),
            torch.randn(5, 4).T,
            torch.tensor(backend.index, dtype=torch.int64),
        ]
        mine += [torch.rand(3).to(torch.bfloat16), torch.tensor([True, backend.index == 1])]
        backend.broadcast(mine)
        return mine, backend.broadcast_value(
            {"seed": backend.index + 3, "text": "t" * backend.index}
        )

    begun = running.together(begin)
    assert all(value == {"seed": 3, "text": ""} for _, value in begun.values())
    for tensors, _ in begun.values():
        assert all(torch.equal(a, b) for a, b in zip(tensors, begun[0][0], strict=True))


def test_bytes_go_evenly_to_all_servers_and_are_told(job: MakeJob) -> None:
    running = job(2, 3)
    running.start()
    results = running.together(add(torch.ones(400_000), torch.ones(100_000)))
    for result in results.values():
        assert [transfer.peer for transfer in result.transfers] == [
            "server-0",
            "server-1",
            "server-2",
        ]
        pushed = [transfer.push.bytes for transfer in result.transfers]
        assert sum(pushed) == 2_000_000 == sum(transfer.pull.bytes for transfer in result.transfers)
        assert max(pushed) <= 1.05 * min(pushed)
        assert all(t.push.begin <= t.push.end <= t.pull.end + 0.25 for t in result.transfers)
        assert result.pull_seconds is not None
        assert min(result.wait_seconds, result.pull_seconds) >= 0


def test_a_worker_and_its_server_on_one_node_send_each_other_headers_only(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = job(2, 1)
    running.start(apart=False)
    buffers = [torch.randn(400_000)]
    running.together(add(*buffers))

    def settled_then_once(backend: Dense) -> RoundResult:
        exchange = backend._exchange
        assert exchange is not None
        wait.until(lambda: 0 in exchange.regions, what="shared memory")
        return once(exchange.buffers)(backend)  # type: ignore[arg-type]

    sent: list[int] = []
    send = wire.Socket.send

    def counted(
        socket: wire.Socket, header: wire.Header, *frames: wire.Buffer, route: bytes = b""
    ) -> None:
        sent.append(sum(map(len, frames)))
        send(socket, header, *frames, route=route)

    monkeypatch.setattr(wire.Socket, "send", counted)
    for result in running.together(settled_then_once).values():
        assert equal(result.sums, buffers, 3)
        assert result.transfers[0].push is not None
        assert result.transfers[0].push.bytes == 1_600_000
    assert sent
    assert max(sent) < 3000


@pytest.mark.parametrize(("apart", "way"), [(False, "ipc"), (True, "tcp")])
def test_a_worker_takes_the_unix_socket_of_a_server_on_its_node_alone(
    apart: bool, way: str, job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, taken = wire.connect, list[str]()

    def told(loop: Loop, keys: Mapping[str, Any], endpoint: str) -> wire.Socket:
        taken.append(endpoint.partition(":")[0])
        return connect(loop, keys, endpoint)

    monkeypatch.setattr(wire, "connect", told)
    running = job(2, 2, encrypt=True, sockets=tmp_path)
    running.start(apart=apart)
    buffers = [torch.randn(200_000)]
    for result in running.together(add(*buffers)).values():
        assert equal(result.sums, buffers, 3)
    assert taken == [way] * 4
    for name in ("server-0", "server-1"):
        running.tasks[name].send({"type": "stop"})
        assert running.run(name).result(30) == 0
    assert list(tmp_path.iterdir()) == []


def test_weights_differ_by_chunk_where_some_may_be_left_out_and_are_evened_out(
    job: MakeJob,
) -> None:
    """Of two workers one is enough: whoever comes second finds sums of which it is no part."""
    running = job(2, 1, backups=1)
    running.start()
    mine = [torch.full((1000,), 8.0), torch.full((10,), 8.0)]
    for backend in running.backends.values():
        backend.register([buffer.clone() for buffer in mine])
    first, second = running.backends[0], running.backends[1]
    first.begin(8.0)
    first.launch(0)
    second.begin(2.0)  # contributes 8 = 2 samples times 4, the first 8 samples times 1
    second.launch(1)
    second.launch(0)
    first.launch(1)
    result, other = first.finish(), second.finish()
    for mean in (result, other):
        assert {round(value, 5) for value in (mean.sums[0] / mean.sums[1][0]).tolist()} <= {
            0.125,
            0.5,
            1.0,
            2.0,
            0.25,
            4.0,
        }
    assert all(torch.equal(a, b) for a, b in zip(result.sums, other.sums))


def test_what_was_lost_on_the_way_is_asked_for_again(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_ASK_AGAIN_SECONDS", 0.1)
    running = job(2, 1)
    lost: list[Any] = []
    summed = client.RoundClient._summed

    def lose_some(self: client.RoundClient, server: int, message: Any) -> None:
        if len(lost) < 3:
            lost.append(message)
        else:
            summed(self, server, message)

    monkeypatch.setattr(client.RoundClient, "_summed", lose_some)
    running.start()
    buffers = [torch.randn(500_000)]
    for result in running.together(add(*buffers)).values():
        assert equal(result.sums, buffers, 3)
    assert len(lost) == 3


def test_a_push_that_was_lost_is_pushed_again(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_ASK_AGAIN_SECONDS", 0.1)
    running = job(2, 1)
    lost: list[Any] = []
    push = pushing.Pusher._push

    def lose_one(self: pushing.Pusher, *what: Any) -> None:
        if lost:
            push(self, *what)
        else:
            lost.append(what)

    monkeypatch.setattr(pushing.Pusher, "_push", lose_one)
    running.start()
    buffers = [torch.randn(1000)]
    for result in running.together(add(*buffers)).values():
        assert equal(result.sums, buffers, 3)


def test_who_is_waited_for_is_said(job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_ASK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(client, "_NOTE_SECONDS", 1000.0)
    running = job(2, 1)
    running.start()
    buffers = [torch.ones(4)]
    waiting = running.apart(add(*buffers), 0)
    of_rounds = running.backends[0]._client
    wait.until(
        lambda: (begun := of_rounds._round) and begun.waited,
        what="the server to answer who is missing",
    )
    monkeypatch.setattr(client, "_NOTE_SECONDS", 0.0)
    (note,) = running.told("worker-0", "note")
    assert note["text"].startswith("a step has waited")
    assert note["text"].endswith("for worker-1")
    running.together(add(*buffers), 1)
    assert equal(waiting.result(60).sums, buffers, 3)


def test_a_worker_that_nobody_answers_ends_once_the_hub_is_gone_too(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "_ASK_AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(client, "_NOTE_SECONDS", 0.2)
    running = job(2, 1)
    running.start()
    waiting = running.apart(add(torch.ones(4)), 0)
    running.told("worker-0", "note")
    assert not waiting.done()
    running.tasks["worker-0"].hang_up()
    assert isinstance(waiting.exception(30), Stop)
    assert "waited" in capfd.readouterr().err


def test_a_server_that_is_replaced_gets_back_the_sums_that_only_some_have(job: MakeJob) -> None:
    running = job(2, 2)
    running.start()
    buffers = [torch.randn(200_000), torch.randn(7)]
    running.together(add(*buffers))
    slow = running.backends[1]
    unblock = threading.Event()
    # Worker 1 pushes, and is kept from reading what comes back until the server is another one.
    push_and_block(slow, unblock)
    fast = running.apart(once(list(running.backends[0]._registered.buffers)), 0)
    assert equal(fast.result(30).sums, buffers, 3)
    fast_sums = [total.clone() for total in fast.result().sums]
    for total in fast.result().sums:
        total.div_(3)  # they are its to write to
    running.restart_server("server-1")
    unblock_at_view(slow, unblock)
    late = running.apart(lambda backend: backend.finish(), 1).result(30)
    assert all(torch.equal(a, b) for a, b in zip(late.sums, fast_sums, strict=True))
    (fault,) = running.told("worker-1", "fault")
    assert "server-1 lost in a step; the others had its sums" in fault["text"]
    assert fault["steps"] == 0
    for result in running.together(add(*buffers)).values():
        assert equal(result.sums, buffers, 3)


def test_the_rest_push_again_when_a_worker_is_lost_in_the_middle_of_a_round(job: MakeJob) -> None:
    running = job(3, 2)
    running.start()
    buffers = [torch.randn(200_000), torch.randn(7)]
    running.together(add(*buffers))
    half = running.backends[0]
    half.begin(1.0)
    half.launch(0)  # and never the second
    others = [running.apart(once(list(running.backends[n]._registered.buffers)), n) for n in (1, 2)]
    wait.until(
        lambda: all(running.backends[n]._client._round for n in (1, 2)), what="the round to begin"
    )
    running.lose_worker(0)
    for other in others:
        result = other.result(30)
        assert result.members == (1, 2)
        assert equal(result.sums, buffers, 5)
    (fault,) = running.told("worker-1", "fault")
    assert (fault["text"], fault["steps"]) == (
        "worker-0 lost in a step; all others pushed again",
        1,
    )
    assert fault["seconds"] >= 0


def test_a_server_and_a_worker_may_be_lost_at_once(job: MakeJob) -> None:
    running = job(3, 2)
    running.start(apart=False)
    buffers = [torch.randn(200_000), torch.randn(7)]
    running.together(add(*buffers))
    others = [running.apart(once(list(running.backends[n]._registered.buffers)), n) for n in (0, 2)]
    wait.until(
        lambda: all(running.backends[n]._client._round for n in (0, 2)), what="the round to begin"
    )
    running.lose_worker(1)
    running.restart_server("server-0")
    for other in others:
        assert equal(other.result(30).sums, buffers, 4)
    for result in running.together(add(*buffers)).values():
        assert result.members == (0, 2)
        assert equal(result.sums, buffers, 4)


def test_a_worker_that_only_lacks_sums_when_another_leaves_takes_them_as_they_were(
    job: MakeJob,
) -> None:
    running = job(2, 2)
    running.start()
    buffers = [torch.randn(200_000), torch.randn(7)]
    running.together(add(*buffers))
    unblock = threading.Event()
    slow = running.backends[1]
    push_and_block(slow, unblock)
    ended = running.apart(once(list(running.backends[0]._registered.buffers)), 0)
    assert equal(ended.result(30).sums, buffers, 3)
    running.lose_worker(0)  # it has all that it came for, and ends
    unblock_at_view(slow, unblock)
    late = running.apart(lambda backend: backend.finish(), 1).result(30)
    assert equal(late.sums, buffers, 3)
    assert running.tasks["worker-1"].of("fault") == []


def test_an_error_in_the_wires_thread_is_raised_where_the_sums_are_waited_for(job: MakeJob) -> None:
    running = job(1, 1)
    running.start()
    running.together(add(torch.ones(2)))
    running.backends[0]._loop.call(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        running.together(add(torch.ones(2)))
