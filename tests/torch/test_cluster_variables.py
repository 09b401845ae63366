"""Processes that Headgate did not start as tasks: those that variables of torchrun or of TensorFlow
name, and a second one in a task.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.harness.gang import Gang
from tests.hub.user import User, speed, user

from headgate.model.plans import Plan

__all__ = ["speed", "user"]

SCRIPT = """
import torch
import headgate.torch as hg

model = hg.prepare(torch.nn.Linear(2, 1))
"""
TWICE = """
import subprocess, sys
other = None
if len(sys.argv) == 1:
    other = subprocess.Popen([sys.executable, __file__, "other"], stdin=subprocess.PIPE)
"""
"""A script that starts itself once more, as launchers do."""
UNTIL_BOTH_ARE_THERE = """
if other is None:
    sys.stdin.read()
else:
    other.communicate()
    sys.exit(other.returncode)
"""
TOGETHER = Plan(strategy="allreduce", workers=2, batch_per_worker=None)
ALONE = Plan(strategy="single", workers=1, batch_per_worker=None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variable", "plan"), [("WORLD_SIZE", TOGETHER), ("TF_CONFIG", TOGETHER), ("WORLD_SIZE", ALONE)]
)
def test_a_worker_of_several_refuses_them_and_one_that_is_alone_does_not(
    variable: str, plan: Plan, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with Gang(
        tmp_path, plan, [sys.executable, str(tmp_path / "train.py")], {variable: "8"}
    ) as gang:
        gang.start("worker-0")
        assert gang.left("worker-0") == (1 if plan is TOGETHER else 0)
        output = gang.output("worker-0")
    assert (f"ClusterError: found {variable}=8 in the environment" in output) == (plan is TOGETHER)


@pytest.mark.slow
@pytest.mark.parametrize("torchrun", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_second_process_of_a_task_is_told_at_once_what_is_wrong(
    user: User, torchrun: bool
) -> None:
    user.write("train.py", TWICE + SCRIPT + UNTIL_BOTH_ARE_THERE)
    variables = {"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4"} if torchrun else {}
    user.types("run", "train.py", code=1, **variables)
    # it would have given another reason after the time in which the hub should have answered
    output = user.log("train")
    assert "of this task trains with Headgate already, and a task has one; leave out " in output
    assert ("leave out torchrun" in output) == torchrun
    assert (
        f"--strategy allreduce --workers {4 if torchrun else 2} {user.folder / 'train.py'}"
        in output
    )


@pytest.mark.long
def test_one_process_of_a_task_after_the_other_is_taken_in(user: User) -> None:
    user.write("train.py", SCRIPT)
    user.types("run", "sh", "-c", "python train.py && python train.py")
    assert user.jobs()["sh"]["state"] == "done"
