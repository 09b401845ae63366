"""Which Python program a job's command runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.model.jobs import Job
from headgate.scripts.program import Program, program, source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train.py", "package/__main__.py", "package/train.py", "other/far/away.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("import headgate.torch\n")
    return tmp_path


@pytest.mark.parametrize(
    ("run", "python", "file", "module", "args"),
    [
        (("python", "train.py", "--epochs", "5"), None, "train.py", "", ("--epochs", "5")),
        (
            ("python3.12", "-u", "-X", "dev", "train.py", "-m", "x"),
            "python3.12",
            "train.py",
            "",
            ("-m", "x"),
        ),
        (
            ("/opt/env/bin/python", "-O", "-m", "package.train", "5"),
            "/opt/env/bin/python",
            "package/train.py",
            ...,
            ("5",),
        ),
        (("python", "-mpackage"), None, "package/__main__.py", "package", ()),
        (("python", "-m", "far.away"), None, "other/far/away.py", "far.away", ()),
        (("python", "-m", "elsewhere"), None, None, "elsewhere", ()),
        (
            "python -m package.train --lr=0.1 'two words'",
            None,
            "package/train.py",
            ...,
            ("--lr=0.1", "two words"),
        ),
    ],
)
def test_a_command_that_python_runs(
    folder: Path,
    run: str | tuple[str, ...],
    python: str | None,
    file: str | None,
    module: object,
    args: tuple[str, ...],
) -> None:
    job = Job(name="a", run=run, workdir=str(folder), env={"PYTHONPATH": "nowhere:other"})
    there = folder / file if file is not None else None
    named = "package.train" if module is ... else str(module)
    assert program(job) == Program(python, there, named, args)
    assert source(job) == there


@pytest.mark.parametrize(
    "run",
    [
        "python train.py | tee log",
        "SEED=1 python train.py",
        "python train.py && echo done",
        "python 'train.py",
        ("python", "-c", "print(1)"),
        ("python", "-"),
        ("python", "-m"),
        ("python",),
        ("sh", "train.py"),
        ("pythonic", "train.py"),
    ],
)
def test_what_is_not_looked_into(folder: Path, run: str | tuple[str, ...]) -> None:
    assert program(Job(name="a", run=run, workdir=str(folder))) is None


def test_a_file_that_is_not_there_is_no_source(folder: Path) -> None:
    assert source(Job(name="a", run=("python", "nosuch.py"), workdir=str(folder))) is None
    assert source(Job(name="a", script="train.py", workdir=str(folder))) == folder / "train.py"
