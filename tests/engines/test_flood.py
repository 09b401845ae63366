"""A task that says more on the channel than anybody can work off: it waits, the others do not, and
nothing piles up.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headgate.engines import channel
from headgate.engines.local import LocalEngine
from headgate.isolation.base import Launch
from headgate.isolation.process import ProcessIsolation
from headgate.model.cluster import Node
from headgate.model.identifiers import TaskId
from headgate.model.shares import Share
from headgate.testing import engine_programs
from headgate.testing.recorder import RecordingListener
from headgate.testing.wait import until

FLOOD = """
import json, os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["HEADGATE_CHANNEL"].removeprefix("unix:"))
hello = {"type": "hello", "v": 1, "framework": "none"}
hello |= {"task": os.environ["HEADGATE_TASK"], "key": os.environ["HEADGATE_KEY"]}
connection.sendall(json.dumps(hello).encode() + b"\\n")
for n in range(int(sys.argv[1])):
    message = {"type": "count", "n": n, "text": "x" * int(sys.argv[2])}
    connection.sendall(json.dumps(message).encode() + b"\\n")
"""
RATE, BURST, READ = 200, 100, 1 << 16


class Flooded:
    """A local engine that takes in little, and what it is told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        node = Node("here", cores=2, memory_bytes=1 << 32)
        self.engine = LocalEngine(
            node, ProcessIsolation(f"flood-{os.getpid()}"), folder / "channel.sock"
        )
        self.told = RecordingListener(lambda task: task in self.engine.boxes())

    def start(self, name: str, argv: tuple[str, ...]) -> TaskId:
        task = TaskId(f"flood-{os.getpid()}/{name}/worker-0")
        launch = Launch(
            task=task,
            argv=argv,
            env={"PATH": os.defpath, "HEADGATE_TASK": task},
            cwd="/",
            threads=1,
        )
        self.engine.start(launch, Share(), str(self.folder / f"{name}.log"))
        return task

    def flood(self, messages: int, length: int = 1) -> TaskId:
        return self.start(
            "flood", (sys.executable, "-I", "-S", "-c", FLOOD, str(messages), str(length))
        )

    def ended(self, task: TaskId) -> None:
        until(lambda: self.told.exit(task) is not None, 60, f"the end of {task}")


@pytest.fixture
def flooded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flooded]:
    monkeypatch.setattr(channel, "MESSAGES_A_SECOND", RATE)
    monkeypatch.setattr(channel, "BURST_MESSAGES", BURST)
    flooded = Flooded(tmp_path)
    flooded.engine.open(flooded.told)
    yield flooded
    flooded.engine.close()
    assert flooded.told.breaches == []


@pytest.mark.parametrize("length", [1, 10_000])
def test_no_more_is_taken_in_than_can_be_worked_off(flooded: Flooded, length: int) -> None:
    began = time.monotonic()
    task = flooded.flood(10**9, length)
    until(lambda: len(flooded.told.messages(task, "count")) > 30, 60, "a second look at the flood")
    for each in range(3):
        quick = flooded.start(f"quick-{each}", engine_programs.argv("talk", 3))
        flooded.ended(quick)
        assert len(flooded.told.messages(quick, "count")) == 3
    taken = len(flooded.told.messages(task, "count"))
    line = length + 30
    most = (BURST + RATE * (time.monotonic() - began)) / (
        1 + line / channel.MESSAGE_BYTES
    ) + READ / line
    assert taken <= most
    flooded.engine.stop(task, 0)
    flooded.ended(task)


def test_what_a_task_says_too_fast_is_told_late_and_whole(flooded: Flooded) -> None:
    task = flooded.flood(20_000, 1)  # more than a socket holds
    until(lambda: flooded.told.of(task, "warned"), 60, "a warning")
    assert flooded.told.exit(task) is None, "it was not held up"
    flooded.engine.stop(task, 0)
    flooded.ended(task)
    numbers = [message["n"] for message in flooded.told.messages(task, "count")]
    assert numbers == list(range(len(numbers)))
    (warning,) = flooded.told.of(task, "warned")
    assert "messages a second" in warning.what
