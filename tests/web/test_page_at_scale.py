"""The page with very many jobs, and one that is left open: what is in it stays bounded."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys
from tests.hub.user import SECONDS, User
from tests.reports.browsing import faults_by_axe
from tests.web.conftest import Pages
from tests.web.test_board import TASK, event, job, snapshot
from tests.web.watching import Page

from headgate.testing.wait import until
from headgate.web.board import MOST_EVENTS, Board

FED = """
window.sources = {};
window.EventSource = class extends EventTarget {
  constructor(address) { super(); sources[new URL(address, location).pathname] = this; }
  close() {}
};
window.feed = (path, kind, data) => sources[path].dispatchEvent(new MessageEvent(kind, { data }));
"""
"""The page is sent what a test feeds it."""
JOBS = 500
SHOWN = "#jobs tbody tr.job"
LAST = f"{SHOWN}[aria-rowindex='{JOBS + 1}']"
FOCUSED = "document.activeElement.innerText"
IS_FOLLOWED = "document.activeElement.closest('tr').nextElementSibling.matches('tr.job')"


@pytest.fixture
def pages(lasting: Pages) -> Pages:
    return lasting


@pytest.fixture
def fed(browser: Any) -> Iterator[Any]:
    command = "Page.addScriptToEvaluateOnNewDocument"
    added = browser.execute_cdp_cmd(command, {"source": FED})
    yield browser
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def feed(page: Page, path: str, kind: str, data: str) -> None:
    """Send the page what it listens for there: looked up and sent at once, for a page may still
    be taking the place of another.
    """
    script = "return window.sources?.[arguments[0]] ? (feed(...arguments), true) : false"
    sends = functools.partial(page.browser.execute_script, script, path, kind, data)
    until(sends, SECONDS, "the page listens")


def shows_board(page: Page, board: Board, run: str | None = None) -> None:
    """Send the page all of a board, or what is on it of one run, as the server does."""
    message = board.subscribe(run).messages.get_nowait()
    assert message is not None
    kind, data = (line.partition(": ")[2] for line in message.decode().split("\n", 1))
    feed(page, "/live", kind, data)


def test_of_500_jobs_only_rows_in_view_are_there(fed: Any, pages: Pages) -> None:
    page, board = Page(fed, pages.act), Board()
    jobs = [job(f"job{number:03}", loss=number / 100) for number in range(JOBS)]
    board.take(snapshot(*jobs))
    shows_board(page, board)
    page.shows("#count", "500 jobs")
    assert 10 < len(page.all(SHOWN)) < 100
    fed.execute_script("document.querySelector('#jobs').closest('.scroll').scrollTop = 1e6")
    page.shows(LAST, "job499")
    assert len(page.all(SHOWN)) < 100
    page.all("#filter")[0].send_keys("loss>=4.9")
    page.shows("#count", "10 of 500 jobs")
    heading = page.all("#jobs thead th")[4]
    for way, first in (("ascending", "job490"), ("descending", "job499")):
        heading.find_element("css selector", "button").click()
        assert heading.get_attribute("aria-sort") == way
        page.shows(SHOWN, first)
    page.all("#filter")[0].clear()
    page.is_quiet()


def test_every_row_is_reached_by_tab_and_by_the_search_of_a_browser(fed: Any, pages: Pages) -> None:
    page, board = Page(fed, pages.act), Board()
    board.take(snapshot(*(job(f"job{number:03}") for number in range(JOBS))))
    shows_board(page, board)
    page.sees(SHOWN)
    assert faults_by_axe(fed) == []
    fed.execute_script("document.querySelector('#jobs tbody a').focus()")
    for number in range(1, 70):
        until(lambda: page.tells(IS_FOLLOWED), SECONDS, "a row after the focused one")
        page.presses(Keys.TAB)
        assert page.tells(FOCUSED) == f"job{number:03}"
    fed.execute_script("document.querySelector('#jobs').closest('.scroll').scrollTop = 1e6")
    page.shows(LAST, "job499")
    assert page.tells(FOCUSED) == "job069"
    page.presses(Keys.TAB)
    page.presses(Keys.TAB)
    page.clicks("#whole")
    until(lambda: len(page.all(SHOWN)) == JOBS, SECONDS, "all rows")
    page.is_quiet()


def test_a_start_is_shown_once_it_is_known_when_the_run_began(fed: Any, pages: Pages) -> None:
    page, board = Page(fed, pages.act), Board()
    board.take(snapshot(job(state="waiting", started=None)))
    board.add_to_job("r", "a", expected=60.0)
    shows_board(page, board)
    page.shows(SHOWN, "waiting")
    assert "starts" not in page.text(SHOWN)
    began = {"facts": {"began": 1e9}, "jobs": {}}
    feed(page, "/live", "change", json.dumps({"runs": {"r": began}, "events": []}))
    page.shows(SHOWN, "starts Sun")
    page.is_quiet()


def test_the_newest_events_are_shown_and_no_more(fed: Any, pages: Pages) -> None:
    page, board = Page(fed, pages.act), Board()
    board.take(snapshot(job()))
    shows_board(page, board)
    for start in range(0, 3 * MOST_EVENTS, 100):
        events = [event(number) for number in range(start, start + 100)]
        feed(page, "/live", "change", json.dumps({"runs": {}, "events": events}))
    page.shows("#events tbody tr", str(3 * MOST_EVENTS - 1))
    assert len(page.all("#events tbody tr")) == MOST_EVENTS
    page.is_quiet()


def test_tasks_on_gpus_have_a_column_of_these(fed: Any, pages: Pages, resident: User) -> None:
    resident.write("long.py", "import time; time.sleep(600)")
    run, board = resident.detaches("long.py"), Board()
    page = Page(fed, pages.act)
    page = Page(fed, f"http://127.0.0.1:{pages.port}/runs/{run}/jobs/long")
    tasks = [{**TASK, "task": f"worker-{number}"} for number in range(2)]
    board.take(snapshot(job("long", tasks=tasks), run=run))
    shows_board(page, board, run)
    page.shows("#tasks", "worker-1")
    assert "gpu" not in page.text("#tasks thead")
    on_gpus = [{**task, "gpus": [number], "gpu_busy": 0.5} for number, task in enumerate(tasks)]
    board.take(snapshot(job("long", tasks=on_gpus), run=run))
    shows_board(page, board, run)
    page.shows("#tasks thead", "gpu")
    assert "1 50 %" in page.text("#tasks tbody tr:last-child")
    resident.types("stop", "--kill")


def test_a_log_that_goes_on_keeps_its_end(fed: Any, pages: Pages, resident: User) -> None:
    resident.write("a.py", "print('begun')")
    address = f"/runs/{resident.detaches('a.py')}/jobs/a"
    Page(fed, pages.act)
    page, path = Page(fed, f"http://127.0.0.1:{pages.port}{address}"), f"{address}/log"
    for number in range(50):
        lines = f"half of a line\n{'x' * 20_000}\nhalf {number} of"
        feed(page, path, "text", json.dumps(lines if number == 0 else f" another\n{lines}"))
    page.shows("#log", "half 48 of another\n")
    length = fed.execute_script("return document.querySelector('#log').textContent.length")
    assert 300_000 < length < 500_000
    assert len(page.all("#log div")) > 10  # so that what is above is not laid out anew
    page.is_quiet()
