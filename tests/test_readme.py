"""What the README promises on its first screen."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests import prose

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def script() -> str:
    """The three-call script."""
    [found] = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_first_commands_are_demo_and_test_then_install_and_run() -> None:
    lines = [line.split("#")[0].strip() for line in re.findall(r"^\$ (.*)$", README, re.MULTILINE)]
    assert lines[:4] == [
        "make demo",
        "make test",
        "pip install './headgate[torch]'",
        "headgate run train.py",
    ]


def test_the_script_needs_three_calls() -> None:
    assert re.findall(r"hg\.(\w+)\(", script()) == ["prepare", "epochs", "report"]


@pytest.mark.slow
def test_the_script_learns_the_same_under_headgate(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch; torch.manual_seed(0); torch.set_num_threads(1)\n" + script()
    )
    alone = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    (tmp_path / "jobs.yaml").write_text(
        f"jobs: [{{script: train.py, python: {json.dumps(sys.executable)}}}]\n"
    )
    command = [sys.executable, "-m", "headgate", "run", "jobs.yaml"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=200, check=True)
    command = [sys.executable, "-m", "headgate", "logs", "train"]
    under = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert alone.stdout.startswith("loss 0.")
    assert under.stdout == alone.stdout


def test_the_script_runs_without_headgate_with_the_fallback_of_its_page(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "script.md").read_text()
    [fallback] = re.findall(r"^```python\n(try:\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    absent = "import sys; sys.modules['headgate'] = None\n"
    (tmp_path / "train.py").write_text(
        absent + script().replace("import headgate.torch as hg\n", fallback)
    )
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.startswith("loss 0.")


def test_the_front_page_is_short() -> None:
    assert len(README.splitlines()) <= 150
    [sentence] = prose.sentences(README.split("\n\n")[1])[0]
    assert prose.words(sentence) <= 20


def test_every_page_of_docs_is_named() -> None:
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert pages <= set(re.findall(r"\((docs/[\w.-]+)\)", README))
