"""Ray's Jobs API, as far as no cluster is needed to know what it answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from headgate.engines.ray import jobs_api
from headgate.engines.ray.jobs_api import JobsApi
from headgate.model.errors import HeadgateError

NO_AGENT = (
    "Traceback (most recent call last):\nException: No available agent to submit job, "
    "please try again later."
)


class Dashboard(HTTPServer):
    """Refuses so many jobs, then takes one."""

    def __init__(self, refuses: int) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.refuses = refuses
        self.asked = 0


class Answers(BaseHTTPRequestHandler):
    server: Dashboard

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked += 1
        refused = self.server.asked <= self.server.refuses
        self.send_response(500 if refused else 200)
        self.end_headers()
        self.wfile.write(
            NO_AGENT.encode() if refused else json.dumps({"submission_id": "one"}).encode()
        )

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def dashboard(request: pytest.FixtureRequest) -> Iterator[Dashboard]:
    with Dashboard(request.param) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize("dashboard", [2], indirect=True)
def test_a_head_that_has_nobody_to_give_a_job_to_yet_is_asked_again(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_api, "RETRY_SECONDS", 0.01)
    JobsApi(f"http://127.0.0.1:{dashboard.server_port}").submit("one", "true", {})
    assert dashboard.asked == 3


@pytest.mark.parametrize("dashboard", [1000], indirect=True)
def test_it_is_not_asked_for_ever(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_api, "AGENT_SECONDS", 0.0)
    with pytest.raises(HeadgateError, match=r"refused: .*No available agent"):
        JobsApi(f"http://127.0.0.1:{dashboard.server_port}").submit("one", "true", {})
    assert dashboard.asked == 1
