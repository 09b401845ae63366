"""Several models and optimizers, weights that are in a model for a while: a stop and a resume
change nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.keras.conftest import Start, finish, run

SCRIPT = Path(__file__).with_name("more_models.py")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("what", "step", "backend"),
    [
        pytest.param("pair", 9, "tensorflow", marks=pytest.mark.long),
        pytest.param("critic", 12, "tensorflow", marks=pytest.mark.long),
        pytest.param("critic", 9, "tf_keras", marks=pytest.mark.long),
        pytest.param("average", 12, "tensorflow", marks=pytest.mark.long),
        pytest.param("average", 12, "torch", marks=pytest.mark.long),
        pytest.param("average", 9, "jax", marks=pytest.mark.long),
        pytest.param("folds", 3, "torch", marks=pytest.mark.long),
        pytest.param("folds", 16, "tensorflow", marks=pytest.mark.long),
        pytest.param("folds", 16, "jax", marks=pytest.mark.long),
        pytest.param("again", 9, "tensorflow", marks=pytest.mark.long),
        pytest.param("again", 9, "tf_keras", marks=pytest.mark.long),
    ],
)
def test_a_stop_and_a_resume_change_nothing(
    what: str, step: int, backend: str, start: Start, tmp_path: Path
) -> None:
    whole = finish(run(backend, [str(SCRIPT), what], tmp_path), tmp_path).splitlines()
    stopped = start(backend, f"{what}@{step}", script=SCRIPT)
    stopped.listener.wait_for("waiting", seconds=200)
    stopped.listener.send({"type": "stop"})
    shown = stopped.finish().splitlines()
    saved = stopped.checkpoint()
    assert (saved["step"], saved["why"]) == (step, "stop")
    resumed = start(backend, what, script=SCRIPT, resume=saved["path"]).finish().splitlines()
    expected = [line.split() for line in whole if line.startswith(("weights", "fold", "part"))]
    words = [line.split() for line in resumed if line.startswith(("weights", "fold", "part"))]
    # Of a training that was over, the resumed script has the end of each part alone.
    past = len([line for line in shown if line.startswith("part")])
    assert [line[:2] for line in words] == [line[:2] for line in expected]
    for line, wanted in list(zip(words, expected))[past:]:
        assert line[1:] == pytest.approx([float(n) for n in wanted[1:]], rel=1e-6) or line == wanted


@pytest.mark.long  # so are those of every model of test_fit.py
def test_all_optimizers_that_a_model_holds_are_in_the_checkpoint(start: Start) -> None:
    stopped = start("tensorflow", "pair@9", script=SCRIPT)
    stopped.listener.wait_for("waiting", seconds=200)
    stopped.listener.send({"type": "stop"})
    stopped.finish()
    with np.load(stopped.checkpoint()["path"]) as saved:
        names = set(saved.files)
    adam, sgd = 2 + 2 * 4, 2 + 4
    for k, count in enumerate((adam, sgd)):
        assert {f"held/0/{k}/{j}" for j in range(count)} <= names
