"""A bridge that Ray runs as a job: how it calls, who else may not, and what it brings and takes."""

from __future__ import annotations

import os
import pickle
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engines.ray.cluster import free_port, head
from tests.engines.ray.running import PATIENCE_SECONDS, Running

from headgate.engines.ray.engine import RayEngine
from headgate.engines.remote.pipe import Pipe, facts
from headgate.engines.remote.wire import (
    Close,
    Exited,
    Joined,
    Opened,
    Output,
    Release,
    Returned,
    SampledUsage,
)
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.errors import HeadgateError, UsageError
from headgate.model.identifiers import TaskId
from headgate.model.shares import Lever, Uncontrolled
from headgate.testing.recorder import RecordingListener
from headgate.testing.wait import until


@pytest.fixture
def dashboard() -> Iterator[str]:
    """URL of the dashboard of a Ray on this machine."""
    pytest.importorskip("ray", reason="engine `ray` needs Ray: pip install 'ray>=2.30'")
    port = free_port()
    with head(dashboard=port):
        url = f"http://127.0.0.1:{port}"
        until(lambda: listens(port), PATIENCE_SECONDS, "the dashboard listens")
        yield url


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def ours(*before: str) -> list[str]:
    """Folders of bridges and agents, and cgroups of agents' boxes, that were not there before."""
    walk = os.walk("/sys/fs/cgroup")
    boxes = [
        f"{at}/{name}"
        for at, names, _ in walk
        for name in names
        if name.startswith("headgate-ray-")
    ]
    found = {*boxes, *map(str, Path("/tmp").glob("headgate-ray-*"))}
    return sorted(found - set(before))


def refusal(address: str) -> HeadgateError:
    with pytest.raises(HeadgateError) as caught:
        RayEngine(address).open(RecordingListener(lambda _: False))
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.long
def test_as_a_job_it_does_what_one_beside_the_hub_does(
    dashboard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, saved, earlier = tmp_path / "work", tmp_path / "checkpoints", tmp_path / "earlier.bin"
    work.mkdir()
    saved.mkdir()
    (work / "train.py").write_text(
        "import json, os, socket\n"
        "print('resumes', len(open(os.environ['HEADGATE_RESUME'], 'rb').read()), flush=True)\n"
        "path = os.path.join(os.environ['HEADGATE_CHECKPOINTS'], 'step-3.bin')\n"
        "open(path, 'wb').write(bytes(range(256)) * 40_000)\n"
        "channel = socket.socket(socket.AF_UNIX)\n"
        "channel.connect(os.environ['HEADGATE_CHANNEL'].removeprefix('unix:'))\n"
        "hello = {'type': 'hello', 'v': 1, 'task': os.environ['HEADGATE_TASK'], 'key': "
        "os.environ['HEADGATE_KEY']}\n"
        "for message in ({**hello, 'framework': 'none'}, {'type': 'checkpoint', 'path': path, "
        "'step': 3}):\n"
        "    channel.sendall(json.dumps(message).encode() + b'\\n')\n"
    )
    earlier.write_bytes(b"x" * 5_000_000)
    # Nothing of Ray is asked of the hub's machine: it has none.
    monkeypatch.setitem(sys.modules, "ray", None)
    places = ours()
    running = Running(dashboard, tmp_path, shared_files=False)
    variables = {"HEADGATE_CHECKPOINTS": str(saved), "HEADGATE_RESUME": str(earlier)}
    task = running.start((sys.executable, "train.py"), cwd=str(work), **variables)
    assert running.ended(task).ok, running.log().read_text()
    assert running.told.lines(task) == ["resumes 5000000"]
    [message] = running.told.messages(task, "checkpoint")
    assert Path(message["path"]) == saved / "step-3.bin"
    assert (saved / "step-3.bin").read_bytes() == bytes(range(256)) * 40_000
    running.engine.close()
    assert running.told.breaches == []
    until(lambda: not ours(*places), PATIENCE_SECONDS, "nothing is left")


def test_where_no_dashboard_is_that_is_said() -> None:
    assert "no Jobs API of a Ray cluster answers at http://127.0.0.1:9: " in str(
        refusal("http://127.0.0.1:9")
    )
    assert isinstance(refusal("http://"), UsageError)


def test_what_is_not_sealed_with_the_key_is_not_taken() -> None:
    for key in (b"hers", b"his"):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            Pipe(ours, b"hers", "hub").send(Close())
            assert Pipe(theirs, key, "bridge").receive() == (Close() if key == b"hers" else None)


def test_what_was_sealed_once_is_not_taken_twice_nor_back() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Pipe(ours, b"key", "hub").send(Release("a", (TaskId("a/worker-0"),)))
        heard = theirs.recv(4096)
        bridge = Pipe(theirs, b"key", "bridge")
        ours.sendall(heard + heard)
        assert bridge.receive() == Release("a", (TaskId("a/worker-0"),))
        assert bridge.receive() is None
        theirs.sendall(heard)
        assert Pipe(ours, b"key", "hub").receive() is None


class Harmful:
    """Calls something when it is unpickled."""

    def __init__(self, call: str, argument: str) -> None:
        self._does = (pickle.loads(f"c{call.replace('.', chr(10), 1)}\n.".encode()), (argument,))

    def __reduce__(self) -> tuple[Any, tuple[str, ...]]:
        return self._does


def test_of_what_the_cluster_says_the_hub_takes_facts_alone(tmp_path: Path) -> None:
    node = Joined(Node("b", 2.0, 2**30))
    usage = SampledUsage("node:b", {"cpu_cores": 1.5})
    output = Output(TaskId("r/a/worker-0"), bytearray(b"line\n"))
    for said in (
        node,
        usage,
        output,
        Returned(1, {"rate": (1.0, None)}),
        Opened("a:1", "a", (node.node,), (Uncontrolled(Lever.DISK_RATE, "it is not limited"),)),
        Exited(TaskId("r/a/worker-0"), Exit(code=1, reason="x")),
    ):
        assert facts(pickle.dumps(said)) == said
    trace = tmp_path / "called"
    for harmful in (
        pickle.dumps(Returned(1, Harmful("os.system", f"touch {trace}"))),
        pickle.dumps(Harmful("builtins.eval", f"open({str(trace)!r}, 'w')")),
        b"cheadgate.runs\nshutil.rmtree\n(S'/tmp/nowhere'\ntR.",
        b"cheadgate.runs\nremove\n(S'/tmp/nowhere'\ntR.",
        b"cheadgate.__main__\nmain\n.",
        pickle.dumps(node)[:-9],
        b"",
    ):
        with pytest.raises(pickle.UnpicklingError):
            facts(harmful)
    assert not trace.exists()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Pipe(theirs, b"", "bridge").send(Returned(1, Harmful("os.system", f"touch {trace}")))
        assert Pipe(ours, b"", "hub").receive() is None
    assert not trace.exists()
