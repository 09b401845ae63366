"""Training in this process as a task of its own, on a real channel."""

from __future__ import annotations

import atexit
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import headgate.jax as hg
from headgate.jax import joining
from headgate.testing import wait
from headgate.testing.listener import ChannelListener


@dataclass
class Attempt:
    """What came of a training: its result (None where it was stopped) and its messages."""

    result: Any
    messages: list[dict[str, Any]]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]

    @property
    def checkpoint(self) -> dict[str, Any]:
        return self.of("checkpoint")[-1]

    @property
    def notes(self) -> list[str]:
        return [note["text"] for note in self.of("note")]


Training = Callable[[Callable[[int], None]], Any]
Attempting = Callable[..., Attempt]


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempting:
    """Runs a training function, which calls `headgate.jax.init` first, as a task.

    The function is given a callable that it calls with the number of each step; at `order_at`,
    `order` is sent there and has arrived when the call returns.
    """
    monkeypatch.setattr(joining, "begun", lambda: False)  # it has, in the test before

    def attempting(
        training: Training,
        order: str | Mapping[str, Any] = "stop",
        order_at: int | None = None,
        resume: str = "",
        **more: str,
    ) -> Attempt:
        folder = tmp_path / f"attempt-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        with ChannelListener(
            folder, welcome={"role": "worker", "index": 0, "plan": {}, "threads": 1}
        ) as listener:
            variables = listener.environment(
                **({"HEADGATE_RESUME": resume} if resume else {}), **more
            )
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setattr(hg._door, "session", None)
            monkeypatch.setattr(hg._door, "is_joined", False)

            def at_step(step: int) -> None:
                if step == order_at:
                    assert hg._door.session is not None
                    channel = hg._door.session._channel
                    listener.wait_for("hello")
                    if order == "hang up":
                        listener.hang_up()
                    else:
                        listener.send({"type": order} if isinstance(order, str) else order)
                    wait.until(lambda: channel.pending)

            try:
                result = training(at_step)
            except hg.Stop:
                result = None
            finally:
                session = hg._door.session
                if session is not None:
                    atexit.unregister(session.close)
                    session.close()
                    session._channel.close()
                    listener.finish()
                for name in variables:
                    monkeypatch.delenv(name, raising=False)
                monkeypatch.setattr(hg._door, "session", None)
        return Attempt(result, listener.messages)

    return attempting
