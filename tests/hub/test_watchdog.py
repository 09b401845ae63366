"""What a hub and its guard leave when both die, and a guard that does not listen."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from tests.hub.user import SECONDS

from headgate.hub import watchdog
from headgate.hub.watchdog import HubWatchdog, leftovers
from headgate.isolation.container.parents import find_parent
from headgate.machine import cgroup_layout, processes
from headgate.model.identifiers import TaskId
from headgate.testing import wait


def test_a_box_that_cannot_be_removed_keeps_its_record_and_stops_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    boxes = tmp_path / "boxes"
    boxes.mkdir()
    (boxes / "r:a:worker-0.json").write_text(
        json.dumps({"isolation": "submarine", "task": "r/a/worker-0"})
    )
    (boxes / "r:b:worker-0.json").write_text('{"isolation": ')
    (boxes / "r:c:worker-0.json").write_text("[1]")
    with subprocess.Popen(["true"]) as hub:
        pass
    unfinished, other = (boxes / f".r:d:worker-0.json.{pid}" for pid in (hub.pid, os.getpid()))
    unfinished.touch()
    other.touch()
    leftovers(tmp_path)
    assert {*boxes.iterdir()} == {boxes / "r:a:worker-0.json", other}
    said = capfd.readouterr().err
    assert said.startswith(
        "a box of r/a/worker-0 is left: no isolation 'submarine'; expected one of container"
    )


@pytest.fixture
def bases() -> dict[str, Path]:
    found = dict(cgroup_layout.find_layout(Path("/sys/fs/cgroup")).bases)
    if "cpu" not in found:
        pytest.skip("no cgroup can be made here")
    return found


def test_of_a_dead_hub_the_cgroups_go_that_nothing_is_in(
    tmp_path: Path, bases: dict[str, Path]
) -> None:
    hub = subprocess.Popen(["sleep", "1000"])
    dead, living = (f"headgate-{os.geteuid()}-{pid}" for pid in (hub.pid, os.getpid()))
    lab = f"headgate-lab-test-{os.getpid()}"
    of_containers = find_parent("group", "task", None, "cgroupfs").own
    beside = {
        base.with_name(f"test-{os.getpid()}")
        for base in bases.values()
        if not os.path.ismount(base)
    }
    every = {*bases.values(), *(folder.parent.parent for folder in of_containers), *beside}
    gone = [base / dead / "task" for base in every]
    gone += [base / lab / "node" / dead / "task" for base in every - beside]
    kept = [base / living / "task" for base in every]
    used = bases["cpu"] / dead / "used"
    with hub, subprocess.Popen(["sleep", "1000"]) as task:
        try:
            for folder in (*gone, *kept, used):
                folder.mkdir(parents=True)
            (used / "cgroup.procs").write_text(str(task.pid))
            hub.kill()  # now, as hubs of other homes remove what is of a dead one, too
            hub.wait()
            leftovers(tmp_path)
            assert [folder for folder in (*gone, *kept, used) if folder.exists()] == [*kept, used]
            task.kill()
            task.wait()

            def nothing_left() -> bool:
                leftovers(tmp_path)
                return not any(
                    (base / dead).exists() or (base / lab / "node" / dead).exists()
                    for base in every
                )

            wait.until(nothing_left, SECONDS, "the kernel lets go of the last process")
        finally:
            hub.kill()
            task.kill()
            task.wait()
            for base in every:
                for folder in (
                    used,
                    *(base / name for name in (f"{dead}/task", dead, f"{living}/task", living)),
                ):
                    remove(folder)
                for name in (f"node/{dead}/task", f"node/{dead}", "node", ""):
                    remove(base / lab / name)
            for base in beside:
                remove(base)


def remove(folder: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()


def test_a_guard_that_may_not_signal_a_task_cleans_up_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send = signal.pidfd_send_signal

    def refuse(pidfd: int, number: int) -> None:
        if number == signal.SIGTERM:
            raise PermissionError
        send(pidfd, number)

    monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
    monkeypatch.setattr(watchdog, "GRACE_SECONDS", 0.0)
    hub, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as task, theirs:
        try:
            found = processes.look(task.pid)
            assert found is not None
            record = {
                "isolation": "process",
                "task": "r/a/worker-0",
                "mode": "none",
                "boot": processes.boot_id(),
                "pid": task.pid,
                "started": found.started,
                "folders": {},
            }
            add = {
                "op": "add",
                "task": "r/a/worker-0",
                "record": record,
                "log": "",
                "connected": False,
            }
            with hub:
                hub.send(json.dumps(add).encode())
            watchdog._Guard(theirs, tmp_path).run()
            assert task.wait(SECONDS) == -signal.SIGKILL
        finally:
            task.kill()


def test_a_guard_that_was_stopped_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.hub.watchdog._TAKE_SECONDS", 0.05)
    lock = os.open(tmp_path / "hub.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    guarded = HubWatchdog(tmp_path, lock)
    try:
        signal.pidfd_send_signal(guarded.pidfd, signal.SIGSTOP)
        for i in range(5000):
            guarded.remove(TaskId(f"r/a/worker-{i}"))
            if ended(guarded):
                break
        wait.until(lambda: ended(guarded), SECONDS, "it is killed")
        guarded.restart()
        assert not ended(guarded)
    finally:
        guarded.close()
        os.close(lock)


def ended(guarded: HubWatchdog) -> bool:
    return bool(select.select([guarded.pidfd], [], [], 0)[0])
