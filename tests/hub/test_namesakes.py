"""A task whose own environment has another package called `headgate` imports that one, and runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hub.user import User

from headgate.engines.namesakes import Known, kept_out_by
from headgate.model.jobs import Job
from headgate.model.sweeps import Sweep
from headgate.scripts.facts import facts_of

IMPORTS = """
    import headgate
    print("water level", headgate.LEVEL, flush=True)
    print("epoch 1/1 loss 0.5", flush=True)
"""


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A virtual environment that has a stranger's package of that name."""
    path = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    [site] = path.glob("lib/python3*/site-packages")
    (site / "headgate").mkdir()
    (site / "headgate" / "__init__.py").write_text("LEVEL = 7\n")
    return path


def test_it_is_run_and_measured_without_ours_and_that_is_said(
    user: User, environment: Path
) -> None:
    user.write("plain.py", IMPORTS)
    said = user.types(
        "run", "plain.py", "--python", str(environment / "bin" / "python"), "--env", "PYTHONPATH="
    ).stdout
    assert "its own environment has another package `headgate`" in said
    assert "water level 7" in user.log("plain")
    assert user.jobs()["plain"]["loss"] == 0.5
    (user.folder / "beside").mkdir()
    user.write("beside/headgate.py", "LEVEL = 8")
    user.write("beside/local.py", IMPORTS)
    user.types("run", "beside/local.py")
    assert "water level 8" in user.log("local")


def test_a_job_that_imports_ours_has_it_and_one_without_a_namesake_too(
    environment: Path, tmp_path: Path
) -> None:
    python, variables = str(environment / "bin" / "python"), {"PATH": os.environ["PATH"]}
    for text, is_kept_out in (("import headgate", True), ("import headgate.torch as hg", False)):
        (tmp_path / "train.py").write_text(text)
        job = Job(
            name="train", script=str(tmp_path / "train.py"), python=python, workdir=str(tmp_path)
        )
        assert bool(kept_out_by(job, facts_of(job), variables)) is is_kept_out
    (tmp_path / "train.py").write_text("print()")
    other = Job(
        name="train",
        script=str(tmp_path / "train.py"),
        python=sys.executable,
        workdir=str(tmp_path),
    )
    assert kept_out_by(other, facts_of(other), variables) == ""  # it finds ours, or none
    no_python = Job(name="a", run="true", workdir=str(tmp_path))
    assert kept_out_by(no_python, facts_of(no_python), {"PATH": "/nowhere"}) == ""


def test_an_interpreter_is_asked_once_for_all_jobs_of_a_sweep(
    environment: Path, tmp_path: Path
) -> None:
    python = str(environment / "bin" / "python")
    (tmp_path / "train.py").write_text("import headgate")
    job = Job(name="a", script=str(tmp_path / "train.py"), python=python, workdir=str(tmp_path))
    known: Known = {}
    for swept in Sweep({"seed": ("0", "1")}, passing="environment").jobs(job):
        assert kept_out_by(swept, facts_of(swept), {"PATH": os.environ["PATH"]}, known)
    assert len(known) == 1
