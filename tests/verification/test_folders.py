"""A script runs in a copy of its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from headgate.model.jobs import Job
from headgate.verification import folders


def test_what_is_small_is_copied_and_what_is_large_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / "data").mkdir(parents=True)
    (project / "train.py").write_text("import helper")
    (project / "data" / "large.bin").write_bytes(bytes(2000))
    (project / ".git").mkdir()
    (project / "env").mkdir()
    (project / "env" / "pyvenv.cfg").touch()
    monkeypatch.setattr(folders, "MOST_BYTES", 1000)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    job = Job(
        name="a",
        script=str(project / "train.py"),
        workdir=str(project),
        args=("--out", f"{project}/out", f"--data={project}/data"),
    )
    copied = folders.copied(job, scratch).job(job)
    copy = Path(copied.workdir)
    assert copy != project
    assert copied.script == str(copy / "train.py")
    assert copied.args == ("--out", f"{copy}/out", f"--data={copy}/data")
    assert not (copy / "train.py").is_symlink()
    assert (copy / "data" / "large.bin").resolve() == project / "data" / "large.bin"
    assert (copy / "env").resolve() == project / "env"
    assert not (copy / ".git").exists()


def test_a_folder_that_holds_the_copies_is_not_copied_into_itself(tmp_path: Path) -> None:
    scratch = tmp_path / "home" / "verifying" / "x"
    scratch.mkdir(parents=True)
    (tmp_path / "train.py").touch()
    job = Job(name="a", script=str(tmp_path / "train.py"), workdir=str(tmp_path))
    copy = Path(folders.copied(job, scratch).job(job).workdir)
    assert (copy / "train.py").exists()
    assert (copy / "home").is_symlink()
