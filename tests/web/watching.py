"""A page as its reader sees it, and three jobs to look at."""

from __future__ import annotations

from typing import Any

from selenium.common.exceptions import (
    ElementClickInterceptedException,
    StaleElementReferenceException,
)
from selenium.webdriver import ActionChains
from tests.hub.user import SECONDS, User

from headgate.testing.wait import until

LEARNS = """
    import pathlib, time
    for epoch in range(1, 1000):
        while not pathlib.Path(f"{NAME}-{epoch}").exists():
            time.sleep(0.02)
        print(f"epoch {epoch}/1000 loss {1 / epoch:.4f} <b id='evil'>x</b>", flush=True)
"""
HEARS_CLICKS = """
window.isHit = false;
arguments[0].addEventListener("click", () => { isHit = true; }, { capture: true });
"""


class Page:
    """A page as its reader sees it."""

    def __init__(self, browser: Any, address: str) -> None:
        self.browser = browser
        browser.get("about:blank")  # what the page before still asks for is not this one's
        browser.get_log("browser")
        browser.get(address)

    def all(self, selector: str) -> list[Any]:
        return list(self.browser.find_elements("css selector", selector))

    def text(self, selector: str) -> str:
        """The text of the first element that fits; empty where there is none."""
        return str(self.tells("document.querySelector(arguments[0])?.innerText ?? ''", selector))

    def tells(self, expression: str, *arguments: object) -> Any:
        """The value of an expression of its script."""
        return self.browser.execute_script(f"return {expression}", *arguments)

    def shows(self, selector: str, part: str) -> None:
        until(
            lambda: part in self.text(selector),
            SECONDS,
            f"{part!r} in {selector}, which has {self.text(selector)!r:.300}",
        )

    def sees(self, selector: str) -> Any:
        """The first element that fits, once it is there."""
        until(lambda: self.all(selector), SECONDS, selector)
        return self.all(selector)[0]

    def clicks(self, selector: str) -> None:
        """Click on it; again, as a reader would, where it moved before the pointer was there."""

        def is_hit() -> bool:
            try:
                place = self.sees(selector)
                self.browser.execute_script(HEARS_CLICKS, place)
                place.click()
            except (ElementClickInterceptedException, StaleElementReferenceException):
                return False
            return bool(self.tells("window.isHit ?? true"))  # of another page by now

        until(is_hit, SECONDS, f"a click on {selector}")

    def holds(self, selector: str) -> None:
        """Press on it, and do not let go; again where it moved before the pointer was there."""

        def is_held() -> bool:
            ActionChains(self.browser).click_and_hold(self.sees(selector)).perform()
            if self.tells("document.querySelector(arguments[0]).matches(':active')", selector):
                return True
            ActionChains(self.browser).move_to_element(self.sees("h1")).release().perform()
            return False

        until(is_held, SECONDS, f"a press on {selector}")

    def presses(self, *keys: str) -> None:
        """Press keys, one after another, wherever the focus is."""
        for key in keys:
            ActionChains(self.browser).send_keys(key).perform()

    def is_quiet(self) -> None:
        """Whether its script met no error."""
        lines = [(line["level"], line["message"]) for line in self.browser.get_log("browser")]
        assert [message for level, message in lines if level == "SEVERE"] == [], lines


def shows_one_elsewhere(page: Page, user: User, place: str, *meters: str) -> None:
    """The first page and the job's have job `a`, which runs elsewhere and has done an epoch."""
    page.shows("#live", place)
    for meter in meters:
        page.shows("#nodes", meter)
    page.sees("[data-act=kill][aria-disabled=false]")
    page.clicks("#jobs tbody a")
    page.shows("#log", "epoch 1/1000")
    user.touch("a-2")
    page.shows("#log", "epoch 2/1000")
    page.clicks("[data-act=kill][aria-disabled=false]")
    page.clicks("dialog button.main")
    page.shows("#notice", "a is killed")
    page.is_quiet()


def starts_three(user: User) -> str:
    """Three jobs, each of which does an epoch once a file is there."""
    for name in "abc":
        user.write(f"{name}.py", LEARNS.replace("{NAME}", name))
    jobs = "".join(
        f"  - {{name: {name}, script: {name}.py, args: [--lr, '{lr}']}}\n"
        for name, lr in (("a", 0.3), ("b", 0.2), ("c", 0.1))
    )
    user.write("jobs.yaml", f"jobs:\n{jobs}")
    return user.detaches("jobs.yaml")
