"""Variables of torchrun or of TensorFlow that are left in the environment name another cluster than the job's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headgate.plans import Plan
from headgate.testing.gang import Gang

SCRIPT = """
import torch
import headgate.torch as hg

model = hg.prepare(torch.nn.Linear(2, 1))
"""
TOGETHER = Plan(strategy="allreduce", workers=2, batch_per_worker=None)
ALONE = Plan(strategy="single", workers=1, batch_per_worker=None)


@pytest.mark.parametrize(
    ("variable", "plan"), [("WORLD_SIZE", TOGETHER), ("TF_CONFIG", TOGETHER), ("WORLD_SIZE", ALONE)]
)
def test_a_worker_of_several_refuses_them_and_one_that_is_alone_does_not(
    variable: str, plan: Plan, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    with Gang(tmp_path, plan, [sys.executable, str(tmp_path / "train.py")], {variable: "8"}) as gang:
        gang.start("worker-0")
        assert gang.left("worker-0") == (1 if plan is TOGETHER else 0)
        said = gang.output("worker-0")
    assert (f"ClusterError: found {variable}=8 in the environment" in said) == (plan is TOGETHER)
