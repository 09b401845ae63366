"""Workloads lose alike in every framework, step by step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from headgate.workloads import lack

LOSSES = Path(__file__).with_name("losses.py")
STEPS = 6
SHORT = ("mlp", "sparse", "alexnet", "resnet50-short")
LONG = ("resnet50", "inception3")
FEW = ("mlp", "sparse", "trace")
TRAINED = [("jax", FEW), ("numpy", ("trace",))]
if not lack("spark"):  # half a gigabyte, and Java: no part of any installation
    TRAINED.append(("spark", ("sparse", "trace")))
TRAINED_LONG = [("jax", SHORT), ("keras", SHORT), ("tensorflow", FEW)]


@cache
def trained(framework: str, steps: int, workloads: tuple[str, ...]) -> dict[str, list[float]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "KERAS_BACKEND": "tensorflow"}
    words = [sys.executable, str(LOSSES), framework, str(steps), *workloads]
    done = subprocess.run(
        words, env=environment, check=False, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("framework", "workloads"),
    [*TRAINED, *(pytest.param(*case, marks=pytest.mark.long) for case in TRAINED_LONG)],
)
@pytest.mark.slow
def test_a_workload_loses_alike_in_every_framework(
    framework: str, workloads: tuple[str, ...]
) -> None:
    own = trained(framework, STEPS, workloads)
    torch = trained("torch", STEPS, FEW if {*workloads} <= {*FEW} else SHORT)
    for workload, losses in own.items():
        assert len(losses) == STEPS
        np.testing.assert_allclose(losses, torch[workload], rtol=0, atol=1e-3, err_msg=workload)
    assert all(
        losses[-1] < losses[0] for workload, losses in own.items() if workload in ("mlp", "sparse")
    )


@pytest.mark.parametrize("framework", ["keras", "jax"])
@pytest.mark.long
def test_a_deep_network_loses_alike_in_every_framework(framework: str) -> None:
    own, torch = (trained(name, 20, LONG) for name in (framework, "torch"))
    for workload, losses in own.items():
        np.testing.assert_allclose(losses, torch[workload], rtol=0, atol=1e-3, err_msg=workload)
