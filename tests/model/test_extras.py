"""What is told of missing parts can be installed: the packages themselves, and no project of
another's.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import headgate
from headgate.cli import mcp, web
from headgate.engines.engine_options import declared
from headgate.model.errors import MissingExtraError
from headgate.model.extras import PACKAGES, install

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_the_table_says_what_the_project_says() -> None:
    extras = PROJECT["optional-dependencies"]
    engines = {
        name: engine.requirement for name, engine in declared().items() if engine.requirement
    }
    for part, package in {**PACKAGES, **engines}.items():
        assert part not in extras or extras[part] in ([], [package])
        assert package in [
            *PROJECT["dependencies"],
            *(each for listed in extras.values() for each in listed),
        ]


def test_the_page_names_the_packages_of_its_extra() -> None:
    assert list(web.NEEDED.values()) == PROJECT["optional-dependencies"]["web"]
    assert list(web.FOR_OTLP.values()) == PROJECT["optional-dependencies"]["otel"]
    assert PROJECT["optional-dependencies"]["mcp"] == [mcp.PACKAGE]


def test_a_missing_part_is_told_with_its_package() -> None:
    assert str(MissingExtraError("docker", "isolation")).endswith(": pip install 'docker>=7.1'")
    assert install("somebodys-engine") == "pip install 'somebodys-engine'"


def test_nothing_tells_to_install_the_project_of_that_name_from_an_index() -> None:
    assert PROJECT["name"] == "headgate-dl"
    pages = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").glob("*.md"),
        *Path(headgate.__file__).parent.rglob("*.py"),
    ]
    told = [
        line
        for page in pages
        if page.name != "CHANGELOG.md"
        for line in page.read_text().splitlines()
    ]
    lines = [line for line in told if re.search(r"(pip|pipx|uv tool) install", line)]
    assert len(lines) > 10
    assert [line for line in lines if re.search(r"install ['\"]?headgate", line)] == []
