"""What objects of the client show in a notebook, in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.client.test_client import client
from tests.hub.user import SECONDS
from tests.reports.browsing import chromium, seen_as

from headgate.client.client import Client
from headgate.model.jobs import Job
from headgate.testing.wait import until

__all__ = ["client"]
LEARNS = "for i in $(seq 1 12); do echo epoch $i/40 loss 0.$((90 - i)); sleep 0.1; done"
DRAWN = "return window.headgate ? Object.keys(window.headgate.drawn) : ['?']"
INK = "return getComputedStyle(document.body).color"


def test_cells_of_a_notebook_are_drawn_side_by_side(client: Client, tmp_path: Path) -> None:
    run = client.run(Job(name="a", run=LEARNS))
    run.wait(SECONDS)
    shown: list[Any] = [client, run, run.predict(), run.explain(), client.compare(run.id, run.id)]
    assert all("\n" not in repr(cell) and len(repr(cell)) < 120 for cell in shown)
    cells = [cell._repr_html_() for cell in shown]
    assert run.id in cells[0]
    assert "<td>done</td>" in cells[1]
    assert max(map(len, cells)) < 200_000
    (tmp_path / "cells.html").write_text(f"<!doctype html><body>{''.join(cells)}")
    with chromium(tmp_path / "profile") as browser:
        browser.get((tmp_path / "cells.html").as_uri())
        frames = browser.find_elements("css selector", "iframe")
        inks = set()
        for scheme in ("dark", "light"):
            for frame, plots in zip(frames, ({"shares", "prediction"}, {"prediction"}, set())):
                with seen_as(browser, 900, scheme):
                    browser.switch_to.frame(frame)
                    until(lambda: browser.execute_script(DRAWN) != ["?"], SECONDS, scheme)
                    assert plots <= set(browser.execute_script(DRAWN)), scheme
                    inks.add(browser.execute_script(INK))
                    assert "a" in browser.find_element("css selector", "main").text
                    browser.switch_to.default_content()
        assert len(inks) == 2
        until(lambda: frames[1].size["height"] < 500, SECONDS, "a frame as high as its plot")
        errors = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
        assert errors == []


def test_where_nothing_ran_there_is_a_table_without_rows(client: Client) -> None:
    assert "0 runs" in client._repr_html_()
