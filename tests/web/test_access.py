"""Who may look and act: a real server, asked as pages of other sites would ask it."""

from __future__ import annotations

import socket
import stat
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from tests.hub.user import User
from tests.web.conftest import HTML, Pages


def test_nobody_sees_anything_without_a_token(pages: Pages) -> None:
    for path in ("/", "/live", "/past", "/metrics", "/runs/x", "/assets/web.js", "/no-such"):
        assert pages.asks(path, token=None).status == 403, path
    assert pages.asks("/?token=wrong", token=None).status == 403


def test_a_token_in_the_address_becomes_a_cookie_and_leaves_it(pages: Pages) -> None:
    for name in ("act", "look"):
        answer = pages.asks(f"/past?token={pages.tokens[name]}&x=1", token=None)
        assert (answer.status, answer.headers["location"]) == (303, "/past?x=1")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        entered = pages.asks("/past", token=None, headers={"Cookie": cookie.partition(";")[0]})
        assert entered.status == 200


def test_an_address_that_leads_to_another_host_does_not(pages: Pages) -> None:
    answer = pages.asks(f"//evil.example/?token={pages.tokens['act']}", token=None)
    assert not answer.headers["location"].startswith("//")


def test_who_may_only_look_cannot_act(pages: Pages, user: User) -> None:
    user.write("job.yaml", "jobs: [{name: a, run: 'echo began; sleep 600'}]")
    run = user.detaches("job.yaml")
    user.sees_state("a", "running")
    assert pages.asks(f"/runs/{run}/jobs/a", token="look").status == 200
    for act in ("stop", "kill", "checkpoint", "resize", "prove"):
        assert pages.does(f"/runs/{run}/{act}", {"job": "a"}, token="look").status == 403, act
    assert user.stands("a", run)["state"] == "running"  # type: ignore[index]
    assert "data-act" not in pages.asks(f"/runs/{run}/jobs/a", token="look").text
    assert pages.does(f"/runs/{run}/kill", {"job": "a"}).status == 200
    user.sees_state("a", "killed")


def test_a_page_of_another_site_cannot_act(pages: Pages) -> None:
    own = f"http://127.0.0.1:{pages.port}"
    for headers in (
        {},
        {"X-Headgate": "act"},
        {"Origin": own},
        {"Origin": "http://evil.example", "X-Headgate": "act"},
        {"Origin": "null", "X-Headgate": "act"},
        {"Origin": "http://127.0.0.1:1", "X-Headgate": "act"},
    ):
        answer = pages.asks("/runs/x/stop", method="POST", body={}, headers=headers)
        assert answer.status == 403, headers


def test_a_name_made_to_mean_this_machine_is_refused(pages: Pages) -> None:
    for host in ("evil.example", "evil.example:80", "", "localhost.evil.example"):
        assert pages.asks("/", headers={"Host": host}).status == 421, host


def test_no_other_file_is_read_as_a_log(pages: Pages, user: User) -> None:
    user.write("job.yaml", "jobs: [{name: a, run: 'echo began'}]")
    user.types("run", "job.yaml")
    [folder] = (user.home / "runs").iterdir()
    (user.folder / "secret.log").write_text("secret")
    (user.home / "secret.log").write_text("secret")
    log = f"/runs/{folder.name}/jobs/a/log"
    assert "began" in pages.asks(log, token="look").text
    for task in ("../../../../secret", str(user.folder / "secret"), "*", "../../*/a/worker-0"):
        answer = pages.asks(f"{log}?task={quote(task, safe='')}", token="look")
        assert (answer.status, "secret" in answer.text.replace(task, "")) == (404, False), task
    for job in ("..", "%2e%2e", "a%2f..%2fa", "*"):
        assert pages.asks(f"/runs/{folder.name}/jobs/{job}/log", token="look").status == 404, job


def test_names_of_this_machine_are_known(pages: Pages) -> None:
    for host in ("localhost", "127.0.0.1:9", "[::1]:9", socket.gethostname()):
        assert pages.asks("/", headers={"Host": host}).status == 200, host


def test_every_answer_forbids_framing_and_foreign_scripts(pages: Pages) -> None:
    for path, token in (("/", "act"), ("/no-such", "act"), ("/", None), ("/assets/web.js", "act")):
        headers = pages.asks(path, token=token).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert "script-src 'self'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_what_is_not_there_is_said(pages: Pages) -> None:
    answer = pages.asks("/runs/no-such-run")
    assert answer.status == 404
    assert "no run 'no-such-run'" in answer.text
    assert "<h1>" in pages.asks("/runs/no-such-run", headers={"Accept": HTML}).text
    assert pages.asks("/assets/../server.py").status == 404
    assert pages.does("/runs/x/stop", {}).status == 404


def test_the_token_is_the_users_alone_and_stays(pages: Pages, user: User, home: Path) -> None:
    kept = home / "web.token"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    other = Pages(user, "--port", "0")
    assert other.tokens == pages.tokens
    assert other.ends() == 0


def test_a_token_that_anybody_could_guess_is_not_taken(user: User, home: Path) -> None:
    home.mkdir(exist_ok=True)
    for text in ("", "short\n"):
        (home / "web.token").write_text(text)
        assert "holds no token" in user.types("web", code=4).message
        assert (home / "web.token").read_text() == text


def test_what_cannot_be_served_is_refused_in_one_line(user: User, tmp_path: Path) -> None:
    wrong = tmp_path / "cert.pem"
    wrong.write_text("no certificate")
    for words, part in (
        (("--certificate", str(wrong)), "expected PEM files"),
        (("--key", str(wrong)), "without --certificate"),
        (("--host", "203.0.113.9"), "give another --host"),
    ):
        assert part in user.types("web", *words, code=2).message
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert "give another --port" in user.types("web", "--port", port, code=2).message


def test_it_warns_where_others_could_read_the_token(user: User) -> None:
    served = Pages(user, "--port", "0", "--host", "0.0.0.0")
    assert parse_qs(urlsplit(served.act).query)["token"] == [served.tokens["act"]]
    assert urlsplit(served.act).hostname == socket.gethostname().lower()
    assert served.ends() == 0
    assert "without TLS" in served.errors()
