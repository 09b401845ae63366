"""Tasks in containers of a node's own Docker Engine: with what was sent there, and nothing of them
stays.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engines.ray.cluster import folders_left
from tests.engines.ray.running import PATIENCE_SECONDS, Running
from tests.engines.ray.test_ray_deaths import parent
from tests.engines.ray.test_ray_files import SAVER

from headgate.isolation.container.daemon import Daemon
from headgate.isolation.container.isolation import GROUP
from headgate.testing.wait import until

HERE = os.stat("/").st_dev
WHERE = f"import os; print('in a container', os.stat('/').st_dev != {HERE}, flush=True)\n"


def containers(docker: str) -> list[str]:
    """Those of this process's agents."""
    found = Daemon(docker).find(GROUP)
    return [each["id"] for each in found if each[GROUP].startswith(f"ray-{os.getpid()}-")]


@pytest.fixture
def remote(ray_address: str, docker: str, tmp_path: Path) -> Iterator[Running]:
    running = Running(ray_address, tmp_path, shared_files=False)
    yield running
    running.engine.close()
    assert running.told.breaches == []
    until(
        lambda: not folders_left() and not containers(docker),
        PATIENCE_SECONDS,
        "nothing left behind",
    )


def test_one_sees_the_folder_that_was_sent_and_its_checkpoints_come_back(
    remote: Running, tmp_path: Path
) -> None:
    saved, work = tmp_path / "checkpoints", tmp_path / "work"
    saved.mkdir()
    work.mkdir()
    (work / "save.py").write_text(WHERE + SAVER)
    earlier = tmp_path / "earlier.bin"
    earlier.write_bytes(b"x" * 5_000_000)
    paths = {"HEADGATE_CHECKPOINTS": str(saved), "HEADGATE_RESUME": str(earlier)}
    task = remote.start((sys.executable, "save.py"), cwd=str(work), isolation="container", **paths)
    until(
        lambda: len(remote.told.messages(task, "checkpoint")) == 2,
        PATIENCE_SECONDS,
        "two checkpoints",
    )
    assert (saved / "step-3.bin").read_bytes() == bytes(range(256)) * 40_000
    assert (saved / "step-4" / "part").read_text() == "a part"
    remote.engine.send(task, {"type": "state", "path": str(earlier)})
    assert remote.ended(task).ok
    assert remote.told.lines(task) == [
        "in a container True",
        "resumed from 5000000 bytes",
        "state of 5000000 bytes",
    ]


@pytest.mark.long  # so do other tasks, in test_ray_deaths.py
def test_one_ends_with_the_agent_that_started_it(
    remote: Running, docker: str, tmp_path: Path
) -> None:
    (tmp_path / "rest.py").write_text(f"{WHERE}import signal; signal.pause()\n")
    task = remote.start((sys.executable, "rest.py"), cwd=str(tmp_path), isolation="container")
    other = remote.start((sys.executable, "rest.py"), "other", cwd=str(tmp_path))
    remote.said(task, "in a container True")
    remote.said(other, "in a container False")
    assert len(containers(docker)) == 1
    os.kill(parent(parent(remote.told.pid(other) or 0)), signal.SIGKILL)
    assert remote.ended(task).lost
    until(lambda: not containers(docker), PATIENCE_SECONDS, "the end of its container")


@pytest.mark.long  # tests/isolation/containers has what is said then
def test_where_there_is_no_docker_engine_it_does_not_start_and_says_so(
    ray_address: str, tmp_path: Path
) -> None:
    running = Running(ray_address, tmp_path)
    try:
        reason = running.ended(
            running.start((sys.executable, "-c", "0"), isolation="container")
        ).reason
    finally:
        running.engine.close()
    assert reason is not None
    assert "Docker" in reason
