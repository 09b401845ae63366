"""A process that is fenced in writes nowhere else, and what it tried is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TRIES = """
import os, shutil, subprocess, sys
from headgate.task import fence
inside, outside = sys.argv[1:]
told = []
print(fence.shut([inside, "/dev"], told.append))
open(f"{inside}/new", "w").write("x")
os.rename(f"{inside}/new", f"{inside}/newer")
for attempt in (
    lambda: open(f"{outside}/kept", "w"),
    lambda: os.remove(f"{outside}/kept"),
    lambda: os.mkdir(f"{outside}/more"),
    lambda: os.rename(f"{outside}/kept", f"{inside}/kept"),
    lambda: shutil.rmtree(outside),
):
    try:
        attempt()
    except OSError:
        print("refused")
print(open(f"{outside}/kept").read())
writing = ["sh", "-c", f"echo gone > {outside}/kept"]
print(subprocess.run(writing, stderr=subprocess.DEVNULL).returncode)
print(sorted({os.path.basename(path) for path in told}))
"""


def fenced(folder: Path, before: str = "") -> list[str]:
    inside, outside = folder / "inside", folder / "outside"
    inside.mkdir()
    outside.mkdir()
    (outside / "kept").write_text("kept")
    words = [sys.executable, "-c", before + TRIES, str(inside), str(outside)]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def test_nothing_outside_is_changed(tmp_path: Path) -> None:
    lines = fenced(tmp_path)
    if lines[0] == "False":
        pytest.skip("no Landlock in this kernel")
    assert lines[:7] == ["True", *["refused"] * 5, "kept"]
    assert lines[7] != "0"  # of a program that it started
    assert lines[8].startswith("['kept', 'more'")
    assert (tmp_path / "outside" / "kept").read_text() == "kept"
    assert (tmp_path / "inside" / "newer").exists()


def test_without_landlock_python_refuses_by_itself(tmp_path: Path) -> None:
    lines = fenced(tmp_path, "import headgate.task.landlock\nheadgate.task.landlock._CREATE = -1\n")
    assert lines[0] == "False"
    assert lines.count("refused") == 5
    assert "kept" in lines
