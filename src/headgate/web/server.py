"""The server of the pages."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import json
import os
import time
import zlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from headgate.client.client import Client
from headgate.client.logs import JobLogs
from headgate.client.run import Run
from headgate.model.errors import HeadgateError, NotFoundError, UsageError
from headgate.reports.event_words import chain_lines
from headgate.web import actions, files, metrics, pages
from headgate.web.access import Access, Right, Tokens
from headgate.web.board import Board
from headgate.web.sending import Receiver, Tell, kept_up

_ALIVE_SECONDS = 15.0
"""A browser that is told nothing for so long is told that, so that one that has gone is noticed."""
_LOG_SECONDS = 0.5
_LOG_BYTES = 200_000
"""As much of a log is sent at first."""
_REQUEST_SECONDS, _MOST_REQUEST_BYTES = 10.0, 65_536
"""How long a request that acts may take to come, and how much it may be."""
_KEPT_PAGES = 8
_MOST_COURSES = 3
"""Live runs whose shares and losses are drawn on the first page."""
_LEAST_SECONDS, _REST = 5.0, 10.0
_KEPT_SECONDS = 365 * 86_400
"""How long a browser keeps a file whose address has its version."""

Answer = Callable[[Request], Awaitable[Response]]


class PageServer:
    """Answers browsers.

    Args:
        receivers: What takes figures.
        tell: Called with a line for people if that fails.
    """

    def __init__(self, receivers: Sequence[Receiver] = (), tell: Tell = print) -> None:
        self._board = Board()
        self._client = Client()
        self._receivers, self._tell = receivers, tell
        self._sections: OrderedDict[tuple[str, str], tuple[float, dict[str, Any]]] = OrderedDict()
        self._making = asyncio.Lock()

    def app(self, tokens: Tokens, hosts: tuple[str, ...], port: int, secure: bool) -> Access:
        """The ASGI application; see `Access` for the arguments."""
        pages_and_data: dict[str, Answer] = {
            "/": self._now,
            "/past": self._past,
            "/sections": self._courses,
            "/compare": self._compare,
            "/metrics": self._metrics,
            "/assets/{name}": self._asset,
            "/favicon.ico": self._asset,  # which a browser asks for where a page names none yet
            "/runs/{run}": self._run,
            "/runs/{run}/sections": self._run_sections,
            "/runs/{run}/jobs/{job}": self._job,
            "/runs/{run}/jobs/{job}/sections": self._job_sections,
            "/runs/{run}/jobs/{job}/why": self._why,
        }
        # not the streams, which it would hold back
        gzip = [Middleware(GZipMiddleware, minimum_size=1000, compresslevel=6)]
        routes = [
            *(Route(path, answer, middleware=gzip) for path, answer in pages_and_data.items()),
            Route("/live", self._live),
            Route("/runs/{run}/jobs/{job}/log", self._log),
            Route("/runs/{run}/{act}", self._act, methods=["POST"]),
        ]
        app = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers={HeadgateError: self._failed, 404: self._failed},
        )
        return Access(app, tokens, hosts, port, secure)

    def end(self) -> None:
        """Let browsers go."""
        self._board.close()

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        try:
            async with kept_up(self._board, self._receivers, self._tell):
                yield
        finally:
            self._client.close()

    # --- pages ------------------------------------------------------------------------------------

    async def _now(self, request: Request) -> Response:
        return HTMLResponse(pages.now(_right(request)))

    async def _past(self, _request: Request) -> Response:
        return HTMLResponse(await asyncio.to_thread(pages.past_runs, self._client))

    async def _run(self, request: Request) -> Response:
        run = self._found(request)
        return HTMLResponse(await asyncio.to_thread(pages.run, run, _right(request)))

    async def _job(self, request: Request) -> Response:
        run, job = self._found(request), request.path_params["job"]
        return HTMLResponse(await asyncio.to_thread(pages.job, run, job, _right(request)))

    async def _compare(self, request: Request) -> Response:
        ids = [request.query_params.get(name, "") for name in ("first", "second")]
        if not all(ids):
            raise UsageError("found no two runs; choose them on the first page")
        async with self._making:
            pair = await asyncio.to_thread(self._client.compare, *ids)
        return HTMLResponse(pages.comparison(pair, _right(request)))

    async def _courses(self, _request: Request) -> Response:
        live = [self._client.find(id) for id in self._board.runs[-_MOST_COURSES:]]
        return JSONResponse(await self._made(("", ""), lambda: pages.courses(live)))

    async def _run_sections(self, request: Request) -> Response:
        run = self._found(request)
        return JSONResponse(await self._made((run.id, ""), lambda: pages.run_sections(run)))

    async def _job_sections(self, request: Request) -> Response:
        run, job = self._found(request), request.path_params["job"]
        return JSONResponse(await self._made((run.id, job), lambda: pages.job_sections(run, job)))

    async def _made(
        self, key: tuple[str, str], make: Callable[[], dict[str, Any]]
    ) -> dict[str, Any]:
        """Sections, made once for all browsers that ask at about the same time."""
        async with self._making:
            until, sections = self._sections.get(key, (0.0, {}))
            if time.monotonic() >= until:
                sections = await asyncio.to_thread(make)
                rest = max(_LEAST_SECONDS, _REST * sections["took"]) if sections["live"] else 60.0
                self._sections[key] = time.monotonic() + rest, sections
                while len(self._sections) > _KEPT_PAGES:
                    self._sections.popitem(last=False)
            return sections

    async def _why(self, request: Request) -> Response:
        run, job = self._found(request), request.path_params["job"]
        event = request.query_params.get("event", "")
        chains = await asyncio.to_thread(run.why, job, int(event) if event.isdecimal() else None)
        return JSONResponse({"lines": [line for links in chains for line in chain_lines(links)]})

    async def _asset(self, request: Request) -> Response:
        name = request.path_params.get("name", files.ICON)
        data, kind = files.read(name)
        is_named = request.url.query == files.version(name)
        kept = f"private, max-age={_KEPT_SECONDS}, immutable" if is_named else "no-cache"
        return Response(data, media_type=kind, headers={"cache-control": kept})

    async def _metrics(self, _request: Request) -> Response:
        readings = metrics.read(self._board)
        text = await asyncio.to_thread(metrics.exposition, readings, process=True)
        return Response(text, media_type=metrics.CONTENT_TYPE)

    # --- streams ----------------------------------------------------------------------------------

    async def _live(self, request: Request) -> Response:
        run = request.query_params.get("run")
        return _stream(request, self._changes(run))

    async def _changes(self, run: str | None) -> AsyncIterator[bytes]:
        subscription = self._board.subscribe(run)
        try:
            while True:
                try:
                    async with asyncio.timeout(_ALIVE_SECONDS):
                        message = await subscription.messages.get()
                except TimeoutError:
                    message = b": nothing new\n\n"
                if message is None:
                    return
                yield message
        finally:
            self._board.unsubscribe(subscription)

    async def _log(self, request: Request) -> Response:
        run, job = self._found(request), request.path_params["job"]
        log = run.job_logs(job, request.query_params.get("task") or None)
        return _stream(request, _grown(log))

    # --- what changes something -------------------------------------------------------------------

    async def _act(self, request: Request) -> Response:
        if _right(request) is not Right.ACT:
            raise UsageError("this link is for looking only")
        run, act = self._found(request), request.path_params["act"]
        done = await asyncio.to_thread(actions.act, run, act, await _asked_for(request))
        return JSONResponse({"done": done})

    def _found(self, request: Request) -> Run:
        return self._client.find(request.path_params["run"])

    async def _failed(self, request: Request, error: Exception) -> Response:
        status = 404 if not isinstance(error, HeadgateError) else _status(error)
        text = str(error) if isinstance(error, HeadgateError) else "there is no such page"
        if "text/html" in request.headers.get("accept", ""):
            return HTMLResponse(pages.trouble(text, _right(request)), status)
        return JSONResponse({"error": text}, status)


def _right(request: Request) -> Right:
    right: Right = request.state.right
    return right


def _status(error: HeadgateError) -> int:
    if isinstance(error, NotFoundError):
        return 404
    return 400 if isinstance(error, UsageError) else 500


async def _asked_for(request: Request) -> Any:
    """The JSON that a request brings.

    Raises:
        UsageError: It is none, is too much, or does not come.
    """
    data = bytearray()
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            async for part in request.stream():
                data += part
                if len(data) > _MOST_REQUEST_BYTES:
                    raise UsageError(f"found a request of more than {_MOST_REQUEST_BYTES} bytes")
        return json.loads(data)
    except TimeoutError as error:
        raise UsageError(f"found a request without its end in {_REQUEST_SECONDS:g} s") from error
    except ValueError as error:
        raise UsageError(f"found a request that is no JSON: {error}") from error


def _stream(request: Request, events: AsyncIterator[bytes]) -> Response:
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return StreamingResponse(events, media_type="text/event-stream")
    headers = {"content-encoding": "gzip", "vary": "accept-encoding"}
    return StreamingResponse(_compressed(events), headers=headers, media_type="text/event-stream")


async def _compressed(events: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A stream as gzip, each event whole as soon as it is there."""
    gzip = zlib.compressobj(1, wbits=31)
    async for event in events:
        yield gzip.compress(event) + gzip.flush(zlib.Z_SYNC_FLUSH)


async def _grown(log: JobLogs) -> AsyncIterator[bytes]:
    """The end of a log, and what is added to it, until its job has ended."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    inode, read, silent = 0, 0, 0.0
    yield b"event: begin\ndata: \n\n"
    while True:
        ended = await asyncio.to_thread(log.ended)
        text = ""
        for path in log.paths()[:1]:
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != inode:
                    read = max(status.st_size - _LOG_BYTES, 0) if not inode else 0
                    inode = status.st_ino
                file.seek(read)
                data = file.read(_LOG_BYTES)
                read += len(data)
                text = decoder.decode(data)
        if text:
            silent = 0.0
            yield f"event: text\ndata: {json.dumps(text)}\n\n".encode()
        elif ended:
            yield b"event: end\ndata: \n\n"
            return
        else:
            await asyncio.sleep(_LOG_SECONDS)
            silent += _LOG_SECONDS
            if silent >= _ALIVE_SECONDS:
                silent = 0.0
                yield b": nothing new\n\n"
