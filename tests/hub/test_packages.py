"""What is installed for an interpreter, and when it is asked again."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from headgate.hub.submission import packages


def install(folder: Path, name: str, version: str) -> None:
    about = folder / f"{name}.dist-info"
    about.mkdir(exist_ok=True)
    (about / "METADATA.new").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    )
    (about / "METADATA.new").rename(about / "METADATA")


def test_an_interpreter_is_asked_again_only_where_something_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, cache, asked = tmp_path / "installed", tmp_path / "packages.json", tmp_path / "asked"
    place.mkdir()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho asked >> {asked}\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o700)
    monkeypatch.setenv("PYTHONPATH", str(place))

    def found() -> list[str] | None:
        listed = packages(str(python), cache)
        return listed and [each for each in listed if each.startswith("made-up")]

    install(place, "made-up", "1.0")
    assert found() == found() == ["made-up==1.0"]
    assert asked.read_text().count("asked") == 1
    install(place, "made-up", "1.1")
    install(place, "made-up-too", "2")
    assert found() == found() == ["made-up-too==2", "made-up==1.1"]
    assert asked.read_text().count("asked") == 2
    cache.write_text('{"damaged": [')
    assert found() == ["made-up-too==2", "made-up==1.1"]
    os.truncate(python, 0)
    cache.unlink()
    assert found() is None
