"""Several workers that add up gradients among themselves come to what one process comes to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.torch import right_answers

from headgate.plans import Plan
from headgate.testing.gang import Gang

SCRIPT = Path(right_answers.__file__)
SOURCE = Path(__file__).parents[2] / "src"


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each case comes to in one process, without Headgate."""
    file = tmp_path_factory.mktemp("alone") / "results.pt"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    subprocess.run(
        [sys.executable, SCRIPT, file],
        env={**environment, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        check=True,
    )
    return file


@pytest.mark.parametrize(
    ("workers", "batches"), [(1, None), (2, (9, 3)), (4, None)], ids=["one", "two unlike ones", "four"]
)
def test_comes_to_what_one_process_comes_to(
    workers: int, batches: tuple[int, ...] | None, alone: Path, tmp_path: Path
) -> None:
    plan = Plan(strategy="allreduce", workers=workers, batch_per_worker=batches)
    with Gang(tmp_path, plan, ["sh", "-c", f'{sys.executable} {SCRIPT} "$HEADGATE_TASK_NAME"']) as gang:
        for index in range(workers):
            gang.start(f"worker-{index}", HEADGATE_TASK_NAME=str(tmp_path / f"{index}.pt"))
        gang.finish()
    for index in range(workers):
        far = right_answers.differences(tmp_path / f"{index}.pt", alone)
        assert {case: times for case, times in far.items() if times > 1} == {}
