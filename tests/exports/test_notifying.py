"""Messages about runs and jobs, by real commands and to a real server."""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.hub.user import SECONDS, User

from headgate.exports.addresses import check
from headgate.exports.delivering import SIGNATURE, DeliveryError, deliver
from headgate.exports.notifying import Verdicts
from headgate.model.errors import UsageError
from headgate.model.recipients import Notice, Occasion, Recipient
from headgate.recorded import runs
from headgate.recorded.reader import RunReader
from headgate.testing import wait

SECRET = "not in the store"
FAILED = Notice(occasion=Occasion.FAILURE, run="r", host="here", job="a", state="failed")


class Server(ThreadingHTTPServer):
    """Keeps what is posted, and answers with these codes, then with 200."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.codes: list[int] = []
        self.posted: list[tuple[dict[str, str], bytes]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"

    def messages(self, count: int) -> list[dict[str, Any]]:
        """What was posted, once there is so much."""
        wait.until(lambda: len(self.posted) >= count, SECONDS, f"{count} messages arrive")
        return [json.loads(body) for _, body in self.posted]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((dict(self.headers), body))
        self.server.may_answer.wait(SECONDS)
        self.send_response(self.server.codes.pop(0) if self.server.codes else 200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


@contextmanager
def serving(port: int = 0) -> Iterator[Server]:
    with Server(port) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.may_answer.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def test_jobs_and_runs_are_told_of_signed_and_without_secrets_kept(
    user: User, server: Server
) -> None:
    user.write("train.py", "import sys; print('epoch 1 acc', sys.argv[1])")
    user.write("bad.py", "print('epoch 1 acc 0.2'); raise SystemExit(3)")
    user.write(
        "jobs.yaml",
        f"""
        notify: {{url: {server.url}, secret: HOOK_SECRET}}
        jobs:
        - {{name: low, script: train.py, args: ["0.5"], progress: {{metric: acc}}}}
        - {{name: high, script: train.py, args: ["0.75"], progress: {{metric: acc}},
            notify: "cat > told"}}
        - {{name: bad, script: bad.py, progress: {{metric: acc}}}}
        """,
    )
    user.variables["HOOK_SECRET"] = SECRET
    server.codes = [503, 503]
    user.types("run", "jobs.yaml", code=1)
    server.messages(4)
    ids = [headers["X-Headgate-Delivery"] for headers, _ in server.posted]
    assert ids[0] == ids[1] == ids[2] != ids[3]  # it was sent again
    for headers, body in server.posted:
        digest = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
        assert headers[SIGNATURE] == f"sha256={digest}"
    failure, whole = (json.loads(server.posted[i][1]) for i in (2, 3))
    assert (failure["occasion"], failure["job"], failure["state"]) == ("failure", "bad", "failed")
    assert failure["reason"]["kind"] == "exit"
    assert (whole["occasion"], whole["jobs"]) == ("run", {"done": 2, "failed": 1})
    assert whole["best"] == {"job": "high", "metric": "acc", "value": 0.75, "arguments": ["0.75"]}
    told = json.loads(user.sees("told"))
    assert (told["occasion"], told["job"], told["value"]) == ("end", "high", 0.75)
    store = (user.home / "runs" / whole["run"] / runs.STORE).read_bytes()
    assert SECRET.encode() not in store


def test_recipients_that_fail_are_told_of_once_and_delay_nothing(user: User) -> None:
    with serving() as gone:
        port = gone.server_port
    user.write("a.py", "raise SystemExit(1)")
    user.write(
        "jobs.yaml",
        f"""
        notify:
        - http://127.0.0.1:{port}/
        - {{command: "sleep 1000 & wait", timeout: 0.2s}}
        jobs: [{{name: a, script: a.py}}, {{name: b, script: a.py}}]
        """,
    )
    run = user.json("run", "jobs.yaml", code=1)["id"]
    with RunReader(user.home / "runs" / run / runs.STORE) as reader:
        rows = [row for row in reader.rows("events") if row["kind"] == "warning"]
    reasons = [json.loads(row["why"]) for row in rows]
    missed = [
        reason["facts"]["recipient"] for reason in reasons if reason["kind"] == "notice-missed"
    ]
    assert sorted(missed) == ["127.0.0.1", "sleep"]
    with serving(port) as server:  # it was tried meanwhile, and gets all of them
        assert [to["occasion"] for to in server.messages(3)] == ["failure", "failure", "run"]


def test_a_message_arrives_whose_hub_was_killed_meanwhile(user: User, server: Server) -> None:
    user.write("a.py", "raise SystemExit(1)")
    user.write("b.py", "import signal; signal.pause()")
    server.may_answer.clear()
    server.codes = [503]
    user.json("run", "--detach", "a.py", "b.py", "--notify", server.url)
    server.messages(1)
    for hub in user.traces.hubs():
        user.kills(hub)
    server.may_answer.set()
    first, second = server.messages(2)
    assert first == second
    assert first["job"] == "a"


def test_what_another_attempt_would_not_help_is_told_at_once(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.codes = [404]
    monkeypatch.delenv("NOWHERE", raising=False)
    for recipient, words in (
        (Recipient(url=server.url), "HTTP 404"),
        (Recipient(url="http://${NOWHERE}/"), "variable NOWHERE"),
        (Recipient(url=server.url, secret="NOWHERE"), "variable NOWHERE"),
        (Recipient(command="echo no >&2; exit 4"), "exit code 4: no"),
        (Recipient(command=("/nowhere",)), "No such file"),
    ):
        with pytest.raises(DeliveryError, match=words) as caught:
            deliver(recipient, FAILED, "1")
        assert caught.value.is_final


def test_a_command_gets_the_words_as_variables(user: User) -> None:
    file = user.folder / "told"
    deliver(Recipient(command=f'echo "$HEADGATE_EVENT $HEADGATE_TITLE" > {file}'), FAILED, "1")
    assert file.read_text() == "failure job a failed\n"


def test_a_verdict_that_changes_is_told_of_those_who_want_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = iter(["input", "input", "compute", "input", "compute", "compute"])
    live = SimpleNamespace(ended=None)
    accounts = [SimpleNamespace(job=name, record=live) for name in "ab"]
    monkeypatch.setattr("headgate.recorded.recording.read", lambda *_, **__: None)
    monkeypatch.setattr("headgate.reports.explained.explained", lambda _: accounts)
    verdicts = Verdicts(tmp_path, {"a": ()})
    looks = []
    for kind in kinds:
        verdict = {"kind": kind, "why": f"it waits for {kind}"}
        monkeypatch.setattr("headgate.reports.explained.verdict_as_json", lambda _, v=verdict: v)
        looks.append([(notice.job, notice.verdict) for notice in verdicts.look()])
    assert looks == [[]] * 5 + [[("a", ("it waits for compute", "it waits for input"))]]


@pytest.mark.filterwarnings("ignore:'imghdr' is deprecated")
def test_apprise_delivers_to_its_addresses(server: Server) -> None:
    pytest.importorskip("apprise")
    deliver(Recipient(apprise=server.url.replace("http", "json", 1)), FAILED, "1")
    [message] = server.messages(1)
    assert message["title"] == "job a failed"
    with pytest.raises(DeliveryError, match="does not know"):
        deliver(Recipient(apprise="nosuch://x"), FAILED, "1")
    check([Recipient(apprise="json://${HOST}/x"), Recipient(apprise="json://localhost")])
    for address in ("nosuch://x:secret@y", "nosuch://${HOST}", "slack://x"):
        with pytest.raises(UsageError, match=r"notify [a-z]+://[.]{3}"):
            check([Recipient(apprise=address)])
