"""The task's end of the channel."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headgate.task import Channel, TaskEnvironment
from headgate.testing import wait
from headgate.testing.listener import ChannelListener


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[ChannelListener]:
    with ChannelListener(
        tmp_path, welcome={"role": "worker", "index": 0, "plan": {}, "threads": 2}
    ) as listening:
        yield listening


def opened(listener: ChannelListener) -> Channel:
    return Channel.open(TaskEnvironment.read(listener.environment()), "torch", "2.0", 7)


def test_says_hello_first_and_takes_the_welcome(listener: ChannelListener) -> None:
    channel = opened(listener)
    channel.send({"type": "note", "text": "x"})
    listener.wait_for("note")
    hello = listener.messages[0]
    assert (hello["type"], hello["v"], hello["key"], hello["pid"]) == (
        "hello",
        1,
        "secret",
        os.getpid(),
    )
    assert (hello["task"], hello["framework"], hello["framework_version"]) == (
        "run/job/worker-0",
        "torch",
        "2.0",
    )
    assert hello["seed"] == 7
    wait.until(lambda: channel.pending)
    assert channel.welcome["role"] == "worker"
    assert channel.take_threads() == 2
    assert channel.take_threads() is None
    assert not channel.pending
    channel.close()


def test_orders_are_taken_once_and_a_stop_stays(listener: ChannelListener) -> None:
    channel = opened(listener)
    wait.until(channel.take_threads)
    listener.send({"type": "of the future", "v": 9})
    listener.send({"type": "checkpoint"})
    wait.until(lambda: channel.pending)
    assert channel.take_checkpoint()
    assert not channel.take_checkpoint()
    listener.send({"type": "stop"})
    wait.until(lambda: channel.stopping)
    listener.hang_up()
    wait.until(lambda: not channel.connected)
    assert channel.stopping == "stop"
    assert channel.pending


@pytest.mark.parametrize("name", ["position", "elsewhere"])
def test_positions_of_others_are_known_until_all_have_come(
    listener: ChannelListener, name: str
) -> None:
    channel = opened(listener)
    listener.wait_for("hello")
    listener.send({"type": name, "index": 1, "standing": {"step": 3, "waits": True}})
    listener.send({"type": name, "index": 2, "standing": {"step": 4, "ended": True}})
    wait.until(lambda: len(channel.positions) == 2)
    listener.send({"type": "met", "given": []})
    wait.until(lambda: channel.met is not None)
    assert channel.positions == {2: {"step": 4, "ended": True}}


def test_a_hold_ends_with_a_release_also_where_another_one_follows(
    listener: ChannelListener,
) -> None:
    channel = opened(listener)
    listener.wait_for("hello")

    def ask() -> None:
        listener.send({"type": "checkpoint", "hold": True})

    @contextmanager
    def held() -> Iterator[None]:
        """Held until what is done here."""
        wait.until(channel.take_hold)
        thread = threading.Thread(target=channel.hold, args=(60.0,), daemon=True)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        yield
        thread.join(60)
        assert not thread.is_alive()

    ask()
    with held():
        listener.send({"type": "release"})
    ask()
    with held():
        listener.send({"type": "release"})
        ask()
    with held():
        listener.send({"type": "stop"})
    assert not channel.take_hold()
    channel.close()


def test_a_connection_that_closes_without_a_stop_orphans_the_task(
    listener: ChannelListener,
) -> None:
    channel = opened(listener)
    listener.wait_for("hello")
    listener.hang_up()
    wait.until(lambda: channel.stopping == "orphaned")
    channel.send({"type": "note", "text": "nobody reads this"})
    assert channel.flush(0.1)


def test_an_engine_that_cannot_be_reached_gives_a_channel_that_swallows_everything(
    tmp_path: Path,
) -> None:
    channel = Channel.open(TaskEnvironment(channel=str(tmp_path / "nobody")), "torch", "2.0", 7)
    channel.send({"type": "note", "text": "x"})
    assert channel.flush(0.1)
    assert not (channel.connected or channel.pending or channel.stopping)


def test_an_engine_that_does_not_read_never_holds_up_the_sender(tmp_path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(tmp_path / "deaf"))
    server.listen(1)
    channel = Channel.open(TaskEnvironment(channel=str(tmp_path / "deaf")), "torch", "2.0", 7)
    connection, _ = server.accept()

    def report() -> None:
        for step in range(3000):
            channel.send(
                {"type": "progress", "step": step, "padding": "x" * 1000}, can_be_missed=True
            )
        channel.send({"type": "checkpoint", "path": "the last"})

    sender = threading.Thread(target=report, daemon=True)
    sender.start()
    sender.join(60)
    assert not sender.is_alive()  # though nobody has read anything
    assert not channel.flush(0.05)

    received = bytearray()

    def drain() -> None:
        while b"the last" not in received:
            received.extend(connection.recv(1 << 16))

    reader = threading.Thread(target=drain)
    reader.start()
    reader.join(60)
    # sent by the channel's own thread, though the script sends nothing more
    assert b"the last" in received
    assert received.count(b"\n") < 3000
    channel.close()
    connection.close()
    server.close()


def test_what_json_lacks_goes_as_strings(listener: ChannelListener) -> None:
    channel = opened(listener)
    channel.send(
        {
            "type": "progress",
            "loss": float("nan"),
            "metrics": {"a": float("inf"), "b": [-float("inf"), 1.5]},
        }
    )
    assert listener.wait_for("progress")[0] == {
        "type": "progress",
        "loss": "nan",
        "metrics": {"a": "inf", "b": ["-inf", 1.5]},
    }
    channel.close()


def test_a_forked_child_neither_speaks_nor_is_orphaned(listener: ChannelListener) -> None:
    channel = opened(listener)
    listener.wait_for("hello")
    with channel._lock:  # as its reading thread may hold it at any moment
        child = os.fork()
    if child == 0:
        channel.send({"type": "note", "text": "from the child"})
        channel.close()
        os._exit(0 if not channel.connected and not channel.stopping else 1)
    assert os.waitpid(child, 0)[1] == 0
    channel.send({"type": "note", "text": "from the parent"})
    assert [note["text"] for note in listener.wait_for("note")] == ["from the parent"]
    channel.close()


def test_child_programs_do_not_find_the_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADGATE_CHANNEL", "unix:/x")
    monkeypatch.setenv("HEADGATE_KEY", "k")
    monkeypatch.setenv("HEADGATE_TASK", "r/j/worker-0")
    environment = TaskEnvironment.claim()
    assert (environment.channel, environment.key, environment.task) == ("/x", "k", "r/j/worker-0")
    assert TaskEnvironment.read().channel is None
    assert "HEADGATE_KEY" not in os.environ


@pytest.mark.parametrize("channel", ["", "tcp:10.0.0.1:5", "unix:", "nonsense"])
def test_a_channel_that_is_not_understood_counts_as_none(channel: str) -> None:
    assert TaskEnvironment.read({"HEADGATE_CHANNEL": channel}).channel is None


def test_importing_needs_only_the_standard_library_and_little_time() -> None:
    """CPU time in proportion to that of what any client of a socket imports, which the same machine
    takes as well.
    """
    source = Path(__file__).parents[2] / "src"
    script = (
        f"import sys, time; sys.path.insert(0, {str(source)!r}); begun = time.process_time(); "
        "import json, socket; theirs = time.process_time() - begun; import headgate.task.session; "
        "ours = time.process_time() - begun - theirs; roots = {name.partition('.')[0] for name "
        "in sys.modules}; assert roots <= set(sys.stdlib_module_names) | {'headgate', "
        "'__main__', '__mp_main__'}, roots; print(ours / theirs)"
    )
    command = [sys.executable, "-I", "-S", "-c", script]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
    assert min(float(run.stdout) for run in runs) < 8


def test_a_task_that_outlives_its_hub_meets_the_next(tmp_path: Path) -> None:
    first = ChannelListener(tmp_path, welcome={"role": "worker", "threads": 2})
    variables = first.environment(HEADGATE_ON_HUB_DEATH="go-on")
    channel = Channel.open(TaskEnvironment.read(variables), "torch", "2.0", 7)
    wait.until(channel.take_threads)
    first.hang_up()
    first.close()
    wait.until(lambda: channel._apart)
    channel.send({"type": "progress", "step": 1}, can_be_missed=True)
    channel.send({"type": "checkpoint", "path": "kept"})
    assert (channel.stopping, channel.connected, channel.flush(0.01)) == ("", True, False)
    first.path.unlink(missing_ok=True)
    with ChannelListener(tmp_path, welcome={"role": "worker", "threads": 3}) as second:
        assert second.wait_for("checkpoint")[0]["path"] == "kept"
        assert [message["type"] for message in second.messages] == ["hello", "checkpoint"]
        assert wait.until(channel.take_threads) == 3
        second.send({"type": "stop"})
        wait.until(lambda: channel.stopping == "stop")
