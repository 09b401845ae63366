"""How a task's first process comes to be: what it is given, and what is said when it cannot be."""

from __future__ import annotations

import json
import marshal
import os
import resource
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headgate.isolation import launcher
from headgate.isolation.base import Launch
from headgate.isolation.process import ProcessIsolation
from headgate.machine import processes
from headgate.model.errors import IsolationError
from headgate.model.identifiers import TaskId
from headgate.model.shares import Share

ISOLATION = ProcessIsolation(f"start-{os.getpid()}")


def output_of(launch: Launch) -> str:
    reading, writing = os.pipe()
    try:
        box = ISOLATION.start(launch, Share(), writing)
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    with open(reading, errors="surrogateescape") as pipe:
        text = pipe.read()
    box.close()
    return text


def launch(*argv: str, cwd: str | Path = "/", **env: str) -> Launch:
    return Launch(TaskId("run/job/worker-0"), argv, env, str(cwd), 1)


def script(path: Path, first_line: str, mode: int = 0o755) -> Path:
    path.write_text(f"{first_line}\necho from the script\n")
    path.chmod(mode)
    return path


def test_the_environment_is_exactly_what_was_asked_for() -> None:
    given = output_of(launch("/usr/bin/env", GREETING="a=b", ODD="\udcff"))
    assert sorted(given.splitlines()) == [
        "GREETING=a=b",
        "HEADGATE_TASK=run/job/worker-0",
        "ODD=\udcff",
    ]


def test_signals_are_as_a_program_expects_them() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        status = output_of(launch("/bin/cat", "/proc/self/status"))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.signal(signal.SIGTERM, before)
    masks = {
        line.split()[0]: int(line.split()[1], 16)
        for line in status.splitlines()
        if line.startswith(("SigBlk", "SigIgn"))
    }
    # Two numbers are the C library's own, and nobody can say anything of them.
    settable = sum(1 << (number - 1) for number in signal.valid_signals())
    assert masks["SigBlk:"] & settable == 0
    assert masks["SigIgn:"] & settable == 0


def test_a_task_may_open_as_many_files_as_without_headgate() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 100, before[1]))
    try:
        assert output_of(launch("/bin/sh", "-c", "ulimit -n")).split() == [str(before[0])]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_programs_are_looked_for_in_the_folder_and_on_the_path_of_the_task(tmp_path: Path) -> None:
    script(tmp_path / "train", "#!/bin/sh")
    assert output_of(launch("./train", cwd=tmp_path)) == "from the script\n"
    assert output_of(launch("train", PATH=f"/nowhere:{tmp_path}")) == "from the script\n"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ((), "no program was named"),
        (("missing",), "no program 'missing' on its PATH"),
        (("./missing",), "missing does not exist"),
        (("./folder",), "folder is a folder"),
        (("./plain",), "plain may not be executed; try: chmod \\+x"),
        (
            ("./orphan",),
            "orphan cannot be executed: the interpreter named in its first line does not exist",
        ),
        (
            ("./strange",),
            (
                "strange cannot be executed: it is neither a program of this machine nor begins "
                "with a #! line"
            ),
        ),
    ],
)
def test_what_cannot_be_started_is_said(
    tmp_path: Path, argv: tuple[str, ...], message: str
) -> None:
    (tmp_path / "folder").mkdir()
    script(tmp_path / "plain", "#!/bin/sh", mode=0o644)
    script(tmp_path / "orphan", "#!/no/such/interpreter")
    script(tmp_path / "strange", "no first line")
    with pytest.raises(IsolationError, match=f"run/job/worker-0: .*{message}"):
        output_of(launch(*argv, cwd=tmp_path, PATH="/usr/bin"))


@pytest.mark.parametrize(
    "odd", [{"argv": ("/bin/true", "a\0b")}, {"env": {"A=B": "1"}}, {"env": {"A": "a\0b"}}], ids=str
)
def test_what_no_program_can_be_given_is_no_start(odd: dict[str, Any]) -> None:
    with pytest.raises(IsolationError, match="/bin/true cannot be executed: Invalid argument"):
        output_of(replace(launch("/bin/true"), **odd))


def test_a_launcher_that_is_killed_at_once_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dies = tmp_path / "dies.py"
    dies.write_text("import os; os.kill(os.getpid(), 9)")
    monkeypatch.setattr(launcher, "__file__", str(dies))
    with pytest.raises(IsolationError, match="ended with signal 9 before the program began"):
        output_of(launch("true"))


def test_a_folder_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(IsolationError, match=r"'.*/gone' does not exist"):
        output_of(launch("/bin/true", cwd=tmp_path / "gone"))


@pytest.mark.parametrize("order", [b"", marshal.dumps(("/bin/true", [], {}))[:-1]])
def test_a_process_whose_starter_died_does_not_become_the_task(order: bytes) -> None:
    ours, theirs = socket.socketpair()
    keeper, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, its:
        fds = (theirs.fileno(), its.fileno())
        words = [sys.executable, "-I", "-S", launcher.__file__, *map(str, fds), "0"]
        waiting = subprocess.Popen(words, pass_fds=fds)
    with keeper:
        assert int(keeper.recv(4096).split()[0]) != waiting.pid
        ours.sendall(order)
        ours.close()
        end = json.loads(keeper.recv(4096))
        assert (end["status"], end["begun"]) == (125, False)
    assert waiting.wait(timeout=120) == 0


@pytest.mark.parametrize("group", ["", "../up", "a/b", ".hidden", "x" * 65])
def test_a_group_that_cannot_name_a_folder_is_refused(group: str) -> None:
    with pytest.raises(ValueError, match="isolation group"):
        ProcessIsolation(group)


def test_a_cgroup_version_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IsolationError, match="cgroup v1 cannot be used here"):
        ProcessIsolation("group", mode="v1", root=tmp_path)
    with pytest.raises(IsolationError, match="cgroup v2 cannot be used here"):
        ProcessIsolation("group", mode="v2", root=tmp_path)
    assert ProcessIsolation("group", root=tmp_path).mode == "none"


@pytest.mark.parametrize("other", [{"started": 1}, {"boot": "another"}])
def test_a_process_id_that_was_used_again_is_neither_taken_up_nor_ended(
    other: dict[str, object], tmp_path: Path
) -> None:
    isolation = ProcessIsolation("group", mode="none")
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        places = {"end": str(tmp_path / "end"), "socket": str(tmp_path / "socket")}
        keeper = {"pid": stranger.pid, "started": 1, "floor": 0, "places": places}
        seen = processes.look(stranger.pid)
        assert seen is not None
        # whatever has the id of the task is ended: it is nobody else's
        task = f"run-{os.getpid()}/job/worker-0"
        record = {
            "task": task,
            "mode": "none",
            "folders": {},
            "keeper": keeper,
            "pid": seen.pid,
            "started": seen.started,
            "boot": processes.boot_id(),
            **other,
        }
        with pytest.raises(IsolationError):
            isolation.take_up(record)
        isolation.sweep(record)
        isolation.release(record)
        assert stranger.poll() is None
        stranger.kill()


@pytest.mark.parametrize("record", [{}, {"task": 3, "folders": {}}, {"task": "a", "folders": "b"}])
def test_what_is_no_record_is_not_swept(record: dict[str, object]) -> None:
    with pytest.raises(IsolationError, match="no record of a box"):
        ISOLATION.sweep(record)


def test_only_the_folders_of_boxes_are_swept(tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    record = {"task": "a/b/c", "mode": "v1", "boot": boot, "folders": {"cpu": str(tmp_path)}}
    with pytest.raises(IsolationError, match="not the cgroup of a box"):
        ISOLATION.sweep(record)
    assert tmp_path.is_dir()


def test_what_was_killed_while_it_removed_a_box_leaves_no_group(tmp_path: Path) -> None:
    """Some folders of the box are gone with it, and their groups are not."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    folders = {
        base: tmp_path / base / "headgate-gone" / "run:job:worker-0" for base in ("cpu", "memory")
    }
    folders["memory"].mkdir(parents=True)
    folders["cpu"].parent.mkdir(parents=True)
    beside = tmp_path / "cpu" / "headgate-other"
    beside.mkdir()
    paths = {base: str(folder) for base, folder in folders.items()}
    ISOLATION.sweep({"task": "run/job/worker-0", "mode": "v1", "boot": boot, "folders": paths})
    assert sorted(path.name for path in tmp_path.glob("*/*")) == ["headgate-other"]
