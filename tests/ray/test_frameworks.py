"""Training over the nodes of a Ray cluster comes to what one process comes to, and what is measured there returns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.hub.user import SOURCE
from tests.keras.test_together import QUIET, distance
from tests.ray.hill import RAY, Hill, Somebody

from headgate.testing import wait

pytestmark = pytest.mark.timeout(900)  # the first test waits for the cluster too
SECONDS = 300.0
"""Four processes that each import a framework, on two cores that others use as well, take their time."""

HELD = """
    # Runs a training script, each step of which takes a second from its third on, until there is a checkpoint, which is
    # saved on request only.
    import importlib, os, pathlib, runpy, sys, time
    from headgate.task import saving

    saving.SHARE = 0.0
    framework, script, *sys.argv[1:] = sys.argv[1:]
    told = importlib.import_module(f"headgate.{framework}")
    report, saved = told.report, pathlib.Path(os.environ.get("HEADGATE_CHECKPOINTS", os.devnull))
    steps = 0

    def reporting(*args, **values):
        global steps
        report(*args, **values)
        steps += 1
        end = time.monotonic() + (steps >= 3 and os.environ.get("HEADGATE_TASK", "").endswith("/worker-0"))
        while time.monotonic() < end and not any(saved.glob("step-*")):
            time.sleep(0.02)

    told.report = reporting
    runpy.run_path(script, run_name="__main__")
"""
ADAMW = """
    import sys, torch
    from right_answers import CASES
    from together import write

    torch.manual_seed(7)
    write(sys.argv[1], [], CASES["adamw"]())
"""


@dataclass(frozen=True)
class Training:
    """A training that the framework's own tests have.

    Args:
        files: Below `tests/`.
        script: And what follows it; RESULT is the file that it writes.
        steps: That it takes.
    """

    files: tuple[str, ...]
    script: tuple[str, ...]
    steps: int
    variables: dict[str, str] = field(default_factory=dict)


TRAININGS = {
    "torch": Training(("torch/right_answers.py", "keras/together.py"), ("adamw.py", "RESULT"), 50),
    "jax": Training(("jax/several.py",), ("several.py", "4", "RESULT"), 16, {"PJRT_NPROC": "1"}),
    "keras": Training(
        ("keras/together.py",), ("together.py", "RESULT", "loop"), 12, {"KERAS_BACKEND": "tensorflow", **QUIET}
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("framework", "workers"),
    [(framework, workers) for framework in ("torch", "jax", "keras") for workers in (2, 4)],
)
def test_workers_on_two_nodes_come_to_what_one_process_comes_to(
    framework: str, workers: int, user: Somebody, hill: Hill
) -> None:
    training = TRAININGS[framework]
    user.write("held.py", HELD)
    user.write("adamw.py", ADAMW)
    for name in training.files:
        (user.folder / Path(name).name).write_text((Path(__file__).parents[1] / name).read_text())
    user.variables |= training.variables

    plan = ("--strategy", "allreduce", "--workers", str(workers), "--nodes", "b,c")
    found = user.folder.parent / "found.npz"
    words = ("run", "--detach", "--json", "held.py", *plan, *RAY, "--", framework, *_script(training, found))
    run = str(user.types(*words).json["run"])
    wait.until(lambda: _steps(user, run) or _ended(user, run), SECONDS, "the first steps")
    user.types("checkpoint", "held")
    wait.until(lambda: _ended(user, run), SECONDS, "the end")
    [job] = user.rows(run, "jobs")
    assert (job["state"], job["attempt"]) == ("done", 1), user.log(f"{run}/held")
    assert max(_steps(user, run)) == training.steps
    nodes = {row["id"].split("/")[1]: row["node"] for row in user.rows(run, "tasks")}
    assert len(nodes) == workers
    assert {node: list(nodes.values()).count(node) for node in "bc"} == dict.fromkeys("bc", workers // 2)

    assert user.rows(run, "spans")
    assert json.loads(job["profile"])["framework"] == framework
    [saved] = user.rows(run, "checkpoints")
    assert (saved["why"], Path(saved["path"]).parent) == ("request", user.home / "runs" / run / "jobs/held/checkpoints")
    assert Path(saved["path"]).exists()

    expected = user.folder.parent / "expected.npz"
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    alone = [sys.executable, "held.py", framework, *_script(training, expected)]
    subprocess.run(
        alone, cwd=user.folder, env={**inherited, "PYTHONPATH": str(SOURCE), **training.variables}, check=True
    )
    assert distance(_weights(found), _weights(expected)) < 1e-5


def _script(training: Training, result: Path) -> tuple[str, ...]:
    """Its command, with the file that it writes: it is outside the folder that is sent, and both nodes are here."""
    return tuple(str(result) if word == "RESULT" else word for word in training.script)


def _steps(user: Somebody, run: str) -> list[int]:
    return [row["step"] for row in user.rows(run, "progress") if row["step"]]


def _ended(user: Somebody, run: str) -> bool:
    return user.rows(run, "jobs")[0]["state"] in ("done", "failed")


def _weights(result: Path) -> list[list[float]]:
    if result.read_bytes()[:1] == b"{":
        return list(json.loads(result.read_text())["weights"])
    return [each.ravel().tolist() for name, each in np.load(result).items() if name != "losses"]
