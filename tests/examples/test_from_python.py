"""The examples of running jobs from Python: a study by Optuna, and a notebook."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import User

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
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


def text_of(output: Any) -> str:
    return str(output.get("text") or "".join(output["data"].values()))


@pytest.mark.slow
def test_the_notebook_runs(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat = pytest.importorskip("nbformat")
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", user.variables["PYTHONPATH"])
    monkeypatch.chdir(user.folder)
    notebook = nbformat.read(EXAMPLES / "notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    shown = ["".join(map(text_of, cell.outputs)) for cell in notebook.cells if cell.get("outputs")]
    ended, table, log, why, results, again = shown
    assert (ended, log, results) == ("'done'", "1\n2\n3\n\n", "[1024, 59049]")
    assert "<td>counts</td><td>done</td>" in table
    assert "<iframe" in table
    assert "<iframe" in why
    assert "greets" in why
    assert again == r"(1024, '2 to the 10\n')"
