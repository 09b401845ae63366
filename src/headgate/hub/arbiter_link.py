"""The connection of a hub, or of an agent on another machine, to the arbiter of its machine."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from headgate.arbiter.acts import Act
from headgate.arbiter.events import JobIdles
from headgate.arbiter.messages import HubRequest
from headgate.arbiter.records import (
    VERSION,
    Demand,
    DiskMoved,
    HoldAsked,
    JobHeld,
    JobWaits,
    ResourceGrant,
    UserPart,
)
from headgate.hub.state.runs import REST
from headgate.machine import arbiter_socket
from headgate.model import records

_AGAIN_SECONDS = 1.0
"""The arbiter is sought again after so long."""
_GONE_SECONDS = 30.0
"""Jobs start without the arbiter once it has been gone, with its socket, for so long."""
SOON_SECONDS = 0.05
"""Events of this time are stated together."""
_REPEAT_SECONDS = 5.0
_MOST_BYTES = 1 << 24
_HEARD: Mapping[str, type[Any]] = {
    kind.__name__: kind
    for kind in (ResourceGrant, UserPart, JobWaits, JobIdles, Act, HoldAsked, JobHeld, DiskMoved)
}
Heard = ResourceGrant | UserPart | JobWaits | JobIdles | Act | HoldAsked | JobHeld | DiskMoved


class ArbiterLink:
    """States demands to the arbiter, and hears what it answers.

    Args:
        socket: The arbiter's socket; None: there is to be none. One that is not root's is not
            trusted.
        demand: What is stated.
        shared: Told when the arbiter begins to say which jobs start, and when it no longer does.
        hear: Takes what the arbiter says. A grant is for a job that was stated as waiting.
        trouble: Told what is wrong with the arbiter; None: it answers.
        failed: Told an error of this program, with what comes of it.

    Attributes:
        is_shared: The arbiter says when jobs start.
        name: What the hub last called itself.
    """

    def __init__(
        self,
        socket: Path | None,
        demand: Callable[[], Demand],
        shared: Callable[[bool], None],
        hear: Callable[[Heard], None],
        trouble: Callable[[str | None], None],
        failed: Callable[[str, Exception], None],
    ) -> None:
        self._socket, self._demand, self._shared, self._hear = socket, demand, shared, hear
        self._trouble, self._failed = trouble, failed
        self.is_shared, self.name = False, ""
        self._seen_at = 0.0
        self._writer: asyncio.StreamWriter | None = None
        self._stated: tuple[object, ...] = ()
        self._stated_at = self._rest_seconds = 0.0
        self._asked: frozenset[str] = frozenset()
        self._due: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Ask from now on, if there is an arbiter or as soon as there is."""
        if self._socket is not None:
            self._look()
            self._task = asyncio.get_running_loop().create_task(self._seek())

    def changed(self) -> None:
        """State all jobs soon, if they differ."""
        if self._writer is not None:
            self._state_within(max(SOON_SECONDS, self._rest_seconds))

    def send(self, request: HubRequest) -> bool:
        """Send a question or an answer about another user's job. Returns whether it could be."""
        if self._writer is None:
            return False
        message = {**records.dump(request), "version": VERSION}
        self._writer.write(json.dumps(message).encode() + b"\n")
        return True

    def close(self) -> None:
        """Ask no more."""
        if self._task is not None:
            self._task.cancel()
        if self._due is not None:
            self._due.cancel()

    def _look(self) -> bool:
        """Whether root has made a socket. Jobs wait for grants from then on, until there has been
        none for long.
        """
        is_there, now = arbiter_socket.is_there(self._socket), time.monotonic()
        self._seen_at = now if is_there else self._seen_at
        is_shared = is_there or (self.is_shared and now < self._seen_at + _GONE_SECONDS)
        if is_shared != self.is_shared:
            self.is_shared = is_shared
            self._shared(is_shared)
        return is_there

    async def _seek(self) -> None:
        while True:
            try:
                if self._look():
                    await self._converse()
            except (OSError, ValueError) as error:
                self._trouble(str(error))
            except Exception as error:  # noqa: BLE001  # the next message may make sense
                self._failed("Headgate met an error and asks the arbiter again", error)
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _converse(self) -> None:
        reader, writer = await asyncio.open_unix_connection(self._socket, limit=_MOST_BYTES)
        try:
            if not arbiter_socket.is_roots(writer.get_extra_info("socket")):
                raise OSError(f"it is not root that listens at {self._socket}")
            self._writer, self._stated = writer, ()
            self._state_within(0.0)
            while line := await reader.readline():
                self._take(json.loads(line))
        finally:
            self._writer = None
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _take(self, message: Mapping[str, Any]) -> None:
        if "error" in message:
            raise ValueError(message["error"])
        self._trouble(None)
        try:
            heard: Heard = records.load(message, _HEARD)
        except ValueError:
            if message.get(records.TYPE) == ResourceGrant.__name__:
                raise
            return  # a later arbiter tells more than this hub knows
        if not isinstance(heard, ResourceGrant) or heard.job.id in self._asked:
            self._hear(heard)

    def _state_within(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._due is not None and self._due.when() <= loop.time() + seconds:
            return
        if self._due is not None:
            self._due.cancel()
        self._due = loop.call_later(seconds, self._state)

    def _state(self) -> None:
        """State all jobs, if that is news or was long ago."""
        self._due = None
        if self._writer is None:
            return
        began, now = time.thread_time(), time.monotonic()
        demand = self._demand()
        self.name = demand.hub.name
        news = _news(demand)
        if news != self._stated or now >= self._stated_at + _REPEAT_SECONDS:
            message = {**records.plain(demand), "hub": demand.hub.name, "version": VERSION}
            self._writer.write(json.dumps(message).encode() + b"\n")
            self._stated, self._stated_at = news, now
            self._asked = frozenset(job.id for job in demand.waiting)
        self._rest_seconds = REST * (time.thread_time() - began)
        self._state_within(_REPEAT_SECONDS)


def _news(demand: Demand) -> tuple[object, ...]:
    """What has the arbiter decide anew; what is left of jobs changes all the time."""
    return tuple(tuple(job.needs for job in jobs) for jobs in (demand.waiting, demand.running))
