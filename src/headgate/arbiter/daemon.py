"""The arbiter's process: its socket. A decision is kept, then applied, then told."""

from __future__ import annotations

import asyncio
import grp
import json
import os
import pwd
import socket
import struct
import time
from asyncio import StreamReader, StreamWriter
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from headgate.arbiter import messages
from headgate.arbiter.acts import Act
from headgate.arbiter.answering import Answering, Asker
from headgate.arbiter.core import Arbiter
from headgate.arbiter.events import (
    ArbiterAction,
    ArbiterEvent,
    BookingAnswered,
    HubJoined,
    HubLeft,
    JobIdles,
    JobReleased,
    StoreWritable,
)
from headgate.arbiter.records import Demand, Hub, JobWaits, ResourceGrant, UserPart
from headgate.arbiter.store import ArbiterStore
from headgate.arbiter.usage import DAY_SECONDS, UsageLedger
from headgate.model import records
from headgate.model.errors import StorageError

SOCKET = Path("/run/headgate/arbiter.sock")
MOST_OF_USER, MOST_IN_ALL = 16, 1_000
"""Most connections of a user, and of all."""
_LINE_SECONDS, _PACE = 0.02, 10.0
"""A user's next request waits for so long, and for so many times the CPU time of the last one, over
however many connections they come.
"""
_UNREAD_BYTES = 4 << 20
"""A hub that leaves so much unread is cut off."""
_KEEP_SECONDS, _RETRY_SECONDS = 60.0, 10.0


def _nothing(_: ArbiterAction) -> None:
    """Nothing is applied."""


class ArbiterDaemon:
    """Serves hubs. A grant is kept before it is applied, and applied before anybody hears of it.

    Args:
        arbiter: The arbiter.
        store: What it keeps.
        apply: Makes an action so: cgroups, and who may open GPUs.
        clock: Seconds since the epoch.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        store: ArbiterStore,
        apply: Callable[[ArbiterAction], None] = _nothing,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._arbiter, self._store, self._apply, self._clock = arbiter, store, apply, clock
        self._now = clock()
        self._hubs: dict[Hub, StreamWriter] = {}
        self._connections = Counter[int]()
        self._free_at: defaultdict[int, float] = defaultdict(float)
        self._keep_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closes = False
        self._answering = Answering(arbiter, store, self.take, self._tell_act)
        arbiter.usage = UsageLedger(store.usage(int(self._now // DAY_SECONDS)))

    async def serve(self, path: Path = SOCKET) -> None:
        """Open the socket; everybody may connect.

        Raises:
            OSError: It cannot be opened.
        """
        with suppress(FileNotFoundError):
            path.unlink()
        self._server = await asyncio.start_unix_server(
            self._connected, path, limit=messages.MOST_BYTES
        )
        path.chmod(0o666)
        self.take(None)

    def take(self, event: ArbiterEvent | None) -> None:
        """Let the arbiter act on an event, or on the time."""
        actions = self._kept(self._step(event))
        for action in actions:
            self._apply(action)
        for action in actions:
            self._tell(action)
        self._wake(self._arbiter.wake_at)

    def _step(self, event: ArbiterEvent | None) -> list[ArbiterAction]:
        self._now = max(self._now, self._clock())  # a clock that is set back stands still
        return self._arbiter.step(self._now, event)

    def _kept(self, actions: list[ArbiterAction]) -> list[ArbiterAction]:
        """The actions that hold, now that they are kept."""
        matters = any(
            isinstance(action, ResourceGrant | JobReleased | BookingAnswered) for action in actions
        )
        if not matters and self._now < self._keep_at:
            return actions
        try:
            self._store.keep(self._arbiter.state(self._now), self._arbiter.usage.changed())
        except StorageError:
            unkept = {
                action.job
                for action in actions
                if isinstance(action, ResourceGrant) and not self._store.has(action.job)
            }
            actions = [
                action
                for action in actions
                if not (isinstance(action, ResourceGrant) and action.job in unkept)
            ]
            self._keep_at = self._now + _RETRY_SECONDS
            return actions + self._step(StoreWritable(False, tuple(unkept)))
        self._keep_at = self._now + _KEEP_SECONDS
        if not self._arbiter.is_writable:
            return actions + self._kept(self._step(StoreWritable(True)))
        return actions

    def _wake(self, at: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        times = [self._keep_at, *([at] if at is not None else [])]
        wait = max(min(times) - self._now, 0.0) + 0.001
        self._timer = asyncio.get_running_loop().call_later(wait, self.take, None)

    async def close(self) -> None:
        """Stop serving; jobs go on with what they have."""
        if self._server is not None:
            self._server.close()
        self._closes = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    # --- connections ------------------------------------------------------------------------------

    async def _connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.create_task(self._converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader: StreamReader, writer: StreamWriter) -> None:
        uid, gid = _peer(writer.get_extra_info("socket"))
        hub: Hub | None = None
        self._connections[uid] += 1
        try:
            if self._connections[uid] > MOST_OF_USER or self._connections.total() > MOST_IN_ALL:
                _send(writer, {"error": "too many connections; close some"})
                return
            user, groups = _names(uid, gid)
            while line := await reader.readline():
                await self._turn(uid)
                began = time.thread_time()
                request = messages.request(line, user)
                if not isinstance(request, Demand):
                    peer = Asker(uid, user, groups)
                    _send(writer, self._answering.answer(self._now, request, peer))
                else:
                    if hub is None:
                        hub = request.hub
                        self._joins(hub, groups, writer)
                    elif request.hub != hub:
                        raise ValueError("expected one hub on a connection")
                    self.take(request)
                self._free_at[uid] += _PACE * (time.thread_time() - began)
        except (OSError, StorageError, ValueError) as error:  # also of a line without end
            with suppress(OSError):
                _send(writer, {"error": str(error)[:500]})
        finally:
            self._connections[uid] -= 1
            if hub is not None and self._hubs.get(hub) is writer:
                del self._hubs[hub]
                if not self._closes:
                    self.take(HubLeft(hub))
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    def _joins(self, hub: Hub, groups: frozenset[str], writer: StreamWriter) -> None:
        before = self._hubs.get(hub)
        if before is not None and before is not writer:
            before.close()  # the hub was started anew
        self._hubs[hub] = writer
        self.take(HubJoined(hub, groups))

    async def _turn(self, uid: int) -> None:
        """Wait until a user's requests so far have had their time."""
        now = time.monotonic()
        begin = max(self._free_at[uid], now)
        self._free_at[uid] = begin + _LINE_SECONDS
        if begin > now:
            await asyncio.sleep(begin - now)

    def _tell(self, action: ArbiterAction) -> None:
        match action:
            case ResourceGrant() | JobWaits() | JobIdles():
                hubs: Iterable[Hub] = (action.job.hub,)
            case UserPart(user):
                hubs = [hub for hub in self._hubs if hub.user == user]
            case _:
                return
        self._send_to(hubs, records.dump(action))

    def _tell_act(self, act: Act, hub: Hub | None) -> bool:
        """Tell an act to the hub of its job, or to all of whom it concerns."""
        hubs = [hub] if hub is not None else list(self._hubs)
        return self._send_to((hub for hub in hubs if act.user in ("", hub.user)), records.dump(act))

    def _send_to(self, hubs: Iterable[Hub], message: dict[str, object]) -> bool:
        """Send a message. Returns whether any of the hubs is connected."""
        is_sent = False
        for hub in hubs:
            writer = self._hubs.get(hub)
            if writer is None:
                continue
            if writer.transport.get_write_buffer_size() > _UNREAD_BYTES:
                writer.transport.abort()
            else:
                _send(writer, message)
                is_sent = True
        return is_sent


def _send(writer: StreamWriter, message: dict[str, object]) -> None:
    writer.write(json.dumps(message).encode() + b"\n")


def _peer(connection: socket.socket) -> tuple[int, int]:
    """User and group at the other end, as the kernel knows them."""
    size = struct.calcsize("3i")
    _, uid, gid = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return uid, gid


def _names(uid: int, gid: int) -> tuple[str, frozenset[str]]:
    """The name of a user, and those of the user's groups; a deleted user has a number."""
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid), frozenset()
    groups = set()
    for group in os.getgrouplist(user, gid):
        with suppress(KeyError):
            groups.add(grp.getgrgid(group).gr_name)
    return user, frozenset(groups)
