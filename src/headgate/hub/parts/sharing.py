"""The hub on a machine that users share: states its jobs to the arbiter, and hears its grants."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from headgate.arbiter import asking
from headgate.arbiter.acts import Act, ActKind
from headgate.arbiter.events import JobIdles
from headgate.arbiter.records import (
    VERSION,
    Demand,
    Hub,
    JobWaits,
    ResourceGrant,
    UserPart,
    WaitKind,
)
from headgate.controller.core import Controller
from headgate.controller.records import JobRecord
from headgate.hub.parts import Component
from headgate.hub.parts.forecasting import Forecasting
from headgate.hub.state.run import REST
from headgate.hub.state.runs import LiveRuns
from headgate.machine import arbiter_socket
from headgate.model import records
from headgate.model.actions import Action
from headgate.model.cluster import Node
from headgate.model.events import Event, JobSubmitted, MachineShared, NodeJoined, StopRequested
from headgate.model.identifiers import JobId
from headgate.model.reasons import Reason, ReasonKind

_AGAIN_SECONDS = 1.0
"""The arbiter is sought again after so long."""
_GONE_SECONDS = 30.0
"""A hub is on its own again once the arbiter has been gone, with its socket, for so long."""
_SOON_SECONDS = 0.05
"""Events of this time are stated together."""
_REPEAT_SECONDS = 5.0
_MOST_BYTES = 1 << 24
_LEAST_CORES = 0.1
_HEARD: Mapping[str, type[Any]] = {
    kind.__name__: kind for kind in (ResourceGrant, UserPart, JobWaits, JobIdles, Act)
}


def name(folder: Path) -> str:
    """What tells a hub from others of its user, and not where its folder is."""
    return hashlib.blake2b(os.fsencode(folder.resolve()), digest_size=8).hexdigest()


def stated(hub: str, node: Node, controller: Controller, forecasting: Forecasting) -> Demand:
    """What a hub states.

    Args:
        hub: Its name.
        node: This machine.
        controller: Its controller.
        forecasting: What is left of its jobs.
    """

    def cores(job: JobRecord) -> float:
        """All cores, or those for its part of the GPUs, where nobody knows better."""
        most, known = job.spec.limits.cores, forecasting.cores(job.id) or job.needed_cores()
        if known is None:
            gpus = (job.spec.limits.gpus or 0) * len(job.planned().worker_nodes)
            known = (
                node.cores * min(gpus / len(node.gpus), 1.0) if gpus and node.gpus else node.cores
            )
        return min(known, node.cores if most is None else most)

    return asking.demand(Hub("", hub), controller, cores, forecasting.left)


class MachineSharing(Component):
    """Asks the arbiter of this machine before jobs start, once there is one.

    While the arbiter is away, jobs go on with what they have, and no other starts.

    Args:
        socket: The arbiter's socket; None: there is to be none. One that is not root's is not
            trusted.
        node: This machine.
        demand: What the hub states.
        step: Takes events to the controller.
        live_runs: The runs that are told of what is wrong with the arbiter.

    Attributes:
        is_shared: The arbiter says when jobs start.
    """

    def __init__(
        self,
        socket: Path | None,
        node: Node,
        demand: Callable[[], Demand],
        step: Callable[[Event], None],
        live_runs: LiveRuns,
    ) -> None:
        self._socket, self._node, self._demand, self._step = socket, node, demand, step
        self._live_runs = live_runs
        self.is_shared = False
        self._part: UserPart | None = None
        self._cores, self._name = node.cores, ""
        self._seen_at = 0.0
        self._trouble: Reason | None = None
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

    def tell(self) -> None:
        """Tell a new controller whether users share the machine, and which part of it is theirs."""
        if self.is_shared:
            self._step(MachineShared(True, self._node.name))
            self._resize()

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, JobSubmitted) and self._trouble is not None:
            run = self._live_runs.find(event.job)[0]
            self._live_runs.event(run, "warning", self._trouble, event.job.name)
        if self._writer is not None:
            self._state_within(max(_SOON_SECONDS, self._rest_seconds))

    def close(self) -> None:
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
            self.is_shared, self._part = is_shared, None
            self._step(MachineShared(is_shared, self._node.name))
            self._resize()
        return is_there

    async def _seek(self) -> None:
        while True:
            try:
                if self._look():
                    await self._converse()
            except (OSError, ValueError) as error:
                self._tell_runs(Reason.of(ReasonKind.ARBITER_AWAY, text=str(error)))
            except Exception as error:  # noqa: BLE001  # the next message may make sense
                self._live_runs.failed("Headgate met an error and asks the arbiter again", error)
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
        self._trouble = None
        kind = message.get(records.TYPE)
        if kind not in _HEARD:
            return
        match records.load(message, _HEARD):
            case ResourceGrant() as grant if grant.job.id in self._asked:
                self._step(asking.granted(grant))
            case UserPart() as part:
                self._part = part
                self._resize()
            case JobWaits(job, why):
                self._waits(asking.job_of(job.id), why)
            case JobIdles(job, since, ends):
                idles = Reason.of(ReasonKind.HOLDS_IDLE_GPUS, since=since, ends=ends or None)
                self._tell_job(asking.job_of(job.id), idles, stops=ends)
            case Act() as act:
                self._ordered(act)

    def _ordered(self, act: Act) -> None:
        """An administrator has done something with a job, with this user, or with the machine."""
        reason = Reason.of(ReasonKind.ADMINISTRATOR, by=act.by, act=str(act.kind))
        if act.job:
            self._tell_job(asking.job_of(act.job), reason, stops=act.kind is ActKind.STOP)
        else:
            self._live_runs.tell_all(reason)

    def _tell_job(self, job: JobId, reason: Reason, stops: bool) -> None:
        """Tell a job's run, and stop the job if so ordered."""
        if job.run in self._live_runs.runs:
            self._live_runs.event(self._live_runs.runs[job.run], "warning", reason, job.name)
            if stops:
                self._step(StopRequested(job, reason=reason))

    def _waits(self, job: JobId, why: WaitKind) -> None:
        """Say of a job why it waits."""
        if job.run in self._live_runs.runs:
            run, live = self._live_runs.find(job)
            if live.state == "waiting":
                lacks = {"kind": "grant", "why": str(why)}
                live.reason, live.waits = Reason.of(ReasonKind.NEEDS_ROOM, lacks=lacks), lacks
                run.record_job(job.name)

    def _resize(self) -> None:
        """Have the controller divide this user's part of the machine."""
        cores = self._node.cores
        if self._part is not None:
            mine = self._part.hub_cores.get(self._name, self._part.cores)
            cores = min(max(round(mine, 1), _LEAST_CORES), cores)
        if cores != self._cores:
            self._cores = cores
            self._step(NodeJoined(replace(self._node, cores=cores)))

    def _tell_runs(self, trouble: Reason) -> None:
        """Tell the runs what is wrong, once."""
        if trouble != self._trouble:
            self._trouble = trouble
            self._live_runs.tell_all(trouble)

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
        self._name = demand.hub.name
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
