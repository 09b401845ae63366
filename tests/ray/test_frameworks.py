"""Training over the nodes of a Ray cluster comes to what one process comes to, and what is measured
there returns.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.hub.traces import variables
from tests.hub.user import SOURCE
from tests.keras.conftest import QUIET
from tests.keras.test_together import distance
from tests.ray.hill import RAY, Hill, Somebody

from headgate.testing import wait

pytestmark = pytest.mark.timeout(900)  # the first test waits for the cluster too
SECONDS = 300.0
"""Four processes that each import a framework, on two cores that others use as well, take their
time.
"""

HELD = """
    # Runs a training script. Each step takes a second, from its third on, until there is a
    # checkpoint, which is saved on request only; with UNTIL_RESUMED, until it goes on from one.
    import importlib, os, pathlib, runpy, sys, time
    from headgate.task import saving

    saving.SHARE = 0.0
    framework, script, *sys.argv[1:] = sys.argv[1:]
    told = importlib.import_module(f"headgate.{framework}")
    report, saved = told.report, pathlib.Path(os.environ.get("HEADGATE_CHECKPOINTS", os.devnull))
    waits = "UNTIL_RESUMED" in os.environ and "HEADGATE_RESUME" not in os.environ
    steps = 0

    def reporting(*args, **values):
        global steps
        report(*args, **values)
        steps += 1
        first = os.environ.get("HEADGATE_TASK", "").endswith("/worker-0")
        end = time.monotonic() + (steps >= 3 and first)
        while time.monotonic() < end and (waits or not any(saved.glob("step-*"))):
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
        ("keras/together.py",),
        ("together.py", "RESULT", "loop"),
        12,
        {"KERAS_BACKEND": "tensorflow", **QUIET},
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
    training, found = TRAININGS[framework], user.folder.parent / "found.npz"
    run = _begins(user, framework, workers, found)
    user.types("checkpoint", "held")
    wait.until(lambda: _ended(user, run), SECONDS, "the end")
    [job] = user.rows(run, "jobs")
    assert (job["state"], job["attempt"]) == ("done", 1), user.log(f"{run}/held")
    assert max(_steps(user, run)) == training.steps
    nodes = {row["id"].split("/")[1]: row["node"] for row in user.rows(run, "tasks")}
    assert len(nodes) == workers
    assert {node: list(nodes.values()).count(node) for node in "bc"} == dict.fromkeys(
        "bc", workers // 2
    )

    assert user.rows(run, "spans")
    assert json.loads(job["profile"])["framework"] == framework
    [saved] = user.rows(run, "checkpoints")
    assert (saved["why"], Path(saved["path"]).parent) == (
        "request",
        user.home / "runs" / run / "jobs/held/checkpoints",
    )
    assert Path(saved["path"]).exists()

    assert distance(_weights(found), _alone(user, framework)) < 1e-5


@pytest.mark.long
@pytest.mark.parametrize("framework", ["jax", "keras"])
def test_a_worker_that_is_killed_costs_steps_and_no_right_answer(
    framework: str, user: Somebody, hill: Hill
) -> None:
    found = user.folder.parent / "found.npz"
    user.variables["UNTIL_RESUMED"] = "1"
    run = _begins(user, framework, 2, found)
    user.types("checkpoint", "held")
    wait.until(lambda: user.rows(run, "checkpoints"), SECONDS, "a checkpoint")
    user.kills(_process(hill, "worker-1"))
    user.sees_event(run, "fault", "all tasks are started again from step")
    wait.until(lambda: _ended(user, run), SECONDS, "the end")
    [job] = user.rows(run, "jobs")
    assert (job["state"], job["attempt"]) == ("done", 2), user.log(f"{run}/held")
    assert max(_steps(user, run)) == TRAININGS[framework].steps
    assert distance(_weights(found), _alone(user, framework)) < 1e-5
    wait.until(lambda: not hill.left(), 60, "nothing is left on the nodes")


@pytest.mark.long
def test_servers_of_tensorflow_serve_across_nodes_get_over_a_killed_worker_and_leave_with_the_job(
    user: Somebody, hill: Hill
) -> None:
    script = Path(__file__).parents[1] / "keras/together.py"
    (user.folder / "learns.py").write_text(script.read_text())
    user.variables |= {"KERAS_BACKEND": "tensorflow", "EPOCHS": "1000000", **QUIET}
    plan = ("--strategy", "ps", "--async", "--workers", "2", "--servers", "1", "--nodes", "b,c")
    words = ("run", "--detach", "--json", "learns.py", *plan, *RAY, "--", "nowhere.json", "servers")
    run = str(user.types(*words).json["run"])
    wait.until(lambda: len(_steps(user, run)) > 2 or _ended(user, run), SECONDS, "the first steps")
    assert not _ended(user, run), user.log(f"{run}/learns")
    assert {row["node"] for row in user.rows(run, "tasks")} == {"b", "c"}
    first, *_, last = [loss for _, loss in user.losses(run, "learns")]
    assert last < first

    user.kills(_process(hill, "worker-1"))
    user.sees_event(
        run,
        "fault",
        "worker-1 was lost: killed by SIGKILL; the others go on, and it is started again",
    )
    user.goes_on(run)
    user.types("stop", "learns")
    user.sees_state("learns", "stopped", run=run)
    assert [row["why"] for row in user.rows(run, "checkpoints")][-1] == "stop"
    wait.until(lambda: not hill.left(), 60, "nothing is left on the nodes")


def _begins(user: Somebody, framework: str, workers: int, result: Path) -> str:
    """Start an all-reduce of so many workers on b and c; the run, once it has taken a step."""
    training = TRAININGS[framework]
    user.write("held.py", HELD)
    user.write("adamw.py", ADAMW)
    for name in training.files:
        (user.folder / Path(name).name).write_text((Path(__file__).parents[1] / name).read_text())
    user.variables |= training.variables
    plan = ("--strategy", "allreduce", "--workers", str(workers), "--nodes", "b,c")
    words = (
        "run",
        "--detach",
        "--json",
        "held.py",
        *plan,
        *RAY,
        "--",
        framework,
        *_script(training, result),
    )
    run = str(user.types(*words).json["run"])
    wait.until(lambda: _steps(user, run) or _ended(user, run), SECONDS, "the first steps")
    return run


def _alone(user: Somebody, framework: str) -> list[list[float]]:
    """The weights that one process comes to."""
    training, result = TRAININGS[framework], user.folder.parent / "expected.npz"
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")
    }
    command = [sys.executable, "held.py", framework, *_script(training, result)]
    environment = {**inherited, "PYTHONPATH": str(SOURCE), **training.variables}
    subprocess.run(command, cwd=user.folder, env=environment, check=True)
    return _weights(result)


def _process(hill: Hill, task: str) -> int:
    """The process of a job's task."""
    tasks = {
        pid: variables(pid).get("HEADGATE_TASK", "")
        for node in "bc"
        for pid in hill.processes(node)
    }
    [found] = [pid for pid, name in tasks.items() if name.endswith(f"/{task}")]
    return found


def _script(training: Training, result: Path) -> tuple[str, ...]:
    """Its command, with the file that it writes: it is outside the folder that is sent, and both
    nodes are here.
    """
    return tuple(str(result) if word == "RESULT" else word for word in training.script)


def _steps(user: Somebody, run: str) -> list[int]:
    return [row["step"] for row in user.rows(run, "progress") if row["step"]]


def _ended(user: Somebody, run: str) -> bool:
    return user.rows(run, "jobs")[0]["state"] in ("done", "failed")


def _weights(result: Path) -> list[list[float]]:
    if result.read_bytes()[:1] == b"{":
        return list(json.loads(result.read_text())["weights"])
    return [each.ravel().tolist() for name, each in np.load(result).items() if name != "losses"]
