"""When a server ends, and what it tells of its rounds."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from headgate.testing import wait
from headgate.torch.ps.transport import server

MakeJob = Callable[..., Any]


def rounds(count: int) -> Callable[[Any], None]:
    def act(backend: Any) -> None:
        mine = torch.ones(1000)
        backend.register([mine])
        backend.broadcast([mine])  # a round that is of no step
        for step in range(1, count + 1):
            backend.observer = SimpleNamespace(step=step)
            backend.begin(1.0)
            backend.launch(0)
            assert backend.finish().sums[0].eq(2.0).all()

    return act


def test_a_server_ends_well_when_it_is_told_to(job: MakeJob) -> None:
    running = job(2, 1)
    running.start()
    running.together(rounds(2))
    running.tasks["server-0"].send({"type": "stop"})
    assert running.run("server-0").result(30) == 0


def test_a_server_whose_hub_is_gone_serves_until_no_worker_speaks(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ORPHANED_SECONDS", 1000.0)
    running = job(2, 1)
    running.start()
    ended = running.run("server-0")
    running.tasks["server-0"].hang_up()
    wait.until(
        lambda: running.tasks["server-0"].channel.stopping == "orphaned",
        what="the hub to be missed",
    )
    running.together(rounds(3))
    assert not ended.done()
    monkeypatch.setattr(server, "ORPHANED_SECONDS", 0.0)
    assert ended.result(60) == 0


def test_an_error_ends_a_server_whose_hub_is_gone_at_once(
    job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "ORPHANED_SECONDS", 1000.0)
    running = job(1, 1)
    running.start()
    running.tasks["server-0"].hang_up()
    wait.until(
        lambda: running.tasks["server-0"].channel.stopping == "orphaned",
        what="the hub to be missed",
    )
    running.server("server-0").loop.call(lambda: 1 // 0)
    assert running.run("server-0").result(60) == 1


def test_an_error_ends_a_server_and_is_printed(
    job: MakeJob, capfd: pytest.CaptureFixture[str]
) -> None:
    running = job(2, 1)
    running.start()
    running.server("server-0").loop.call(lambda: 1 // 0)
    assert running.run("server-0").result(30) == 1
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_server_tells_where_the_time_of_some_rounds_went(job: MakeJob) -> None:
    running = job(2, 1)
    running.start()
    running.together(rounds(7))
    spans = wait.until(
        lambda: running.tasks["server-0"].of("spans")[4:], what="spans"
    ) and running.tasks["server-0"].of("spans")
    assert [message["step"] for message in spans] == [3, 4, 5, 6, 7]
    for message in spans:
        assert [span["name"] for span in message["spans"]] == ["receive", "update", "send", "idle"]
        assert sum(span["seconds"] for span in message["spans"]) == pytest.approx(
            message["seconds"], rel=0.01
        )
        assert message["spans"][0]["bytes_in"] == message["spans"][2]["bytes_out"] == 8000
