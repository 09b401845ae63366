"""The pages without a mouse, without sight, and on a phone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from selenium.webdriver.common.keys import Keys
from tests.hub.user import SECONDS, User
from tests.reports.browsing import faults_by_axe, seen_as
from tests.web.conftest import Pages
from tests.web.watching import Page, starts_three

from headgate.testing.wait import until

SECTION = "#sections section"
FOCUSED = (
    "((place) => [place.tagName, place.innerText || place.id,"
    " getComputedStyle(place).outlineStyle])(document.activeElement)"
)
STOPS = "[...document.querySelectorAll('a, button, input, select, summary, [tabindex=\"0\"]')]"


@dataclass(frozen=True)
class Site:
    """Pages of a run that goes on and of one that has ended."""

    user: User
    pages: Pages
    live: str
    past: str

    def open(self, browser: Any, path: str, selector: str = "main") -> Page:
        page = Page(browser, f"http://127.0.0.1:{self.pages.port}{path}")
        page.sees(selector)
        return page

    def kinds(self) -> dict[str, str]:
        """A path of each kind of page, and what is there once it is whole."""
        return {
            "/": "#past tbody tr",
            f"/runs/{self.live}": SECTION,
            f"/runs/{self.live}/jobs/a": SECTION,
            f"/runs/{self.past}": SECTION,
            f"/compare?first={self.past}&second={self.live}": "table",
            "/runs/no-such-run": "h1",
        }


@pytest.fixture(scope="module")
def site(browser: Any, resident: User, lasting: Pages) -> Site:
    resident.write("job.yaml", "jobs: [{name: a, run: 'echo loss 1; sleep 1; false'}]")
    resident.types("run", "job.yaml", code=1)
    live = starts_three(resident)
    for name in "abc":
        resident.touch(f"{name}-1")
        resident.sees_state(name, "running")
    [past] = {folder.name for folder in (resident.home / "runs").iterdir()} - {live}
    Page(browser, lasting.act).sees("#jobs tbody tr")
    return Site(resident, lasting, live, past)


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 400)])
def test_axe_finds_nothing_serious_and_pages_fit(
    browser: Any, site: Site, scheme: str, width: int
) -> None:
    with seen_as(browser, width, scheme):
        for path, selector in site.kinds().items():
            page = site.open(browser, path, selector)
            assert faults_by_axe(browser) == [], path
            assert page.tells("document.documentElement.scrollWidth - innerWidth") <= 0, path
            assert page.tells("document.getAnimations().length") == 0, path


def test_the_name_of_a_job_stays_in_sight_on_a_phone(browser: Any, site: Site) -> None:
    with seen_as(browser, 400, "light"):
        page = site.open(browser, "/", "#jobs tbody tr")
        name = page.sees("#jobs tbody th")
        page.tells("document.querySelector('#jobs').parentElement.scrollTo(300, 0)")
        at = page.tells("arguments[0].getBoundingClientRect().left", name)
        assert 0 <= at < 50
        compared = next(path for path in site.kinds() if path.startswith("/compare"))
        page = site.open(browser, compared, "tbody th")
        heights = page.tells(
            "[...document.querySelectorAll('tbody th')].map((h) => h.offsetHeight)"
        )
        assert max(heights) < 130


@pytest.mark.parametrize("path", ["/", "/runs/{}/jobs/a"])
def test_tab_reaches_all_that_can_be_used(browser: Any, site: Site, path: str) -> None:
    page = site.open(browser, path.format(site.live), SECTION if "jobs" in path else "#past a")
    for place in ("#jobs tbody a", "#events tbody a") if path == "/" else ("#figures div",):
        page.sees(place)
    page.tells(f"{STOPS}.forEach((stop) => {{ stop.is_missed = stop.checkVisibility() }})")
    outlines, focused = [], ["", "", ""]
    while focused[0] != "BODY":
        page.presses(Keys.TAB)
        page.tells("document.activeElement.is_missed = false")
        focused = page.tells(FOCUSED)
        outlines.append(focused)
        assert len(outlines) < 300
    assert outlines[0][1] == "Skip to the page"
    assert [stop for stop in outlines[:-1] if stop[2] == "none"] == []
    missed = f"{STOPS}.filter((stop) => stop.is_missed && !stop.disabled)"
    assert page.tells(f"{missed}.map((stop) => stop.outerHTML)") == []


def test_a_job_is_killed_by_keys_alone(browser: Any, site: Site) -> None:
    page = site.open(browser, f"/runs/{site.live}/jobs/c", "[data-act=kill]")
    until(lambda: page.text("#figures"), SECONDS, "how it stands")
    page.tells("arguments[0].focus()", page.sees("[data-act=kill]"))
    page.presses(Keys.ENTER)
    for _ in range(5):  # the rest of the page cannot be reached
        page.presses(Keys.TAB)
        assert page.tells("document.activeElement.closest('main')") is None
    page.presses(Keys.ESCAPE)
    assert page.tells("document.activeElement.dataset.act") == "kill"
    assert site.user.stands("c", site.live)["state"] == "running"  # type: ignore[index]
    page.presses(Keys.ENTER, Keys.TAB, Keys.ENTER)
    page.shows("#state", "killed")


def test_a_number_is_given_by_keys_alone(browser: Any, site: Site) -> None:
    page = site.open(browser, f"/runs/{site.live}/jobs/a", "[data-act=set]")
    until(lambda: page.text("#figures"), SECONDS, "how it stands")
    page.tells("arguments[0].focus()", page.sees("[data-act=set]"))
    page.presses(Keys.ENTER, Keys.END, Keys.BACKSPACE, "3", Keys.ENTER)
    page.shows("#notice", "priority 3")
    assert page.tells("document.activeElement.dataset.act") == "set"


def test_the_focus_stays_while_rows_move(browser: Any, site: Site) -> None:
    page = site.open(browser, "/", "#jobs tbody tr")
    page.shows("#jobs", "epoch 1 of")
    heading = page.all("#jobs thead button")[4]
    page.tells("arguments[0].focus()", heading)
    page.presses(Keys.ENTER)
    assert page.tells("document.activeElement.closest('th').ariaSort") == "ascending"
    first = page.tells("document.querySelector('#jobs tbody tr.job').dataset.job")
    name = first.rpartition("/")[2]
    other = "ab".replace(name, "")
    page.tells("document.querySelector('#jobs tbody tr.job a').focus()")
    for epoch in (2, 3):
        site.user.touch(f"{other}-{epoch}")
    until(
        lambda: page.tells("document.querySelector('#jobs tbody tr.job').dataset.job") != first,
        SECONDS,
        "the other job is above",
    )
    assert page.tells("document.activeElement.innerText") == name


def test_what_was_chosen_stays_when_sections_are_made_anew(browser: Any, site: Site) -> None:
    page = site.open(browser, f"/runs/{site.live}", SECTION)
    page.tells("arguments[0].focus()", page.sees("#summary thead button"))
    page.presses(Keys.ENTER, Keys.ENTER)
    page.clicks(".legend button")
    page.tells("document.querySelector('#summary thead button').focus()")
    page.tells("document.querySelector('#summary').isOld = true")
    until(lambda: page.tells("!document.querySelector('#summary').isOld"), SECONDS, "newer ones")
    assert page.tells("document.activeElement.closest('th').ariaSort") == "descending"
    assert page.sees(".legend button").get_attribute("aria-pressed") == "false"
