"""The site of the documentation: `make docs-site` builds it, with every link checked; here is what
needs no MkDocs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.reports.browsing import chromium

from headgate.testing import wait

ROOT = Path(__file__).parents[1]


def test_every_page_of_docs_is_in_the_navigation_once() -> None:
    pages = re.findall(
        r"[\w/-]+\.md", yaml.safe_dump(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    )
    assert len(pages) == len(set(pages))
    assert {page.name for page in (ROOT / "docs").glob("*.md")} <= set(pages)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="MkDocs is not installed (make .venv/docs.stamp)")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.mark.long
def test_a_site_in_a_folder_is_searched_without_asking_anybody(site: Path, tmp_path: Path) -> None:
    with chromium(tmp_path) as browser:
        browser.get((site / "index.html").as_uri())
        browser.execute_script("document.querySelector('#__search').click()")
        field = browser.find_element("css selector", "input.md-search__input")
        wait.until(field.is_displayed, what="the field of the search")
        field.send_keys("administrator")
        links = (
            "return [...document.querySelectorAll('.md-search-result__link')].map((link) "
            "=> link.href)"
        )
        found = wait.until(lambda: browser.execute_script(links), what="what the search finds")
        assert any("administrator.html" in link for link in found)
        asked = (
            json.loads(entry["message"])["message"] for entry in browser.get_log("performance")
        )
        addresses = [
            each["params"]["request"]["url"]
            for each in asked
            if each["method"] == "Network.requestWillBeSent"
        ]
        assert addresses and not [address for address in addresses if address.startswith("http")]
