"""Nodes that do not see this machine's files: the job's folder goes there, checkpoints go both
ways.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.ray.cluster import folders_left
from tests.engines.ray.running import PATIENCE_SECONDS, RayStaysOpen, Running

from headgate.engines.remote import files
from headgate.model.errors import UsageError
from headgate.testing.wait import until

SAVER = """
import json, os, pathlib, socket, sys
task, key = os.environ["HEADGATE_TASK"], os.environ["HEADGATE_KEY"]
folder = pathlib.Path(os.environ["HEADGATE_CHECKPOINTS"])
channel = socket.socket(socket.AF_UNIX)
channel.connect(os.environ["HEADGATE_CHANNEL"].removeprefix("unix:"))
def say(message): channel.sendall(json.dumps(message).encode() + b"\\n")
say({"type": "hello", "v": 1, "task": task, "key": key, "framework": "none"})
if resume := os.environ.get("HEADGATE_RESUME"):
    print("resumed from", len(open(resume, "rb").read()), "bytes", flush=True)
(folder / "step-3.bin").write_bytes(bytes(range(256)) * 40_000)
(folder / "step-4").mkdir()
(folder / "step-4" / "part").write_text("a part")
(folder / "step-4" / "empty").write_text("")
for name in ("step-3.bin", "step-4"):
    say({"type": "checkpoint", "path": str(folder / name), "step": int(name[5])})
for line in channel.makefile():
    message = json.loads(line)
    if message["type"] == "state":
        print("state of", len(open(message["path"], "rb").read()), "bytes", flush=True)
        sys.exit(0)
"""


@pytest.fixture(scope="module")
def kept(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayStaysOpen]:
    speeds = tmp_path_factory.mktemp("speeds") / "speeds.json"
    engine = RayStaysOpen(ray_address, shared_files=False, speeds=speeds)
    yield engine
    engine.end()
    assert folders_left() == []


@pytest.fixture
def remote(kept: RayStaysOpen, ray_address: str, tmp_path: Path) -> Iterator[Running]:
    running = Running(ray_address, tmp_path, kept=kept)
    yield running
    running.engine.close()
    assert running.told.breaches == []


def test_a_job_starts_in_a_copy_of_its_folder(remote: Running, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "data").mkdir(parents=True)
    (work / ".git").mkdir()
    (work / "data" / "numbers").write_text("1 2 3")
    (work / "beside.py").write_text("answer = 42")
    (work / "train.py").write_text(
        "import os, sys, beside\n"
        "print('answer', beside.answer, open('data/numbers').read(), open(sys.argv[1]).read())\n"
        "print('sees', sorted(os.listdir('.')))\n"
        "print('in', os.getcwd())\n"
    )
    task = remote.start((sys.executable, "train.py", f"{work}/data/numbers"), cwd=str(work))
    assert remote.ended(task).ok
    answer, sees, where = remote.told.lines(task)
    assert answer == "answer 42 1 2 3 1 2 3"
    assert "'beside.py'" in sees
    assert ".git" not in sees
    assert str(work) not in where
    assert remote.log().read_text().splitlines() == [answer, sees, where]


def test_checkpoints_come_back_before_they_are_told_of_and_go_there_to_resume(
    remote: Running, tmp_path: Path
) -> None:
    saved, work = tmp_path / "checkpoints", tmp_path / "work"
    saved.mkdir()
    work.mkdir()
    (work / "save.py").write_text(SAVER)
    earlier = tmp_path / "earlier.bin"
    earlier.write_bytes(b"x" * 5_000_000)
    task = remote.start(
        (sys.executable, "save.py"),
        cwd=str(work),
        HEADGATE_CHECKPOINTS=str(saved),
        HEADGATE_RESUME=str(earlier),
    )
    until(
        lambda: len(remote.told.messages(task, "checkpoint")) == 2,
        PATIENCE_SECONDS,
        "two checkpoints",
    )
    file, folder = (Path(message["path"]) for message in remote.told.messages(task, "checkpoint"))
    assert file == saved / "step-3.bin"
    assert file.read_bytes() == bytes(range(256)) * 40_000
    assert (folder / "part").read_text() == "a part"
    assert (folder / "empty").read_text() == ""
    assert sorted(path.name for path in saved.iterdir()) == ["step-3.bin", "step-4"]
    remote.engine.send(task, {"type": "state", "path": str(earlier)})
    assert remote.ended(task).ok
    assert remote.told.lines(task) == ["resumed from 5000000 bytes", "state of 5000000 bytes"]
    # A server that is started on another node finds there what was brought of its last one.
    contents = ["of before", "of lately"]
    for content in contents:
        (saved / "server-0.copy").write_text(content)
        line = (
            "import os; print(open(os.environ['HEADGATE_CHECKPOINTS'] + '/server-0.copy').read())"
        )
        task = remote.start(
            (sys.executable, "-c", line),
            cwd=str(work),
            role="server",
            HEADGATE_CHECKPOINTS=str(saved),
        )
        ends = contents.index(content) + 1
        until(lambda: len(remote.told.of(task, "exited")) == ends, PATIENCE_SECONDS, "its end")  # noqa: B023
    assert remote.told.lines(task) == contents


def test_a_folder_that_is_not_there_or_too_large_is_the_reason_why_it_does_not_start(
    remote: Running, tmp_path: Path
) -> None:
    task = remote.start((sys.executable, "train.py"), cwd=str(tmp_path / "nowhere"))
    reason = remote.ended(task).reason
    assert reason is not None
    assert "nowhere" in reason
    large = tmp_path / "large"
    large.mkdir()
    with open(large / "weights.bin", "wb") as file:
        file.truncate(files.MOST_BYTES + 1)
    reason = remote.ended(remote.start((sys.executable, "train.py"), "large", str(large))).reason
    assert reason is not None
    assert "weights.bin 210 MB" in reason
    assert "--shared-files" in reason


def test_a_python_that_is_not_there_is_replaced_with_a_warning(
    remote: Running, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    task = remote.start(
        ("/no/such/env/bin/python", "-c", "print('here')"), cwd=str(tmp_path / "work")
    )
    assert remote.ended(task).ok
    assert "has no /no/such/env/bin/python" in remote.told.of(task, "warned")[0].what


def test_environments_and_caches_are_not_packed(tmp_path: Path) -> None:
    for name in (".git/objects", "__pycache__", "mine/lib", "kept"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(json.dumps(name))
    (tmp_path / "mine" / "pyvenv.cfg").write_text("home = /usr")
    (tmp_path / "link").symlink_to("kept/file")
    out = tmp_path.parent / f"{tmp_path.name}-unpacked"
    files.unpack(files.pack(tmp_path), out)
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*")) == [
        "kept",
        "kept/file",
        "link",
    ]
    assert (out / "link").read_text() == '"kept"'


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere cannot be read"):
        files.pack(tmp_path / "nowhere")


CONNECTED = SAVER.partition("if resume")[0]
STRAY = (
    CONNECTED
    + """
(folder / "step-1").mkdir()
(folder / "step-1" / "link").symlink_to("/etc/passwd")
(folder / "step-2").symlink_to("/etc/passwd")
(folder / "step-3").write_text("whole")
paths = [folder / name for name in ("../stray", "x/../../../stray", "step-1", "step-2", "step-3")]
for path in paths:
    say({"type": "checkpoint", "path": str(path), "step": 1, "epoch": 0})
channel.makefile().readline()
"""
)


def test_a_task_has_nothing_written_but_its_own_checkpoints(
    remote: Running, tmp_path: Path
) -> None:
    saved, work = tmp_path / "run" / "checkpoints", tmp_path / "work"
    saved.mkdir(parents=True)
    work.mkdir()
    (work / "save.py").write_text(STRAY)
    task = remote.start((sys.executable, "save.py"), cwd=str(work), HEADGATE_CHECKPOINTS=str(saved))
    until(
        lambda: len(remote.told.messages(task, "checkpoint")) == 4, PATIENCE_SECONDS, "what it says"
    )
    # What lies elsewhere is not brought: whoever hears of it finds a path of the node.
    brought = [
        m["path"]
        for m in remote.told.messages(task, "checkpoint")
        if str(m["path"]).startswith(str(tmp_path))
    ]
    assert brought == [str(saved / "step-3")]
    [failed] = remote.told.messages(task, "checkpoint_failed")
    assert "is a link that leads out of" in failed["error"]
    assert [path.name for path in saved.rglob("*")] == ["step-3"]
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("run", "work")] == []
    remote.engine.stop(task, 0)
    remote.ended(task)
