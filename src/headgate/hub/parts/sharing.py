"""The hub on a machine that users share: states its jobs to the arbiter, and hears its grants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from headgate.arbiter import asking
from headgate.arbiter.records import Demand, ResourceGrant
from headgate.hub.parts import Component
from headgate.model import records
from headgate.model.events import Action, Event, MachineShared

_AGAIN_SECONDS = 2.0
"""The arbiter is sought again after so long."""
_SOON_SECONDS = 0.05
"""Events of this time are stated together."""
_REPEAT_SECONDS = 5.0
_MOST_BYTES = 1 << 24
_ROOT = 0


class MachineSharing(Component):
    """Asks the arbiter of this machine before jobs start, once there is one.

    While the arbiter is away, jobs go on with what they have, and no other starts.

    Args:
        socket: The arbiter's socket; one that is not root's is not trusted.
        demand: What the hub states.
        step: Takes events to the controller.
    """

    def __init__(
        self, socket: Path, demand: Callable[[], Demand], step: Callable[[Event], None]
    ) -> None:
        self._socket, self._demand, self._step = socket, demand, step
        self._writer: asyncio.StreamWriter | None = None
        self._due: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Seek the arbiter from now on."""
        self._task = asyncio.get_running_loop().create_task(self._seek())

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        self._state_within(_SOON_SECONDS)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._due is not None:
            self._due.cancel()

    async def _seek(self) -> None:
        while True:
            with suppress(OSError, ValueError):
                if self._socket.stat().st_uid == _ROOT:
                    await self._converse()
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _converse(self) -> None:
        reader, writer = await asyncio.open_unix_connection(self._socket, limit=_MOST_BYTES)
        self._writer = writer
        try:
            self._step(MachineShared(True))
            while line := await reader.readline():
                self._take(json.loads(line))
        finally:
            self._writer = None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _take(self, message: Mapping[str, Any]) -> None:
        if message.get(records.TYPE) == ResourceGrant.__name__:
            self._step(
                asking.granted(records.load(message, {ResourceGrant.__name__: ResourceGrant}))
            )

    def _state_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._due is not None and self._due.when() <= loop.time() + seconds:
            return
        if self._due is not None:
            self._due.cancel()
        self._due = loop.call_later(seconds, self._state)

    def _state(self) -> None:
        self._due = None
        if self._writer is not None:
            demand = self._demand()
            message = {**records.plain(demand), "hub": demand.hub.name}
            self._writer.write(json.dumps(message).encode() + b"\n")
            self._state_within(_REPEAT_SECONDS)
