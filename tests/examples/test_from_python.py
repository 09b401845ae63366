"""The examples of running jobs from Python: a study by Optuna, and a notebook."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hub.user import User

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_study_of_optuna_learns_by_calls(user: User) -> None:
    pytest.importorskip("optuna")
    words = [sys.executable, str(EXAMPLES / "optuna_study.py"), "--trials", "4", "--at-once", "2"]
    done = subprocess.run(
        words, cwd=user.folder, env=user.variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    trials = re.findall(r"^(\S+/accuracy-\d): .* gives ([\d.]+)%$", done.stdout, re.MULTILINE)
    best = re.search(r"^best: .* with ([\d.]+)%$", done.stdout, re.MULTILINE)
    assert best is not None
    assert len(trials) == len({id for id, _ in trials}) == 4
    assert float(best[1]) == max(float(percent) for _, percent in trials) > 85


def test_the_notebook_runs(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", user.variables["PYTHONPATH"])
    monkeypatch.chdir(user.folder)
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = "\n".join(
        str(output.get("data", output.get("text")))
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )
    for part in ("'done'", "<td>counts</td>", "[1024, 59049]", "(1024, '2 to the 10\\n')"):
        assert part in shown.replace('"', "'").replace("\\'", "'"), shown
