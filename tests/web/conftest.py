from __future__ import annotations

import json
import signal
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.hub.user import SECONDS, User, headgate, speed, user
from tests.reports.browsing import chromium

from headgate.testing.wait import until

__all__ = ["speed", "user"]
HTML = "text/html"


@dataclass(frozen=True)
class Answer:
    """What the server answered."""

    status: int
    headers: dict[str, str]
    text: str


class Pages:
    """A running `headgate web`, asked as any program on this machine could."""

    def __init__(self, user: User, *words: str, certificate: Path | None = None) -> None:
        self._trusted = certificate
        tls = () if certificate is None else ("--certificate", str(certificate))
        self._process = user.starts("web", "--json", *tls, *words)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, self._process.communicate()[1]
        facts = json.loads(line)
        self.act, self.look, self.port = facts["act"], facts["look"], facts["port"]
        self.tokens = {
            name: parse_qs(urlsplit(facts[name]).query)["token"][0] for name in ("act", "look")
        }
        assert self.asks("/past").status == 200

    @property
    def pid(self) -> int:
        return self._process.pid

    def asks(
        self,
        path: str,
        *,
        method: str = "GET",
        token: str | None = "act",
        body: object = None,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """Ask with one of the tokens, `act` or `look`; None: with none."""
        given = {"Authorization": f"Bearer {self.tokens[token]}"} if token is not None else {}
        connection = HTTPConnection("127.0.0.1", self.port, timeout=SECONDS)
        if self._trusted is not None:
            trusting = ssl.create_default_context(cafile=self._trusted)
            connection = HTTPSConnection("127.0.0.1", self.port, timeout=SECONDS, context=trusting)
        data = json.dumps(body).encode() if body is not None else None
        connection.request(method, path, data, given | (headers or {}))
        response: HTTPResponse = connection.getresponse()
        answer = Answer(
            response.status,
            {name.lower(): value for name, value in response.getheaders()},
            response.read().decode(),
        )
        connection.close()
        return answer

    def does(self, path: str, body: object, token: str = "act") -> Answer:
        """Ask for what changes something, as the page itself does."""
        own = {"Origin": f"http://127.0.0.1:{self.port}", "X-Headgate": "act"}
        return self.asks(path, method="POST", token=token, body=body, headers=own)

    def lets_go(self) -> None:
        """Wait until no run is live to it and no hub is followed: pages of runs that have ended
        stay as they are from then on.
        """

        def follows_none() -> bool:
            text = self.asks("/metrics").text
            return "\nheadgate_runs 0.0\n" in text and "\nheadgate_hub_memory_bytes{" not in text

        until(follows_none, SECONDS, "no run is live")

    def errors(self) -> str:
        """What it wrote to standard error, once it has ended."""
        return self._process.communicate()[1]

    def ends(self) -> int:
        """Ctrl-C; the exit code."""
        self._process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(SECONDS)
        return self._process.wait(1)


@pytest.fixture(scope="module")
def resident(tmp_path_factory: pytest.TempPathFactory, speed: Path) -> Iterator[User]:
    """Somebody whose hub serves all tests of a module."""
    folder = tmp_path_factory.mktemp("resident")
    somebody = User(folder / "work", folder / "home", speed)
    yield somebody
    ends_all(somebody)
    somebody.leaves()


def ends_all(user: User) -> None:
    """End what runs, if anything does."""
    headgate(("stop", "--all", "--kill"), user.folder, user.variables)


@pytest.fixture(scope="module")
def lasting(resident: User) -> Iterator[Pages]:
    """The pages of that user."""
    served = Pages(resident, "--port", "0")
    yield served
    assert served.ends() == 0


@pytest.fixture
def pages(user: User) -> Iterator[Pages]:
    served = Pages(user, "--port", "0")
    yield served
    assert served.ends() == 0


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with chromium(Path(tmp_path_factory.mktemp("profile"))) as driver:
        yield driver
