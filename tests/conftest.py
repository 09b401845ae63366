"""What all tests share: a Headgate folder of their own, and no silent skips where every optional part is required."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

CONTRACTS = "/headgate/testing/"
"""A skip that a contract suite raises itself says what its subject does not claim; no installation would cure that."""

REQUIRE_ALL = os.environ.get("HEADGATE_TEST_REQUIRE_ALL") == "1"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """`HEADGATE_HOME` of this test; a hub that it started is gone when it ends."""
    folder = tmp_path / "home"
    monkeypatch.setenv("HEADGATE_HOME", str(folder))
    for variable in ("HEADGATE_CHANNEL", "HEADGATE_TASK", "HEADGATE_RESUME"):
        monkeypatch.delenv(variable, raising=False)
    yield folder
    if (folder / "hub").exists():
        end_hub()


def end_hub() -> None:
    """End the hub of `HEADGATE_HOME`, and with it whatever it still runs."""
    from headgate.hub import client

    hub = client.connect()
    if hub is None:
        return
    with closing(hub):
        pidfd = os.pidfd_open(hub.ask("hello")["pid"])
    try:
        for patience in (5, 30):  # asked a second time, it kills what does not end
            signal.pidfd_send_signal(pidfd, signal.SIGTERM)
            ended, _, _ = select.select([pidfd], [], [], patience)
            if ended:
                return
    finally:
        os.close(pidfd)
    raise TimeoutError("the hub did not end within 30 s of a second SIGTERM")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.get_closest_marker("hardware") is None and not hasattr(report, "wasxfail"):
        _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Where every optional part is required, a skip is a failure that names what is missing."""
    if not REQUIRE_ALL or report.outcome != "skipped":
        return
    where, reason = "", str(report.longrepr)
    if isinstance(report.longrepr, tuple):
        where, _, reason = report.longrepr
    if CONTRACTS not in where:
        report.outcome = "failed"
        report.longrepr = f"skipped although HEADGATE_TEST_REQUIRE_ALL is set: {reason.removeprefix('Skipped: ')}"
