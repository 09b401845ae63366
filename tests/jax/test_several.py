"""Several workers, each a real process, come to what one process comes to; they end, fail and go on
together.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.gang import Gang
from tests.harness.warm import warm_python

from headgate.model.identifiers import TaskName
from headgate.model.plans import Plan
from headgate.task import PeerLost

SCRIPT = Path(__file__).with_name("several.py")
SOURCE = Path(__file__).parents[2] / "src"
EPOCHS = 4
WARM = ("jax", "jax.numpy", "optax", "flax.nnx", "orbax.checkpoint")
FOR_EVER = 10_000
pytestmark = pytest.mark.timeout(400)


def gang(folder: Path, workers: int, epochs: int = EPOCHS, **variables: str) -> Gang:
    folder.mkdir(exist_ok=True)
    plan = Plan(strategy="allreduce", workers=workers, batch_per_worker=None)
    return Gang(
        folder, plan, [sys.executable, str(SCRIPT), str(epochs), "result.npz"], variables, warm=WARM
    )


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process comes to, without Headgate."""
    folder = tmp_path_factory.mktemp("alone")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")
    }
    environment |= {"PYTHONPATH": str(SOURCE), "PJRT_NPROC": "1", "OMP_NUM_THREADS": "1"}
    command = [str(SCRIPT), str(EPOCHS), "result.npz"]
    with open(folder / "output", "wb") as output:
        process = warm_python(*WARM).start(
            command, env=environment, cwd=folder, output=output.fileno()
        )
    assert process.wait(240) == 0, (folder / "output").read_text()
    return folder / "result.npz"


def far(file: Path, alone: Path, since: int = 0) -> dict[str, float]:
    """How far results are apart, as a multiple of what is allowed; losses from step `since` on."""
    arrays, expected = dict(np.load(file)), dict(np.load(alone))
    losses = expected.pop("losses")[since:], arrays.pop("losses")
    pairs: dict[str, tuple[Any, Any]] = {name: (expected[name], arrays[name]) for name in expected}
    pairs |= {
        f"{kind} losses": (losses[0][:, i], losses[1][:, i])
        for i, kind in enumerate(("32", "64", "in place"))
    }
    allowed = {name: 1e-10 if name.startswith("64") else 1e-5 for name in pairs}
    apart = {
        name: float(np.linalg.norm(a - b) / np.linalg.norm(a) / allowed[name])
        for name, (a, b) in pairs.items()
    }
    return {name: value for name, value in apart.items() if not value <= 1}


@pytest.mark.parametrize("workers", [2, pytest.param(4, marks=pytest.mark.long)])
def test_comes_to_what_one_process_comes_to(workers: int, alone: Path, tmp_path: Path) -> None:
    with gang(tmp_path, workers) as running:
        running.start()
        running.finish()
        progress = running.of("worker-0", "progress")[-1]
        assert (progress["step"], progress["samples"]) == (EPOCHS * 4, EPOCHS * 46)
        (profile,) = running.of("worker-0", "profile")
        assert {time["batch"] for time in profile["profile"]["step_times"]} >= {12 // workers}
        assert running.of("worker-1", "profile") == []
    assert far(tmp_path / "result.npz", alone) == {}


@pytest.mark.long
def test_all_stop_at_the_same_step_and_go_on_as_another_number_of_workers(
    alone: Path, tmp_path: Path
) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "hold").touch()
    with gang(tmp_path / "first", 2, FOR_EVER) as running:
        running.start()
        running.wait_for("worker-0", "progress", 2)
        running.send("worker-0", {"type": "checkpoint"})
        for name in running.names:
            running.send(name, {"type": "stop"})
        running.finish()
        steps = {name: running.of(name, "progress")[-1]["step"] for name in running.names}
        saved = running.of("worker-0", "checkpoint")[-1]
        assert (saved["why"], steps) == ("stop", dict.fromkeys(steps, saved["step"]))
        assert running.of("worker-1", "checkpoint") == []
    assert saved["step"] < EPOCHS * 4, "too late to resume within the epochs of the comparison"
    with gang(tmp_path / "second", 3, HEADGATE_RESUME=saved["path"]) as running:
        running.start()
        running.finish()
    assert far(tmp_path / "second" / "result.npz", alone, saved["step"]) == {}


@pytest.mark.long
def test_what_each_worker_draws_at_random_is_drawn_as_worker_0_does(tmp_path: Path) -> None:
    with gang(tmp_path, 2, UNLIKE="1") as running:
        running.start()
        running.finish()
    losses = np.load(tmp_path / "result.npz")["losses"]
    assert losses[-4:, 1].mean() < losses[:4, 1].mean()


@pytest.mark.long  # the check is the one of tests/jax/test_together.py
def test_workers_that_draw_other_batches_are_told_so(tmp_path: Path) -> None:
    with gang(tmp_path, 2, ASTRAY="1") as running:
        running.start()
        assert running.left(TaskName("worker-1")) == 1
        assert "this worker drew another batch than worker 0" in running.output("worker-1")


def test_a_worker_that_is_killed_ends_the_others_for_another_try(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    with gang(tmp_path, 2, FOR_EVER) as running:
        running.start()
        running.wait_for("worker-0", "progress", 2)
        running.kill(TaskName("worker-1"))
        assert running.left(TaskName("worker-0")) == PeerLost.STATUS
        assert (
            "worker-1 is gone in the middle of a step" in running.of("worker-0", "note")[-1]["text"]
        )
        assert "Traceback" not in running.output("worker-0")


@pytest.mark.long  # one that draws other batches fails in one worker, too
def test_a_script_that_fails_in_one_worker_ends_there_at_once(tmp_path: Path) -> None:
    with gang(tmp_path, 2, FAILS="1") as running:
        running.start()
        assert running.left(TaskName("worker-1")) == 1
        assert "ValueError: the script is at fault" in running.output("worker-1")


@pytest.mark.long
def test_variables_that_join_processes_by_themselves_are_refused(tmp_path: Path) -> None:
    with gang(tmp_path, 2, WORLD_SIZE="4", JAX_NUM_PROCESSES="8") as running:
        running.start("worker-0")
        assert running.left(TaskName("worker-0")) == 1
        assert "found WORLD_SIZE=4, JAX_NUM_PROCESSES=8 in the environment" in running.output(
            "worker-0"
        )
