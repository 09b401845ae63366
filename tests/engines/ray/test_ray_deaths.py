"""Whoever is killed, the others say so in a line, and nothing stays on a node."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.ray.cluster import folders_left
from tests.engines.ray.running import PATIENCE_SECONDS, Running, bridge

from headgate.engines.ray.engine import RayEngine
from headgate.machine import processes
from headgate.model.errors import UsageError
from headgate.testing import engine_programs, programs
from headgate.testing.wait import until


@pytest.fixture
def running(ray_address: str, tmp_path: Path) -> Iterator[Running]:
    running = Running(ray_address, tmp_path)
    yield running
    running.engine.close()
    assert running.told.breaches == []
    cleared()


def cleared(*pids: int, hub: int | None = None) -> None:
    """Wait until processes are gone and nothing of a hub's agents is left."""
    until(
        lambda: not any(processes.look(pid) for pid in pids),
        PATIENCE_SECONDS,
        "the end of processes",
    )
    until(lambda: not folders_left(hub), PATIENCE_SECONDS, "nothing left behind")


def parent(pid: int) -> int:
    found = processes.look(pid)
    assert found is not None
    return found.parent


def agent(pid: int) -> int:
    """The agent of a task's first process, whose parent is the task's keeper."""
    return parent(parent(pid))


def test_a_killed_task_is_told_as_such_and_others_run_on(running: Running) -> None:
    other = running.start(engine_programs.argv("heedless"), "other")
    task = running.start(programs.argv("rest"))
    running.said(task, "ready")
    running.said(other, "ready")
    os.kill(running.told.pid(task) or 0, signal.SIGKILL)
    assert running.ended(task).signal == signal.SIGKILL
    assert running.told.exit(other) is None


def test_a_killed_agent_is_a_node_that_is_gone_and_its_tasks_with_it(running: Running) -> None:
    name = running.engine.cluster().nodes[0].name
    task = running.start(engine_programs.argv("abandon"), "abandon")
    running.ended(task)
    task = running.start(programs.argv("daemon"))
    running.said(task, "ready")
    pid = running.told.pid(task) or 0
    os.kill(agent(pid), signal.SIGKILL)
    end = running.ended(task)
    assert end.reason is not None
    assert end.reason.startswith(f"node {name} is gone: ")
    assert end.lost
    until(lambda: processes.look(pid) is None, PATIENCE_SECONDS, "the end of its task")
    until(lambda: len(running.told.nodes) == 2, PATIENCE_SECONDS, "another agent")
    assert running.told.nodes == [("left", name), ("joined", name)]
    assert running.ended(running.start(programs.argv("leave", 0), "later")).ok


def test_a_killed_bridge_is_the_end_of_the_tasks_and_leaves_nothing(running: Running) -> None:
    task = running.start(programs.argv("stubborn"))
    running.said(task, "ready")
    running.reserve("waits", 1)
    pid = running.told.pid(task) or 0
    os.kill(bridge(), signal.SIGKILL)
    assert "the connection to Ray is gone" in (running.ended(task).reason or "")
    assert [what for what, _ in running.told.nodes] == ["left for good"]
    cleared(pid)


@pytest.mark.long
def test_an_agent_that_hears_nothing_for_long_ends_with_its_tasks(
    ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_RAY_PATIENCE_SECONDS", "3")
    running = Running(ray_address, tmp_path)
    task = running.start(programs.argv("stubborn"))
    running.said(task, "ready")
    pid = running.told.pid(task) or 0
    frozen = bridge()
    os.kill(frozen, signal.SIGSTOP)
    cleared(pid)
    os.kill(frozen, signal.SIGCONT)
    assert "gone" in (running.ended(task).reason or "")
    running.engine.close()
    cleared()


def test_a_patience_that_makes_no_sense_is_refused(
    ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_RAY_PATIENCE_SECONDS", "soon")
    with pytest.raises(UsageError, match="HEADGATE_RAY_PATIENCE_SECONDS=soon"):
        Running(ray_address, tmp_path)


def test_a_killed_hub_leaves_nothing(ray_address: str, tmp_path: Path) -> None:
    program = f"""
        import sys, time
        sys.path[:0] = {sys.path!r}
        from pathlib import Path
        from headgate.testing import programs
        from tests.engines.ray.running import Running
        running = Running({ray_address!r}, Path({str(tmp_path)!r}))
        task = running.start(programs.argv("stubborn"))
        running.said(task, "ready")
        print(running.told.pid(task), flush=True)
        time.sleep(1000)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True
    ) as hub:
        assert hub.stdout is not None
        pid = int(hub.stdout.readline())
        hub.kill()
    cleared(pid, hub=hub.pid)


@pytest.mark.long
def test_a_ray_of_its_own_ends_with_the_engine(tmp_path: Path) -> None:
    running = Running("", tmp_path)
    task = running.start(engine_programs.argv("write", "here\\n"))
    assert running.ended(task).ok
    host, port = running.engine.address.rsplit(":", 1)
    running.engine.close()
    listening = Path("/proc/net/tcp").read_text()
    assert host
    assert f":{int(port):04X} " not in "".join(
        line for line in listening.splitlines() if " 0A " in line
    )
    assert folders_left() == []
    RayEngine().close()
