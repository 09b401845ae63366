"""A headless Chromium, and reports opened in it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.hub.user import SECONDS

from headgate.testing.wait import until

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1280,1400"
)


@contextmanager
def chromium(folder: Path) -> Iterator[Any]:
    """A browser with a profile in `folder`; skips the test where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if not (CHROMIUM and DRIVER):
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={folder}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        driver.set_script_timeout(SECONDS)
        yield driver
    finally:
        driver.quit()


def opened(browser: Any, report: Path) -> Any:
    """The browser with that report open, drawn."""
    browser.get_log("performance")
    browser.get(report.as_uri())
    until(lambda: browser.execute_script("return window.headgate !== undefined"), what="the plots")
    return browser


@contextmanager
def seen_as(page: Any, width: int, scheme: str) -> Iterator[None]:
    """The page on a screen of that width, `light` or `dark`."""
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    try:
        yield
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def faults_by_axe(page: Any) -> list[str]:
    """What axe-core finds serious or critical in the page: the rule, and where.

    The test is skipped where axe-core is not installed.
    """
    package = find_spec("axe_playwright_python")  # whose axe-core it is; it is not imported
    if package is None or not package.submodule_search_locations:
        pytest.skip("axe-core is not installed; see the Makefile")
    script = Path(package.submodule_search_locations[0], "axe.min.js").read_text()
    page.execute_script(script)
    violations = page.execute_async_script(
        "const done = arguments[0]; axe.run().then((told) => done(told.violations))"
    )
    return [
        f"{violation['id']}: {node['html']} {node['failureSummary']}"
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]
