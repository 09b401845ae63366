"""Which files decide what a job does, and which of them were edited."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headgate.model.jobs import Job
from headgate.scripts import job_files
from headgate.scripts.facts import facts_of
from headgate.scripts.job_files import FileLook, edited


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project: a script, a package, settings, data, and what it writes."""
    files = {
        "train.py": (
            "import torch\nimport helper, os\nfrom models import net\nfrom models.blocks import *\n"
        ),
        "helper.py": (
            "def later():\n    import importlib\n    importlib.import_module('plugins.late')"
        ),
        "models/__init__.py": "",
        "models/net.py": "from . import layers\nfrom .blocks import Block",
        "models/layers.py": "",
        "models/blocks.py": "this is no Python (",
        "plugins/late.py": "",
        "lib/shared.py": "",
        "unused.py": "",
        "conf/base.yaml": "lr: 1",
        "conf/model/small.yaml": "width: 2",
        "notes.txt": "",
        "a.yaml": "",
        "b.json": "",
        "out.json": "",
        "run.sh": "python train.py",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def looked_at(folder: Path, **fields: object) -> set[str]:
    job = Job(name="job", workdir=str(folder), **fields)  # type: ignore[arg-type]
    return {
        os.path.relpath(path, folder)
        for path in FileLook().files(job, facts_of(job), {"PYTHONPATH": str(folder / "lib")})
    }


PACKAGE = {"models/__init__.py", "models/net.py", "models/layers.py", "models/blocks.py"}
MODULES = {"train.py", "helper.py", "plugins/late.py"} | PACKAGE


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"script": "train.py"}, MODULES),
        ({"run": "python -m models.net"}, PACKAGE),
        ({"run": ("python", "-u", "train.py", "--config=a.yaml", "@b.json")},
         MODULES | {"a.yaml", "b.json"}),
        ({"run": "cd . && python train.py -c a.yaml > out.json; cat b.json | tee -a out.json"},
         MODULES | {"a.yaml", "b.json"}),
        ({"run": ("bash", "-c", "python unused.py --cfg a.yaml")}, {"unused.py", "a.yaml"}),
        ({"run": ("bash", "run.sh")}, {"run.sh"}),
        ({"script": "unused.py", "args": ("--output", "out.json", "a.yaml", "notes.txt")},
         {"unused.py", "a.yaml"}),
        ({"script": "unused.py", "args": ("--log_file=out.json", "lr=0.1")}, {"unused.py"}),
        ({"script": "unused.py", "args": ("--config-path", "conf")},
         {"unused.py", "conf/base.yaml", "conf/model/small.yaml"}),
        ({"script": "unused.py", "env": {"SETTINGS": "a.yaml", "LOG": "out.json"}},
         {"unused.py", "a.yaml"}),
        ({"run": "echo nothing"}, set()),
    ],
)  # fmt: skip
def test_it_is_its_program_the_modules_of_its_own_and_the_settings_it_is_given(
    folder: Path, fields: dict[str, object], expected: set[str]
) -> None:
    assert looked_at(folder, **fields) == expected


def test_modules_of_a_python_path_count_and_installed_ones_do_not(folder: Path) -> None:
    (folder / "unused.py").write_text("import shared, other, ours")
    for name in ("venv/site-packages/other.py", "mine/ours.py"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("")
    assert looked_at(folder, script="unused.py") == {"unused.py", "lib/shared.py"}
    assert looked_at(folder, script="unused.py", env={"PYTHONPATH": "venv/site-packages:mine"}) == {
        "unused.py",
        "mine/ours.py",
    }


def test_what_is_written_anew_with_the_same_content_is_not_edited(folder: Path) -> None:
    job = Job(name="job", script="train.py", args=("--config", "a.yaml"), workdir=str(folder))
    files = FileLook().files(job, facts_of(job), {})
    assert edited(files) == []
    (folder / "helper.py").write_text((folder / "helper.py").read_text() + "\n")
    (folder / "models" / "layers.py").unlink()
    os.utime(folder / "train.py")
    (folder / "a.yaml").write_text("lr: 2")
    (folder / "b.json").write_text("{}")
    assert {path.name for path in edited(files)} == {"helper.py", "layers.py", "a.yaml"}


def test_of_very_many_and_very_large_files_a_part_is_looked_at(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_files, "MOST_FILES", 3)
    monkeypatch.setattr(job_files, "MOST_BYTES", 1000)
    (folder / "a.yaml").write_text("x" * 1001)
    assert "a.yaml" not in looked_at(folder, script="unused.py", args=("a.yaml",))
    assert len(looked_at(folder, script="train.py")) == 3
