"""The page and its figures show the jobs of all users of a shared machine, as its user may see
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.arbiter.serving import ServedArbiter, served
from tests.hub.user import User
from tests.web.conftest import Pages
from tests.web.watching import Page

from headgate.model.sharing import SharingRules
from headgate.web import metrics
from headgate.web.board import Board

VAE = {"id": "r/vae#1", "name": "<b>vae</b>", "gpus": 2}


@pytest.fixture
def arbiter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServedArbiter]:
    """Ada runs a job on both GPUs, and has a private one that waits."""
    with served(tmp_path, monkeypatch, SharingRules()) as arbiter:
        ada = arbiter.hub("ada")
        ada.state(VAE)
        ada.hears("ResourceGrant")
        ada.state({"id": "r/s#1", "name": "secret", "private": True, "gpus": 1}, running=[VAE])
        ada.hears("JobWaits")
        arbiter.user = "grace"
        yield arbiter


def test_the_page_shows_what_runs_and_waits_of_all_users(
    arbiter: ServedArbiter, user: User, browser: Any
) -> None:
    user.variables["HEADGATE_ARBITER"] = os.environ["HEADGATE_ARBITER"]
    pages = Pages(user, "--port", "0")
    page = Page(browser, pages.act)
    page.shows("#users", "ada:<b>vae</b>")
    page.shows("#users", "a job of ada")
    assert "secret" not in browser.page_source
    figures = pages.asks("/metrics").text
    assert 'headgate_user_gpus{user="ada"} 2.0' in figures
    assert 'headgate_user_waiting{user="ada"} 1.0' in figures
    assert pages.ends() == 0


def test_very_many_users_have_no_more_series_than_the_bound() -> None:
    board = Board()
    numbers: dict[str, Any] = {"cores": 1.0, "used_cores": None, "memory_bytes": 0, "gpus": []}
    users = [{"user": f"u{i}", "running": i, "waiting": 0, **numbers} for i in range(300)]
    board.add(machine={"users": users})
    shown = {
        labels: value
        for figure, samples in metrics.read(board)
        if figure.name == "user.running"
        for labels, value in samples
    }
    assert len(shown) == metrics.MOST_USERS
    assert shown["u299",] == 299
