"""The site of the documentation: `make docs-site` builds it, with every link checked; here is what needs no MkDocs."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def test_every_page_of_docs_is_in_the_navigation_once() -> None:
    pages = re.findall(r"[\w/-]+\.md", yaml.safe_dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert len(pages) == len(set(pages))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= set(pages)
