"""Connections that do nothing, and what a server holds after many requests."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.hub.user import SECONDS
from tests.web.conftest import Pages

from headgate.web import connections

LOOK_SECONDS = 0.1
REQUEST = "GET {} HTTP/1.1\r\nHost: localhost\r\n"
PIECE = bytes(1 << 20)


class Answers:
    """Answers with more than any buffer holds, with a word now and then, or with nothing."""

    def __init__(self) -> None:
        self.has_answered = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(64 if scope["path"] == "/much" else 0):
            await send({"type": "http.response.body", "body": PIECE, "more_body": True})
        for _ in range(2 if scope["path"] == "/live" else 0):
            await asyncio.sleep(3 * LOOK_SECONDS)
            await send({"type": "http.response.body", "body": b"word ", "more_body": True})
        await send({"type": "http.response.body"})
        self.has_answered.set()


@asynccontextmanager
async def asked(
    app: Answers, request: str
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server of such answers, over which this was sent."""
    config = uvicorn.Config(app, http=connections.LimitedProtocol, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = asyncio.create_task(server.serve([listening]))
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(request.encode())
        async with asyncio.timeout(SECONDS):
            yield reader, writer
        writer.close()
        server.should_exit = True
        await serving


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are looked at all the time."""
    monkeypatch.setattr(connections, "SILENT_SECONDS", LOOK_SECONDS)


WHOLE, HALF = REQUEST.format("/") + "\r\n", REQUEST.format("/")


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("sent", ["", HALF, WHOLE, WHOLE + HALF])
def test_a_connection_that_does_not_ask_is_closed(sent: str) -> None:
    async def ask() -> None:
        async with asked(Answers(), sent) as (reader, _):
            with suppress(ConnectionResetError):
                await reader.read()

    asyncio.run(ask())


@pytest.mark.usefixtures("_soon")
def test_a_reader_that_stands_still_is_let_go() -> None:
    async def ask() -> None:
        app = Answers()
        async with asked(app, REQUEST.format("/much") + "\r\n"):
            await app.has_answered.wait()

    asyncio.run(ask())


@pytest.mark.usefixtures("_soon")
def test_a_stream_that_is_silent_for_a_while_stays() -> None:
    async def ask() -> None:
        async with asked(Answers(), REQUEST.format("/live") + "\r\n") as (reader, _):
            seen = await reader.readuntil(b"0\r\n\r\n")
        assert seen.count(b"word") == 2

    asyncio.run(ask())


ROUNDS, WARM = 1000, 150
"""Rounds of four requests, and those after which a server has all that it keeps."""


def holdings(pid: int) -> tuple[int, int]:
    """Bytes of memory and descriptors of a process."""
    pages_of_memory = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages_of_memory * os.sysconf("SC_PAGESIZE"), len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.long
def test_thousands_of_requests_leave_nothing(lasting: Pages) -> None:
    bearer = {"Authorization": f"Bearer {lasting.tokens['act']}"}
    connection = HTTPConnection("127.0.0.1", lasting.port, timeout=SECONDS)
    memory, descriptors = 0, 0
    for number in range(ROUNDS):
        if number == WARM:
            memory, descriptors = holdings(lasting.pid)
        for path in ("/", "/sections", "/runs/none", "/assets/icon.svg"):
            connection.request("GET", path, headers=bearer)
            connection.getresponse().read()
    after = holdings(lasting.pid)
    connection.close()
    assert after[1] <= descriptors + 2
    assert after[0] < memory + (8 << 20), f"{(after[0] - memory) / 2**20:.1f} MiB more"
