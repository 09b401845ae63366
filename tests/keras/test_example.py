"""The Keras example under a real hub: on one task, and divided among workers that are one JAX
program.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.keras.conftest import environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "keras_digits.py"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("backend", "plan"),
    [
        pytest.param("tensorflow", {}, marks=pytest.mark.long),
        pytest.param("jax", {"strategy": "allreduce", "workers": 2}, marks=pytest.mark.long),
    ],
    ids=["alone", "together"],
)
def test_the_example_learns_and_tells_how_it_goes(
    backend: str, plan: dict[str, object], tmp_path: Path
) -> None:
    job = {
        "name": "digits",
        "script": str(EXAMPLE),
        "args": ["--epochs", "5", "--channels", "12"],
        "python": sys.executable,
        **({"plan": plan} if plan else {}),
    }
    (tmp_path / "jobs.yaml").write_text(json.dumps({"jobs": [job]}))
    headgate(backend, "run", str(tmp_path / "jobs.yaml"))
    (status_of_job,) = json.loads(headgate(backend, "status", "--json"))["jobs"]
    assert (status_of_job["state"], status_of_job["epoch"]) == ("done", 5), status_of_job
    assert status_of_job["loss"] < 1.9
    log = headgate(backend, "logs", "digits")
    accuracies = re.findall(r"test accuracy ([\d.]+)%", log)
    assert accuracies and float(accuracies[-1]) > 40, log


def headgate(backend: str, *words: str) -> str:
    kept = {
        name: value for name, value in environment(backend).items() if name != "OMP_NUM_THREADS"
    }
    home = {"HEADGATE_HOME": os.environ["HEADGATE_HOME"]}
    done = subprocess.run(
        [sys.executable, "-m", "headgate", *words],
        env={**kept, **home},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
