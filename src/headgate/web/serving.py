"""Runs the page server until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import html
import os
import secrets
import signal
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from headgate.config.settings import web_port
from headgate.model import defaults
from headgate.model.errors import HeadgateError, StorageError, UsageError
from headgate.recorded import runs
from headgate.web.access import PARAMETER, Tokens
from headgate.web.board import Board
from headgate.web.connections import LimitedProtocol
from headgate.web.sending import MetricsFile, Receiver, Tell, kept_up
from headgate.web.server import PageServer

PORT = defaults.WEB_PORT
_TOKEN = "web.token"
"""In `HEADGATE_HOME`: the token. It stays the same, so that a page that was left open goes on."""
_ENTRANCE = "web.html"
_LEAST_TOKEN = 32
"""Characters of one that nobody guesses."""
_LOOK_TOKEN = "web-look.token"
"""In `HEADGATE_HOME`: the token that allows to look, for programs such as Prometheus."""
_TRIES = 20
_LAST_SECONDS = 1
"""How long answers that are under way have when it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """How the pages are served.

    Args:
        host: Address to listen at.
        port: Port; None: 7411, or the next one that is free.
        names: Names of this machine that browsers may use beside `localhost`.
        certificate: PEM file with the certificate, and the key where `key` is None; None: no TLS.
        key: PEM file with its key.
        metrics_file: Where figures are written for node_exporter; None: nowhere.
        otlp: Base address of a receiver of OTLP that gets figures; empty: as the environment says;
            None: none does.
    """

    host: str = "127.0.0.1"
    port: int | None = None
    names: tuple[str, ...] = ()
    certificate: Path | None = None
    key: Path | None = None
    metrics_file: Path | None = None
    otlp: str | None = None

    def receivers(self) -> list[Receiver]:
        """What takes figures.

        Raises:
            UsageError: One of them cannot be.
        """
        receivers: list[Receiver] = []
        if self.otlp is not None:
            from headgate.web.otlp import OtlpReceiver  # an extra of its own

            receivers.append(OtlpReceiver(self.otlp))
        if self.metrics_file is not None:
            receivers.append(MetricsFile(self.metrics_file))
        return receivers


@dataclass(frozen=True, slots=True)
class PageAddresses:
    """Where a browser finds the pages: to act, and only to look."""

    act: str
    look: str
    port: int


class Serving:
    """A server that listens, and does not answer yet.

    Args:
        settings: How.
        tell: Called with a line for people if figures cannot be handed on.

    Raises:
        UsageError: The port is taken, the address is not this machine's, or the certificate
            or what takes figures cannot be used.
    """

    def __init__(self, settings: ServeSettings, tell: Tell) -> None:
        self._settings, self._tell = settings, tell
        _check_certificate(settings)
        self._socket = _listening(settings.host, settings.port)
        self._tokens = Tokens(token())
        _keep_look_token(self._tokens.look)
        self._receivers = settings.receivers()

    @property
    def addresses(self) -> PageAddresses:
        port = self._socket.getsockname()[1]
        scheme = "https" if self._settings.certificate is not None else "http"
        any_host = self._settings.host in ("0.0.0.0", "::")
        host = socket.gethostname() if any_host else self._settings.host
        base = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/?{PARAMETER}="
        return PageAddresses(base + self._tokens.act, base + self._tokens.look, port)

    def entrance(self) -> Path:
        """A file that leads a browser to the pages. Its command line, which every user of the
        machine can read, has no token then.

        Raises:
            StorageError: It cannot be written.
        """
        address, path = html.escape(self.addresses.act), runs.home() / _ENTRANCE
        try:
            fresh = _private(path, f'<meta http-equiv="refresh" content="0; url={address}">\n')
            fresh.replace(path)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror}") from error
        return path

    def run(self) -> None:
        """Answer until SIGINT or SIGTERM."""
        asyncio.run(self._run())

    async def _run(self) -> None:
        settings, pages = self._settings, PageServer(self._receivers, self._tell)
        names = (*settings.names, settings.host, socket.gethostname(), socket.getfqdn())
        is_secure = settings.certificate is not None
        app: Any = pages.app(self._tokens, names, self.addresses.port, is_secure)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=LimitedProtocol,
                log_level="critical",
                access_log=False,
                server_header=False,
                ssl_certfile=settings.certificate,
                ssl_keyfile=settings.key,
                timeout_graceful_shutdown=_LAST_SECONDS,
                lifespan="on",
            )
        )
        loop = asyncio.get_running_loop()

        def end() -> None:
            server.should_exit = True
            pages.end()

        with _without_handlers(server):
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, end)
            await server.serve(sockets=[self._socket])


def send_only(settings: ServeSettings, tell: Tell) -> None:
    """Hand figures on without a page, until SIGINT or SIGTERM.

    Args:
        settings: Where to.
        tell: Called with a line for people if that fails.

    Raises:
        UsageError: What takes figures cannot be used.
    """

    async def send() -> None:
        ended = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, ended.set)
        async with kept_up(Board(), settings.receivers(), tell):
            await ended.wait()

    asyncio.run(send())


@contextlib.contextmanager
def _without_handlers(server: uvicorn.Server) -> Any:
    """Keep a server from handling signals by itself: streams have to end first."""
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign, assignment]
    yield


def token() -> str:
    """The token of this user's pages, made at the first call.

    Raises:
        StorageError: It cannot be kept.
    """
    path = runs.home() / _TOKEN
    try:
        if not path.exists():
            fresh = _private(path, secrets.token_urlsafe(32) + "\n")
            with contextlib.suppress(FileExistsError):  # another server was faster
                os.link(fresh, path)
            fresh.unlink()
        kept = path.read_text().strip()
    except OSError as error:
        raise StorageError(f"cannot keep a token in {path}: {error.strerror}") from error
    if len(kept) < _LEAST_TOKEN:
        raise StorageError(f"{path} holds no token; delete it, and another one is made")
    return kept


def _keep_look_token(look: str) -> None:
    path = runs.home() / _LOOK_TOKEN
    try:
        _private(path, look + "\n").replace(path)
    except OSError as error:
        raise StorageError(f"cannot keep a token in {path}: {error.strerror}") from error


def _private(path: Path, text: str) -> Path:
    """A file beside `path`, to take its place, that only this user can read."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(text)
    return fresh


def _listening(host: str, port: int | None) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    first = web_port() or PORT
    tries = [port] if port is not None else [*range(first, first + _TRIES), 0]
    for number in tries:
        # asyncio sends without delay (TCP_NODELAY) only where the protocol is named
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, number))
            listening.listen(128)
        except OSError as error:
            listening.close()
            if port is not None or error.errno != 98:
                cure = "give another --port" if port is not None else "give another --host"
                raise UsageError(
                    f"cannot listen at {host}:{number}: {error.strerror}; {cure}"
                ) from error
        else:
            return listening
    raise HeadgateError(f"no port of {host} is free")


def _check_certificate(settings: ServeSettings) -> None:
    if settings.certificate is None:
        if settings.key is not None:
            raise UsageError("found --key without --certificate; give both")
        return
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"--certificate {settings.certificate}: {error.strerror or error}; expected PEM files "
            "with a certificate and its key"
        ) from error
