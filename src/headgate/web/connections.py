"""Connections that do nothing are closed: one that asks for nothing, and one whose reader stands
still. So nobody holds this machine's memory and descriptors by opening connections.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

SILENT_SECONDS = 30.0
"""A connection is closed once it stood still between two looks, which are so far apart."""


class _Standing(NamedTuple):
    """How a connection stands.

    Args:
        request: Its latest request; None: it has made none.
        unsent: Bytes that its reader has not taken in.
    """

    request: object
    unsent: int


class LimitedProtocol(H11Protocol):
    """HTTP, whose silent connections are closed."""

    _look: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look_later(None)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._look is not None:
            self._look.cancel()

    def _look_later(self, before: _Standing | None) -> None:
        self._look = self.loop.call_later(SILENT_SECONDS, self._end_unless_changed, before)

    def _end_unless_changed(self, before: _Standing | None) -> None:
        now = _Standing(self.cycle, self.transport.get_write_buffer_size())
        is_answering = isinstance(now.request, RequestResponseCycle) and not (
            now.request.response_complete
        )
        if now == before and (now.unsent or not is_answering):
            self.transport.abort()
        else:
            self._look_later(now)
