"""A script of one framework whose job's servers were started as those of another: a line that says
so, and the end.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from tests.hub.user import User, speed, user
from tests.keras.conftest import VARIABLES

from headgate.testing import wait

__all__ = ["speed", "user"]  # fixtures

SECONDS = 300.0
pytestmark = pytest.mark.timeout(600)

TORCH = """
    import torch
    import headgate.torch as hg

    def export(model):
        import headgate.keras

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = hg.prepare(model, optimizer)
    for epoch in hg.epochs(2):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4)).sum()
        loss.backward()
        optimizer.step()
        hg.report(loss=loss)
"""
KERAS = """
    import importlib

    importlib.import_module("headgate.keras").strategy()
"""


@pytest.mark.long
@pytest.mark.parametrize("synchronous", [True, False], ids=["synchronous", "asynchronous"])
def test_workers_of_torch_do_not_wait_for_servers_of_tensorflow(
    synchronous: bool, user: User
) -> None:
    reason = why_it_failed(user, TORCH, synchronous)
    assert "its job's servers were started as those of headgate.keras" in reason
    assert "leave that import out" in reason


@pytest.mark.long
def test_workers_of_tensorflow_do_not_wait_for_servers_of_torch(user: User) -> None:
    reason = why_it_failed(user, KERAS, False)
    assert "its job's servers were started as those of headgate.torch" in reason
    assert "import headgate.keras in that file" in reason


def why_it_failed(user: User, script: str, synchronous: bool) -> str:
    """What is said of a job of one server and one worker, whose only fault is its script."""
    plan = {"strategy": "ps", "workers": 1, "servers": 1, "synchronous": synchronous}
    job: dict[str, Any] = {
        "name": "train",
        "script": str(user.write("train.py", script)),
        "python": sys.executable,
    }
    environment = {
        **VARIABLES["tensorflow"],
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    job |= {"plan": plan, "env": environment, "allow": [] if synchronous else ["async"]}
    user.detaches(str(user.write("jobs.yaml", json.dumps({"jobs": [job]}))))

    def ended() -> dict[str, Any] | None:
        entry = user.stands("train")
        return (
            entry
            if entry is not None and entry["state"] in ("done", "failed", "stopped", "killed")
            else None
        )

    ended_job = wait.until(ended, SECONDS, "the job has ended") or {}
    assert (ended_job["state"], ended_job["exit_code"]) == ("failed", 1), ended_job
    return str(ended_job["reason"])
