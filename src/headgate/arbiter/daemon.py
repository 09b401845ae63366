"""The arbiter's process: its socket. A decision is kept, then applied, then told."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import socket
import time
from asyncio import StreamReader, StreamWriter
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path

from headgate.arbiter import messages, user_names
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
    JobTakenBack,
    MachineUsed,
    StoreWritable,
)
from headgate.arbiter.listening import PacedListener
from headgate.arbiter.records import (
    Demand,
    DiskMoved,
    HoldAsked,
    Hub,
    JobHeld,
    JobWaits,
    ResourceGrant,
    UserPart,
)
from headgate.arbiter.store import ArbiterStore
from headgate.arbiter.usage import DAY_SECONDS, UsageLedger
from headgate.machine import arbiter_socket, processes
from headgate.machine.processes import Process
from headgate.model import records
from headgate.model.errors import StorageError

_log = logging.getLogger(__name__)

_LINE_SECONDS, _PACE = 0.02, 10.0
"""A user's next request waits for so long, and for so many times the CPU time of the last one, over
however many connections they come.
"""
_UNREAD_BYTES = 4 << 20
"""A hub that leaves so much unread is cut off."""
_KEEP_SECONDS, _RETRY_SECONDS = 60.0, 10.0
_SILENT_SECONDS = 60.0
"""A hub that states nothing for so long is frozen. One that is not does so every few seconds."""
_READ_SECONDS = 5.0
"""The machine is read so often, and hubs that are gone are looked after."""


class Boxes:
    """What makes decisions so on the machine, and reads it. This one does nothing."""

    def joins(self, hub: Hub, peer: arbiter_socket.Peer, process: Process | None) -> None:
        """A hub has connected: its process is to be in its user's box.

        Args:
            hub: The hub.
            peer: Who connected.
            process: Its process as of then; None: it had ended already.

        Raises:
            OSError: It cannot be.
        """

    def apply(self, action: ArbiterAction) -> None:
        """Make an action so: cgroups, and who may open GPUs. It may come again.

        Raises:
            OSError: It cannot be done now; it is tried again.
        """

    def is_empty(self, hub: Hub, uid: int) -> bool:
        """Whether no process of a hub that is gone, and of its jobs, is left."""
        return not processes.has_processes(uid)

    def read(self) -> MachineUsed | None:
        """What is in use, called every few seconds in a thread; None: nothing is known."""
        return None

    def moved(self) -> DiskMoved | None:
        """What processes moved on disks since the last call, called likewise, but only while a hub
        is there to hear it; None: nothing is known.
        """
        return None


class ArbiterDaemon:
    """Serves hubs. A grant is kept before it is applied, and applied before anybody hears of it.

    Args:
        arbiter: The arbiter.
        store: What it keeps.
        boxes: Makes actions so.
        clock: Seconds since the epoch.
        tell: Takes messages for the administrator.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        store: ArbiterStore,
        boxes: Boxes | None = None,
        clock: Callable[[], float] = time.time,
        tell: Callable[[str], None] = _log.warning,
    ) -> None:
        self._arbiter, self._store, self._clock = arbiter, store, clock
        self._boxes, self._told = boxes or Boxes(), tell
        self._now = clock()
        self._hubs: dict[Hub, StreamWriter] = {}
        self._holds: dict[Hub, tuple[int, Hub]] = {}  # whom each hub asked last to hold a job
        self._heard: dict[Hub, float] = {}
        self._unapplied: dict[tuple[type, str], ArbiterAction] = {}
        self._retry_at = math.inf
        self._trouble = ""
        self._free_at: defaultdict[int, float] = defaultdict(float)
        self._keep_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._listener: PacedListener | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closes = False
        self._answering = Answering(arbiter, store, self.take, self._tell_act)
        arbiter.metering.usage = UsageLedger(store.usage(int(self._now // DAY_SECONDS)))

    async def serve(self, path: Path = arbiter_socket.SOCKET) -> None:
        """Open the socket; everybody may connect.

        Raises:
            OSError: It cannot be opened.
        """
        self._listener = PacedListener(
            lambda connection, peer: self._start(self._connected(connection, peer))
        )
        self._listener.open(path)
        self.take(None)
        self._start(self._look())

    def take(self, event: ArbiterEvent | None) -> None:
        """Let the arbiter act on an event, or on the time."""
        actions = self._kept(self._step(event))
        if self._now >= self._retry_at:
            actions = [*self._unapplied.values(), *actions]
            self._unapplied, self._retry_at = {}, math.inf
        for action in [action for action in actions if self._applied(action)]:
            self._tell(action)
        self._wake(self._arbiter.wake_at)

    def _applied(self, action: ArbiterAction) -> bool:
        """Make an action so. Returns whether it is; else it is tried again."""
        try:
            self._boxes.apply(action)
        except OSError as error:
            subject = action.user if isinstance(action, UserPart) else str(action)
            self._unapplied[type(action), subject] = action
            self._retry_at = self._now + _RETRY_SECONDS
            self._report(f"{type(action).__name__} cannot be applied: {error}; tried again")
            return False
        return True

    def _report(self, trouble: str) -> None:
        """Tell the administrator of a trouble, once."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._told(trouble)

    async def _look(self) -> None:
        """Read the machine, and free what hubs held that are gone."""
        while True:
            await asyncio.sleep(_READ_SECONDS)
            try:
                reading = await asyncio.to_thread(self._boxes.read)
                moved = await asyncio.to_thread(self._boxes.moved) if self._hubs else None
                gone = {job.hub for job in self._arbiter.room.grants} - self._hubs.keys()
                empty = [hub for hub in gone if await asyncio.to_thread(self._is_empty, hub)]
            except OSError as error:
                self._report(f"the machine cannot be read: {error}")
                continue
            if reading is not None:
                self.take(reading)
            if moved is not None:
                self._send_to(list(self._hubs), records.dump(moved))
            for hub in empty:
                if hub not in self._hubs:
                    self.take(HubLeft(hub, emptied=True))
            self._leave_out_silent()

    def _leave_out_silent(self) -> None:
        """Grant nothing more to hubs that are frozen, until they state their jobs again."""
        since = time.monotonic() - _SILENT_SECONDS
        for hub in [hub for hub, at in self._heard.items() if at < since]:
            del self._heard[hub]
            self.take(HubLeft(hub))

    def _is_empty(self, hub: Hub) -> bool:
        """Whether no process is left that needs what a hub was granted."""
        uid = user_names.uid_of(hub.user, self._arbiter.uids)
        return uid is None or self._boxes.is_empty(hub, uid)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

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
            self._store.keep(self._arbiter.state(self._now), self._arbiter.metering.usage.changed())
        except StorageError as error:
            self._report(f"{error}; nothing starts until then")
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
        times = [self._keep_at, self._retry_at, *([at] if at is not None else [])]
        wait = max(min(times) - self._now, 0.0) + 0.001
        self._timer = asyncio.get_running_loop().call_later(wait, self.take, None)

    async def close(self) -> None:
        """Stop serving; jobs go on with what they have."""
        if self._listener is not None:
            self._listener.close()
        self._closes = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._timer is not None:
            self._timer.cancel()

    # --- connections ------------------------------------------------------------------------------

    async def _connected(self, connection: socket.socket, peer: arbiter_socket.Peer) -> None:
        try:
            streams = await asyncio.open_unix_connection(sock=connection, limit=messages.MOST_BYTES)
            await self._converse(*streams, peer)
        finally:
            if self._listener is not None:
                self._listener.left(peer.uid)

    async def _converse(
        self, reader: StreamReader, writer: StreamWriter, peer: arbiter_socket.Peer
    ) -> None:
        process = processes.look(peer.pid)
        uid, hub = peer.uid, None
        try:
            user, groups = user_names.identify(uid, peer.gid, self._arbiter.uids)
            while line := await reader.readline():
                await self._turn(uid)
                began = time.thread_time()
                request = messages.request(line, user)
                if isinstance(request, messages.AskHold | JobHeld):
                    self._relay(request, hub)
                elif not isinstance(request, Demand):
                    asker = Asker(uid, user, groups)
                    _send(writer, self._answering.answer(self._now, request, asker))
                    await writer.drain()
                else:
                    if hub is None:
                        hub = request.hub
                        self._joins(hub, peer, process, groups, writer)
                    elif request.hub != hub:
                        raise ValueError("expected one hub on a connection")
                    self._heard[hub] = time.monotonic()
                    self.take(request)
                self._free_at[uid] += _PACE * (time.thread_time() - began)
        except (OSError, StorageError, ValueError) as error:  # also of a line without end
            with suppress(OSError):
                _send(writer, {"error": str(error)[:500]})
        finally:
            if hub is not None and self._hubs.get(hub) is writer:
                del self._hubs[hub]
                self._holds.pop(hub, None)
                self._heard.pop(hub, None)
                if not self._closes:
                    self.take(HubLeft(hub))
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    def _joins(
        self,
        hub: Hub,
        peer: arbiter_socket.Peer,
        process: Process | None,
        groups: frozenset[str],
        writer: StreamWriter,
    ) -> None:
        before = self._hubs.get(hub)
        if before is not None and before is not writer:
            before.close()  # the hub was started anew
        self._hubs[hub] = writer
        try:
            self._boxes.joins(hub, peer, process)
        except OSError as error:
            self._report(f"{hub.user} has no box: {error}")
        self.take(HubJoined(hub, groups, peer.uid))

    def _relay(self, request: messages.HubRequest, hub: Hub | None) -> None:
        """Pass a question about another user's job to the job's hub, or the answer back."""
        if hub is None:
            raise ValueError("expected a demand before it: only hubs hold jobs")
        if isinstance(request, JobHeld):
            if self._holds.get(request.by) == (request.number, hub):
                del self._holds[request.by]
                self._send_to([request.by], records.dump(request))
            return
        named = [
            job
            for job, grant in self._arbiter.room.grants.items()
            if (job.hub.user, grant.demand.name) == (request.user, request.name)
            and not grant.demand.private
        ]
        asked = [HoldAsked(job, hub, request.number, request.seconds) for job in named]
        if len(asked) == 1 and self._send_to([asked[0].job.hub], records.dump(asked[0])):
            self._holds[hub] = request.number, asked[0].job.hub
        else:
            why = f"{request.user} runs {len(asked) or 'no'} job of that name that can be asked"
            self._send_to([hub], records.dump(JobHeld(hub, request.number, why=why)))

    async def _turn(self, uid: int) -> None:
        """Wait until a user's requests so far have had their time."""
        now = time.monotonic()
        begin = max(self._free_at[uid], now)
        self._free_at[uid] = begin + _LINE_SECONDS
        if begin > now:
            await asyncio.sleep(begin - now)

    def _tell(self, action: ArbiterAction) -> None:
        match action:
            case JobTakenBack(job, act):
                self._record(act)
                self._tell_act(act, job.hub)
                return
            case ResourceGrant() | JobWaits() | JobIdles():
                hubs: Iterable[Hub] = (action.job.hub,)
            case UserPart(user):
                hubs = [hub for hub in self._hubs if hub.user == user]
            case _:
                return
        self._send_to(hubs, records.dump(action))

    def _record(self, act: Act) -> None:
        try:
            self._store.record(act)
        except StorageError as error:
            self._report(f"{error}; an act is not kept: {act}")

    def _tell_act(self, act: Act, hub: Hub | None) -> bool:
        """Tell an act to the hub of its job, or to all hubs that it concerns."""
        hubs = [hub] if hub is not None else list(self._hubs)
        return self._send_to((hub for hub in hubs if act.user in ("", hub.user)), records.dump(act))

    def _send_to(self, hubs: Iterable[Hub], message: dict[str, object]) -> bool:
        """Send a message. Returns whether any of the hubs is connected."""
        line, is_sent = _line(message), False
        for hub in hubs:
            writer = self._hubs.get(hub)
            if writer is None:
                continue
            if writer.transport.get_write_buffer_size() > _UNREAD_BYTES:
                writer.transport.abort()
            else:
                writer.write(line)
                is_sent = True
        return is_sent


def _send(writer: StreamWriter, message: dict[str, object]) -> None:
    writer.write(_line(message))


def _line(message: dict[str, object]) -> bytes:
    return json.dumps(message).encode() + b"\n"
