"""The page while a Ray cluster runs a job."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.ray.hill import ADDRESS, RAY, Somebody
from tests.reports.browsing import chromium
from tests.web.conftest import Pages
from tests.web.watching import LEARNS, Page, shows_one_elsewhere


@pytest.mark.long  # nothing but the engine tells the page apart from one of a lab: tests/hub
def test_the_page_has_ray_s_nodes_links_logs_and_buttons(user: Somebody, tmp_path: Path) -> None:
    user.write("a.py", LEARNS.replace("{NAME}", "a"))
    user.touch("a-1")
    user.detaches("a.py", *RAY, "--shared-files", "--nodes", "b")
    served = Pages(user, "--port", "0")
    with chromium(tmp_path / "profile") as browser:
        page = Page(browser, served.act)
        meters = ("of 2 cores", "of 2 GiB", "/s of 1.16 GiB/s")
        shows_one_elsewhere(page, user, f"Ray at {ADDRESS}", *meters)
    assert served.ends() == 0
