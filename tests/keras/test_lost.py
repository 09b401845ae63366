"""kill -9 of a task of a TensorFlow job under a real hub: the job goes on, or goes back to its last
checkpoint.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import User, speed, user
from tests.keras.conftest import VARIABLES

from headgate.recorded.reader import RunReader
from headgate.testing import wait

__all__ = ["speed", "user"]  # fixtures

SCRIPT = Path(__file__).with_name("together.py")
SECONDS = 300.0
pytestmark = [pytest.mark.timeout(900), pytest.mark.long]


class Training:
    """A job of several tasks that trains until it is stopped."""

    def __init__(self, user: User, loop: str, backend: str, plan: dict[str, Any]) -> None:
        self.user = user
        environment = {
            **VARIABLES[backend],
            "EPOCHS": "1000000",
            "TELLS": "1",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        job = {
            "name": "team",
            "script": str(SCRIPT),
            "args": ["result.json", loop],
            "python": sys.executable,
            "env": environment | {"CUDA_VISIBLE_DEVICES": ""},
            "plan": plan,
            **({"allow": ["async"]} if loop == "servers" else {}),
        }
        self.run = user.detaches(str(user.write("jobs.yaml", json.dumps({"jobs": [job]}))))
        self.folder = user.home / "runs" / self.run

    def rows(self, table: str, where: str = "1", *values: object) -> list[dict[str, Any]]:
        with RunReader(self.folder / "run.sqlite") as reader:
            return [dict(row) for row in reader.rows(table, where, list(values))]

    def faults(self) -> list[str]:
        return [row["text"] for row in self.rows("events", "kind = ?", "fault")]

    def learns(self) -> None:
        """It does some more steps."""
        before = self._step()
        wait.until(lambda: self._step() > before + 2, SECONDS, "further steps")

    def saves(self) -> None:
        """It saves a checkpoint."""
        before = len(self.rows("checkpoints"))
        assert self.user.json("checkpoint", "team")
        wait.until(lambda: len(self.rows("checkpoints")) > before, SECONDS, "a checkpoint")

    def loses(self, name: str) -> str:
        """kill -9 of a task; what is told of that."""
        before = len(self.faults())
        [task] = self.rows("tasks", "id = ?", f"team/{name}")
        self.user.kills(task["pid"])
        wait.until(lambda: len(self.faults()) > before, SECONDS, "the fault is told")
        return self.faults()[before]

    def goes_back_for(self, name: str) -> None:
        """A task is lost, and all of them go on from the last checkpoint."""
        assert (
            f"{name} was lost: killed by SIGKILL; all tasks are started again from step"
            in self.loses(name)
        )
        before = len(self.faults())
        wait.until(lambda: len(self.faults()) > before, SECONDS, "it is where it was before")
        assert "again, as before its tasks were lost" in self.faults()[before], self.faults()

    def log(self, name: str) -> str:
        return (self.folder / "jobs" / "team" / f"{name}.log").read_text(errors="replace")

    def stops(self) -> None:
        self.user.types("stop", "team")
        wait.until(
            lambda: self._state()["state"] in ("stopped", "failed", "killed"),
            SECONDS,
            "it has ended",
        )
        assert self._state()["state"] == "stopped", (self._state(), self.log("worker-0"))

    def _step(self) -> int:
        return int(self._state().get("step") or 0)

    def _state(self) -> dict[str, Any]:
        return self.user.stands("team", self.run) or {}


def test_workers_of_an_all_reduce_go_back_to_their_checkpoint(user: User) -> None:
    training = Training(user, "loop", "tensorflow", {"strategy": "allreduce", "workers": 2})
    training.learns()
    training.saves()
    training.goes_back_for("worker-1")
    training.stops()


def test_a_worker_of_tensorflow_s_servers_comes_back_and_a_server_takes_all_back(
    user: User,
) -> None:
    plan = {"strategy": "ps", "workers": 2, "servers": 1, "synchronous": False}
    training = Training(user, "servers", "tensorflow", plan)
    training.learns()
    assert "the others go on" in training.loses("worker-1")
    done = training.log("worker-1").count("a step was done here")
    training.learns()
    wait.until(
        lambda: training.log("worker-1").count("a step was done here") > done + 8,
        SECONDS,
        "it serves again",
    )
    for name in ("server-0", "worker-0"):
        training.saves()
        training.goes_back_for(name)
    training.learns()
    training.stops()
