"""Who may look and act: a real server, asked as pages of other sites would ask it."""

from __future__ import annotations

import json
import socket
import stat
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from starlette.testclient import TestClient
from tests.hub.user import User
from tests.web.conftest import HTML, Pages

from headgate.web.access import Tokens
from headgate.web.server import PageServer

TOKENS = Tokens("s" * 43)
HOSTILE = """
    print("<evil>", "loss 0.5")
    raise ValueError("<evil>")
"""


@pytest.fixture
def asked(home: Path) -> TestClient:
    """The application, asked as a browser on this machine asks it, with the token that acts."""
    home.mkdir(exist_ok=True)
    app = PageServer().app(TOKENS, (), 7411, False)
    bearer = {"Authorization": f"Bearer {TOKENS.act}"}
    return TestClient(app, "http://127.0.0.1:7411", headers=bearer, follow_redirects=False)


def test_nobody_sees_anything_without_a_token(lasting: Pages) -> None:
    for path in ("/", "/live", "/past", "/metrics", "/runs/x", "/assets/web.js", "/no-such"):
        assert lasting.asks(path, token=None).status == 403, path
    assert lasting.asks("/?token=wrong", token=None).status == 403


def test_a_token_in_the_address_becomes_a_cookie_and_leaves_it(lasting: Pages) -> None:
    for name in ("act", "look"):
        answer = lasting.asks(f"/past?token={lasting.tokens[name]}&x=1", token=None)
        assert (answer.status, answer.headers["refresh"]) == (200, "0; url=/past?x=1")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        entered = lasting.asks("/past", token=None, headers={"Cookie": cookie.partition(";")[0]})
        assert entered.status == 200


def test_an_address_that_leads_to_another_host_does_not(asked: TestClient) -> None:
    for path in ("//evil.example/", "/\\evil.example/", "/%09/evil.example", "/%5c%5cevil.example"):
        answer = asked.get(f"http://127.0.0.1:7411{path}?token={TOKENS.act}")
        to = answer.headers["refresh"].removeprefix("0; url=")
        assert urlsplit(f"http://127.0.0.1:7411{to}").netloc == "127.0.0.1:7411", path
        assert not to.startswith(("//", "/\\", "/\t")), path


def test_no_header_is_put_in_by_an_address(asked: TestClient) -> None:
    broken = "%0d%0aset-cookie:%20a=b%0d%0a"
    for path in (f"/{broken}?token={TOKENS.act}", f"/?x={broken}&token={TOKENS.act}"):
        answer = asked.get(path)
        assert list(answer.cookies) == ["headgate-7411"], path
        assert "\n" not in answer.headers["refresh"], path
    assert asked.get(f"/runs/{broken}").cookies == {}


def test_cookies_of_other_programs_do_not_hide_this_one(asked: TestClient) -> None:
    asked.headers.pop("authorization")
    for others in ("", 'a={"x": [1, "y"]}; ', "b@c=1; d; ", "a=b=c; é=\xff; "):
        cookie = f"{others}headgate-7411={TOKENS.look}; headgate-1=wrong".encode("latin-1")
        assert asked.get("/past", headers={b"cookie": cookie}).status_code == 200, others
    assert asked.get("/past", headers={"cookie": f"headgate-1={TOKENS.act}"}).status_code == 403


def test_names_of_any_length_and_letters_are_only_names(asked: TestClient) -> None:
    for name in ("x" * 50_000, "%2e%2e", "%2e%2e%2fweb.token", "%00", "%ff", "*", "<evil>", "%0a"):
        for path in (f"/runs/{name}", f"/runs/{name}/jobs/a/log", f"/runs/a/jobs/{name}/sections"):
            answer = asked.get(path, headers={"Accept": HTML})
            assert answer.status_code in (404, 405), path[:80]
            assert "<evil" not in answer.text


def test_every_way_to_ask_needs_the_pages_own_origin(asked: TestClient) -> None:
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"):
        assert asked.request(method, "/runs/x/stop").status_code == 403, method


def test_silent_and_slow_connections_stop_nobody(lasting: Pages) -> None:
    with ExitStack() as held:
        for number in range(200):
            slow = held.enter_context(socket.create_connection(("127.0.0.1", lasting.port)))
            if number % 2:
                slow.sendall(b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthoriz")
        assert lasting.asks("/past").status == 200


def test_what_jobs_are_called_print_and_report_stays_text(pages: Pages, user: User) -> None:
    user.write("a.py", HOSTILE)
    for secret in ("hunter2", "hunter3"):
        user.write(
            "job.yaml",
            f"""
            jobs:
              - name: a
                script: a.py
                args: ["--title=<evil>", '"><evil x="']
                env: {{WANDB_API_KEY: {secret}, TITLE: "<evil>"}}
            """,
        )
        user.types("run", "job.yaml", code=1)
    first, second = (folder.name for folder in sorted((user.home / "runs").iterdir()))
    seen = ""
    for path in (
        *("/", "/past", f"/compare?first={first}&second={second}", "/metrics"),
        *(f"/runs/{second}{part}" for part in ("", "/sections", "/jobs/a", "/jobs/a/sections")),
        f"/runs/{second}/jobs/a/why",
    ):
        answer = pages.asks(path, token="look")
        assert answer.status == 200, path
        assert pages.tokens["act"] not in answer.text, path
        text = answer.text
        if "json" in answer.headers["content-type"]:
            text = str(json.loads(text).get("html", ""))
        assert "<evil" not in text, path
        seen += answer.text
    assert "&lt;evil" in seen
    assert "hunter" not in seen


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


def test_a_page_of_another_site_cannot_act(lasting: Pages) -> None:
    own = f"http://127.0.0.1:{lasting.port}"
    for headers in (
        {},
        {"X-Headgate": "act"},
        {"Origin": own},
        {"Origin": "http://evil.example", "X-Headgate": "act"},
        {"Origin": "null", "X-Headgate": "act"},
        {"Origin": "http://127.0.0.1:1", "X-Headgate": "act"},
    ):
        answer = lasting.asks("/runs/x/stop", method="POST", body={}, headers=headers)
        assert answer.status == 403, headers


def test_a_name_made_to_mean_this_machine_is_refused(lasting: Pages) -> None:
    for host in ("evil.example", "evil.example:80", "", "localhost.evil.example"):
        assert lasting.asks("/", headers={"Host": host}).status == 421, host


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


def test_names_of_this_machine_are_known(lasting: Pages) -> None:
    for host in ("localhost", "127.0.0.1:9", "[::1]:9", socket.gethostname()):
        assert lasting.asks("/", headers={"Host": host}).status == 200, host


def test_every_answer_forbids_framing_and_foreign_scripts(lasting: Pages) -> None:
    for path, token in (("/", "act"), ("/no-such", "act"), ("/", None), ("/assets/web.js", "act")):
        headers = lasting.asks(path, token=token).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert "script-src 'self'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_what_is_not_there_is_said(lasting: Pages) -> None:
    answer = lasting.asks("/runs/no-such-run")
    assert answer.status == 404
    assert "no run 'no-such-run'" in answer.text
    assert "<h1>" in lasting.asks("/runs/no-such-run", headers={"Accept": HTML}).text
    assert lasting.asks("/assets/../server.py").status == 404
    assert lasting.does("/runs/x/stop", {}).status == 404


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
