"""A package with plug-ins, as pip would have installed it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent


def install(folder: Path, modules: Mapping[str, str], entry_points: str) -> None:
    """Put modules, by name, and what they register into a folder that is to be on the path."""
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(dedent(text))
    about = folder / "someones_package-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: someones-package\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(entry_points)
