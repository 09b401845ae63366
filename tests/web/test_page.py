"""The pages in a real browser, while real jobs run."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys
from tests.harness.ports import free_port
from tests.hub.team import Team
from tests.hub.test_proving import is_held, job, starts
from tests.hub.user import SECONDS, User
from tests.reports.browsing import chromium
from tests.web.conftest import Pages, ends_all
from tests.web.watching import LEARNS, Page, starts_three

from headgate.testing.wait import until

NONE_IS_HELD = """
    jobs:
      - {name: a, script: a.py}
      - {name: b, script: a.py, pausable: false}
"""

TIMERS = """
    const set = window.setTimeout;
    window.delays = [];
    window.setTimeout = (act, delay, ...more) => {
      window.delays.push(delay);
      return set(act, delay, ...more);
    };
"""
HIDES_SECONDS = 12
"""When an outcome is hidden, and 60 ms later for each letter; not that of a proof."""


@pytest.fixture
def user(resident: User, tmp_path: Path) -> Iterator[User]:
    """One whose hub served the tests before too, in a folder of their own."""
    resident.folder = tmp_path
    yield resident
    ends_all(resident)


@pytest.fixture
def pages(lasting: Pages) -> Pages:
    return lasting


def shown_jobs(page: Page) -> list[str]:
    rows = page.all("#jobs tbody tr:not([hidden])")
    return [place.get_attribute("data-job").rpartition("/")[2] for place in rows]


def row(page: Page, run: str, job: str) -> str:
    return page.text(f"tr[data-job='{run}/{job}']")


def test_three_jobs_are_followed_as_they_learn(browser: Any, pages: Pages, user: User) -> None:
    page = Page(browser, pages.act)
    page.shows("#nothing:not([hidden])", "Nothing runs")
    page.shows("#nodes", "cores")
    run = starts_three(user)
    for name in "abc":
        user.touch(f"{name}-1")
    until(lambda: all("epoch 1 of" in row(page, run, name) for name in "abc"), SECONDS, "epochs")
    user.touch("b-2")
    until(lambda: "epoch 2 of" in row(page, run, "b"), SECONDS, "the second epoch of b")
    assert "epoch 1 of" in row(page, run, "a")
    assert page.text("#count") == "3 jobs"
    page.sees("#chosen option[value=lr]").click()
    for name, rate in (("a", "0.3"), ("b", "0.2"), ("c", "0.1")):
        page.shows(f"tr[data-job='{run}/{name}'] .of-choice", rate)
    field = page.all("#filter")[0]
    for words, names in (
        ("loss<0.8", "b"),
        ("running", "abc"),
        ("running c/", ""),
        ("lr<0.25", "bc"),
    ):
        field.clear()
        field.send_keys(words)
        assert "".join(sorted(shown_jobs(page))) == names, words
    field.clear()
    field.send_keys(" ")
    page.clicks("#jobs th.of-choice button")
    until(lambda: shown_jobs(page) == ["c", "b", "a"], SECONDS, "the order of lr")
    page.shows("#nodes", "cores")
    page.shows("#events", "started")
    page.shows("#live", "this machine · 3 running")
    page.sees("#sections .stack canvas")
    page.shows("#decisions", "cores when all are busy")
    page.clicks("#decisions button")
    page.shows("#decisions .why", "because")
    page.is_quiet()
    user.types("stop", "--kill", "--run", run)
    page.shows("#past", run)
    page.shows("#nothing:not([hidden])", "Nothing runs")


SWEPT = """
    jobs:
      - {name: s, run: "echo loss $lr", sweep: {as: environment, grid: {lr: [2.5, 1.5]}}}
"""


def test_jobs_of_a_sweep_are_compared_and_lead_to_their_pages(
    browser: Any, pages: Pages, user: User
) -> None:
    user.write("sweep.yaml", SWEPT)
    run = user.json("run", "sweep.yaml")["id"]
    pages.lets_go()
    browser.get(pages.act)
    page = Page(browser, f"http://127.0.0.1:{pages.port}/runs/{run}")
    page.shows("#results tbody tr", "s-lr-1.5")
    assert len(page.all(".parallel polyline")) == 2
    page.clicks("#results tbody a")
    page.shows("#log", "loss 1.5")
    page.is_quiet()


def test_what_a_job_prints_stays_text(browser: Any, pages: Pages, user: User) -> None:
    run = starts_three(user)
    user.touch("a-1")
    page = Page(browser, pages.act)
    page.clicks(f"tr[data-job='{run}/a'] a")
    page.shows("#log", "<b id='evil'>")
    user.touch("a-2")
    page.shows("#log", "epoch 2/1000")
    assert page.all("#evil") == []
    page.shows("#sections", "Where the time went")
    page.clicks("#ask-why")
    page.shows("#why", "handed in")
    page.is_quiet()


HEARS = """(() => {
    window.written = window.heard = 0;
    const all = { childList: true, characterData: true, subtree: true };
    new MutationObserver(() => written++).observe(document.querySelector("#jobs"), all);
    new EventSource("/live").addEventListener("change", () => heard++);
})()"""


def test_nothing_moves_under_a_pressed_pointer(browser: Any, pages: Pages, user: User) -> None:
    run = starts_three(user)
    for name in "ab":
        user.touch(f"{name}-1")
    page = Page(browser, pages.act)
    page.shows(f"tr[data-job='{run}/b']", "epoch 1 of")
    page.clicks("#filter")  # which a press elsewhere takes the focus from
    page.holds(f"tr[data-job='{run}/a'] a")
    page.tells(HEARS)
    user.touch("b-2")
    until(lambda: page.tells("heard") > 2, SECONDS, "changes have come")
    assert page.tells("written") == 0
    ActionChains(browser).release().perform()
    page.shows("#log", "epoch 1/1000")


def answers(page: Page, act: str, button: str = "button.main", **values: str) -> None:
    """Press a button, fill in what it asks, and answer."""
    page.clicks(f"[data-act={act}][aria-disabled=false]")
    for place, value in values.items():
        field = page.sees(f"dialog {place}")
        field.clear()
        field.send_keys(value)
    page.clicks(f"dialog {button}")


def test_buttons_of_plain_scripts_do_what_they_say(browser: Any, pages: Pages, user: User) -> None:
    run = starts_three(user)
    for name in "abc":
        user.sees_state(name, "running")
    page = Page(browser, f"{pages.act}")
    page.clicks(f"tr[data-job='{run}/a'] a")
    page.sees("[data-act=kill][aria-disabled=false]")  # it is known how the job stands
    for act, reason in (("checkpoint", "uses none of"), ("resize", "as a single task")):
        page.sees(f"[data-act={act}][aria-disabled=true]")
        page.clicks(f"[data-act={act}]")
        page.shows("#notice", reason)
    answers(page, "set", **{"label:nth-child(1) input": "3", "label:nth-child(2) input": "0.5"})
    page.shows("#notice", "a has from now on cores 0.5, priority 3")
    page.shows("#figures", "most cores")
    page.clicks("[data-act=set]")
    assert page.sees("dialog input").get_attribute("value") == "3"
    page.clicks("dialog button[value=no]")
    answers(page, "set", **{"label:nth-child(1) input": "0"})
    page.shows("#notice", "Refused: ")
    answers(page, "set", **{"label:nth-child(4) input": "2h", "label:nth-child(5) input": "auto"})
    page.shows("#notice", "at_once auto, timeout 2 h")
    answers(page, "pause")
    page.shows("#notice", "paused, with their memory: a")
    user.sees_state("a", "paused", run=run)
    answers(page, "unpause")
    page.shows("#notice", "unpaused: a")
    user.sees_state("a", "running", run=run)
    answers(page, "kill", "button[value=no]")
    assert user.stands("a", run)["state"] == "running"  # type: ignore[index]
    answers(page, "kill")
    page.shows("#notice", "a is killed")
    page.shows("#state", "killed")
    Page(browser, f"http://127.0.0.1:{pages.port}/runs/{run}")
    answers(page, "stop")
    for name in "bc":
        user.sees_state(name, "stopped")


def test_buttons_of_a_job_with_workers_do_what_they_say(
    browser: Any, pages: Pages, user: User
) -> None:
    team = Team(user)
    team.starts("--strategy", "ps", "--workers", "1", wait_for=("server-0", "worker-0"))
    page = Page(browser, pages.act)
    page.clicks(f"tr[data-job='{team.run}/team'] a")
    page.sees("[data-act=checkpoint][aria-disabled=false]")
    answers(page, "checkpoint")
    page.shows("#notice", "asked to save: team")
    page.sees("[data-act=prove][title^='No other job']")
    answers(page, "resize", input="2")
    page.shows("#notice", "team is being resized to 2 workers")
    page.shows("#tasks", "worker-1")
    page.is_quiet()


def test_a_proof_asks_for_a_neighbour_and_a_refusal_is_shown(
    browser: Any, pages: Pages, user: User
) -> None:
    user.write("a.py", LEARNS.replace("{NAME}", "a"))
    run = user.detaches(user.write("jobs.yaml", NONE_IS_HELD).name)
    browser.get(pages.act)
    page = Page(browser, f"http://127.0.0.1:{pages.port}/runs/{run}/jobs/a")
    page.sees("[data-act=prove][aria-disabled=false]")
    page.clicks("[data-act=prove]")
    assert [choice.text for choice in page.all("dialog option")] == ["each in turn", "b"]
    page.clicks("dialog button.main")
    page.shows("#notice", "Refused: run")


def test_what_a_proof_comes_to_is_shown_though_its_run_ends_meanwhile(
    browser: Any, pages: Pages, user: User
) -> None:
    run = starts(user, job("a", "rests"), job("b", "rests"))
    browser.get(pages.act)
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": TIMERS})
    page = Page(browser, f"http://127.0.0.1:{pages.port}/runs/{run}/jobs/a")
    answers(page, "prove", **{"input[type=number]": "25"})
    page.shows("#notice", "It is being proved")
    until(lambda: is_held(user, "b"), SECONDS, "b is held")
    user.touch("enough")
    page.shows("#notice", "nothing can be said yet of b and a: the proof ended after")
    page.shows("#state", "done")
    outcome = page.text("#notice")
    assert outcome.startswith("nothing can be said yet")
    assert HIDES_SECONDS * 1000 + 60 * len(outcome) not in page.tells("window.delays")
    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)
    page.is_quiet()


def test_a_link_to_look_says_why_its_buttons_do_nothing(
    browser: Any, pages: Pages, user: User
) -> None:
    run = starts_three(user)
    browser.get(pages.look)
    page = Page(browser, f"http://127.0.0.1:{pages.port}/runs/{run}/jobs/a")
    until(lambda: page.text("#figures"), SECONDS, "how it stands")  # above the buttons
    for act in ("checkpoint", "resize", "set", "prove", "pause", "unpause", "stop", "kill"):
        page.clicks(f"[data-act={act}][title='This link is for looking only.']")
        page.shows("#notice", "for looking only")
    assert not page.all("dialog[open]")


def test_two_browsers_see_what_one_does_and_a_hub_that_dies(
    browser: Any, pages: Pages, user: User, tmp_path: Path
) -> None:
    with chromium(tmp_path / "profile") as other:
        acting, looking = Page(browser, pages.act), Page(other, pages.look)
        first = starts_three(user)
        for page in (acting, looking):
            until(lambda page=page: row(page, first, "a"), SECONDS, "a row")  # type: ignore[misc]
        acting.clicks(f"tr[data-job='{first}/a'] a")
        answers(acting, "kill")
        acting.shows("#state", "killed")
        looking.shows(f"tr[data-job='{first}/a'] .state", "killed")
        acting = Page(browser, pages.act)
        [hub] = user.traces.hubs()
        os.kill(hub, signal.SIGKILL)
        for page in (acting, looking):
            page.shows(f"#past tr:has([value='{first}'])", "interrupted")
            until(lambda page=page: not row(page, first, "b"), SECONDS, "no row")  # type: ignore[misc]
        second = starts_three(user)
        for page in (acting, looking):
            page.shows(f"tr[data-job='{second}/b'] .state", "running")
            page.is_quiet()


def test_a_server_that_ends_and_comes_back_is_found_again(browser: Any, user: User) -> None:
    run = starts_three(user)
    served = Pages(user, "--port", str(free_port()))
    page = Page(browser, served.act)
    until(lambda: row(page, run, "a"), SECONDS, "a row")
    assert served.ends() == 0
    page.shows("#connection", "not connected")
    again = Pages(user, "--port", str(served.port))
    page.shows("#connection", "live")
    user.touch("a-1")
    until(lambda: "epoch 1 of" in row(page, run, "a"), SECONDS, "an epoch")
    assert again.ends() == 0


SELF_SIGNED = (
    "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "
    "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out cert.pem"
)


def test_pages_are_live_over_tls(browser: Any, user: User) -> None:
    subprocess.run(SELF_SIGNED.split(), cwd=user.folder, check=True, capture_output=True)
    certificate = user.write("both.pem", "".join(map(user.sees, ("key.pem", "cert.pem"))))
    served = Pages(user, "--port", "0", certificate=certificate)
    answer = served.asks(f"/?token={served.tokens['act']}", token=None)
    assert "secure" in answer.headers["set-cookie"].lower()
    browser.execute_cdp_cmd("Security.setIgnoreCertificateErrors", {"ignore": True})
    page = Page(browser, served.act)
    page.shows("#connection", "live")
    assert page.tells("location.protocol") == "https:"
    page.is_quiet()
    browser.execute_cdp_cmd("Security.setIgnoreCertificateErrors", {"ignore": False})
    assert served.ends() == 0


def test_two_runs_are_compared(browser: Any, pages: Pages, user: User) -> None:
    for number in (1, 2):
        user.write("job.yaml", f"jobs: [{{name: a, run: 'echo loss {number}'}}]")
        user.types("run", "job.yaml")
    pages.lets_go()
    page = Page(browser, pages.act)
    until(lambda: len(page.all("#past input")) >= 2, SECONDS, "two runs")
    for box in page.all("#past input")[:2]:
        page.tells("arguments[0].focus()", box)
        page.presses(Keys.SPACE)  # no click: what is above the box may be growing
    page.clicks("#compare")
    page.shows("main", "Two runs compared")
    page.shows("main", "elapsed")


ATTACK = """
    const done = arguments[arguments.length - 1], pages = arguments[0], answers = {};
    const tries = {
        read: () => fetch(pages + "/past", { credentials: "include" }).then((a) => a.text()),
        act: () => fetch(pages + "/runs/x/stop", {
            method: "POST", credentials: "include", headers: { "X-Headgate": "act" }, body: "{}",
        }).then((a) => a.text()),
        follow: () => new Promise((seen, failed) => {
            const source = new EventSource(pages + "/live", { withCredentials: true });
            source.addEventListener("all", seen);
            source.addEventListener("error", () => { source.close(); failed(); });
        }),
    };
    Promise.all(Object.entries(tries).map(([name, act]) => act().then(
        () => { answers[name] = "got"; }, () => { answers[name] = "refused"; },
    ))).then(() => done(answers));
"""


@pytest.fixture
def other_site(tmp_path: Path) -> Iterator[int]:
    """The port of a site of somebody else, whose page has a link."""

    class Answers(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(tmp_path))

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever).start()
        yield server.server_port
        server.shutdown()


def test_a_link_in_a_mail_opens_the_page_and_leaves_no_token(
    browser: Any, pages: Pages, other_site: int, tmp_path: Path
) -> None:
    (tmp_path / "mail.html").write_text(f"<a id=link href='{pages.look}'>look</a>")
    page = Page(browser, f"http://localhost:{other_site}/mail.html")
    page.clicks("#link")
    page.shows("#connection", "live")
    known = "return navigation.entries().map((entry) => entry.url).concat(document.referrer).join()"
    assert pages.tokens["look"] not in browser.execute_script(known)


def test_pages_of_other_sites_see_and_do_nothing(
    browser: Any, pages: Pages, other_site: int, tmp_path: Path
) -> None:
    own = f"http://127.0.0.1:{pages.port}"
    (tmp_path / "evil.html").write_text(f"<iframe src='{own}/'></iframe>")
    Page(browser, pages.act).shows("#connection", "live")
    for host in ("127.0.0.1", "localhost"):
        browser.get(f"http://{host}:{other_site}/evil.html")
        answers = browser.execute_async_script(ATTACK, own)
        assert set(answers.values()) == {"refused"}, (host, answers)
        browser.switch_to.frame(0)
        assert browser.find_elements("css selector", "#main") == [], host


def test_a_browser_is_opened_without_the_token_in_its_command(
    browser: Any, user: User, tmp_path: Path
) -> None:
    opens = user.write("opens", '#!/bin/sh\nprintf %s "$1" > "$0.part"; mv "$0.part" "$0.typed"\n')
    opens.chmod(0o755)
    user.variables["BROWSER"] = f"{opens} %s"
    served = Pages(user, "--port", "0", "--open")
    address = user.sees("opens.typed")
    assert served.tokens["act"] not in address
    entrance = Path(address.removeprefix("file://"))
    assert stat.S_IMODE(entrance.stat().st_mode) == 0o600
    page = Page(browser, address)
    page.shows("#connection", "live")
    assert served.tokens["act"] not in browser.current_url
    assert served.ends() == 0
