"""The examples train: real data, real convergence, with Headgate and without."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headgate.config import jobfile

EXAMPLES = Path(__file__).parents[2] / "examples"

# Enough to see each learn, in seconds.
SHORT = {
    "cnn": ["--epochs", "12", "--channels", "24"],
    "vae": ["--epochs", "8", "--hidden", "256"],
    "charlm": ["--epochs", "1", "--characters", "120000", "--width", "48", "--layers", "1"],
    "plain": ["--epochs", "6", "--hidden", "64"],
}


def test_the_demo_starts_three_models_five_seconds_apart() -> None:
    jobs = jobfile.load(str(EXAMPLES / "jobs.yaml"))
    assert [(job.name, job.at) for job in jobs] == [("cnn", 0), ("vae", 5), ("charlm", 10)]


def test_the_plain_script_never_mentions_headgate() -> None:
    assert "headgate" not in (EXAMPLES / "plain.py").read_text().lower()


@pytest.mark.long
@pytest.mark.parametrize("name", ["cnn", "vae", "charlm", "plain"])
def test_each_runs_under_plain_python_and_its_seed_repeats_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *SHORT[name], "--epochs", "1"]
    if name == "charlm":
        command += ["--characters", "40000"]
    twice = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    first, second = (process.communicate(timeout=200)[0] for process in twice)
    assert [process.returncode for process in twice] == [0, 0]
    assert re.search(r"epoch 1/1\b", first, re.IGNORECASE)
    assert first == second


@pytest.mark.long
def test_side_by_side_each_learns(tmp_path: Path) -> None:
    jobs = [
        {
            "name": name,
            "script": str(EXAMPLES / f"{name}.py"),
            "args": args,
            "python": sys.executable,
        }
        for name, args in SHORT.items()
    ]
    (tmp_path / "jobs.yaml").write_text(json.dumps({"jobs": jobs}))
    headgate("run", str(tmp_path / "jobs.yaml"))
    assert float(last(r"test accuracy ([\d.]+)%", "cnn")) >= 97
    assert float(last(r"test loss ([\d.]+) nats", "vae")) < 26
    assert float(last(r"test loss ([\d.]+) \(", "charlm")) < 3.5
    assert float(last(r"Test accuracy: ([\d.]+)%", "plain")) > 75
    for job in json.loads(headgate("status", "--json"))["jobs"]:
        assert (job["state"], job["loss"] is not None, job["epoch"] is not None) == (
            "done",
            True,
            True,
        ), job


def headgate(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "headgate", *words],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def last(pattern: str, job: str) -> Any:
    """What the pattern found last in a job's log."""
    log = headgate("logs", job)
    found = re.findall(pattern, log)
    assert found, log
    return found[-1]
