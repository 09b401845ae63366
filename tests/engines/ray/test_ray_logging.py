"""What the agents on a Ray log, to their standard error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.engines.ray.running import PATIENCE_SECONDS, Running

from headgate.machine import processes
from headgate.model.log_levels import VARIABLE
from headgate.testing.wait import until

AGENT = "headgate.engines.remote.agent"


def agent_log(running: Running) -> Path:
    """Where Ray keeps the standard error of the agent, the parent of a task's keeper."""
    task = running.start(("sh", "-c", "echo begun; read line < fifo"), cwd=str(running.folder))
    running.said(task, "begun")
    pid = running.told.pid(task)
    process = processes.look(pid) if pid is not None else None
    assert process is not None
    keeper = processes.look(process.parent)
    assert keeper is not None
    path = Path(os.readlink(f"/proc/{keeper.parent}/fd/2"))
    (running.folder / "fifo").open("w").close()
    assert not running.ended(task).ok  # there was nothing to read
    return path


@pytest.mark.parametrize(
    "levels", [pytest.param("debug", marks=pytest.mark.long), "warning,engines.remote=debug"]
)
def test_agents_log_their_commands_when_asked(
    levels: str, ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, levels)
    os.mkfifo(tmp_path / "fifo")
    running = Running(ray_address, tmp_path)
    try:
        path = agent_log(running)
        until(
            lambda: f" DEBUG {AGENT}: StartLaunch\n" in path.read_text(),
            PATIENCE_SECONDS,
            "the agent's log",
        )
    finally:
        running.engine.close()


@pytest.mark.long  # what starts one hands on no levels that it was not given
def test_agents_log_nothing_unasked(
    ray_address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    os.mkfifo(tmp_path / "fifo")
    running = Running(ray_address, tmp_path)
    try:
        assert "headgate." not in agent_log(running).read_text()
    finally:
        running.engine.close()
