"""An agent on a machine that users share: it asks the arbiter there before tasks start."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from headgate.arbiter import asking
from headgate.arbiter.acts import Act, ActKind
from headgate.arbiter.events import JobIdles
from headgate.arbiter.records import (
    Demand,
    Hub,
    JobDemand,
    JobWaits,
    ResourceGrant,
    Resumes,
    Span,
    UserPart,
)
from headgate.engines.base import Slot
from headgate.engines.remote.wire import Event, Granted, Joined, ReservationWaits, Warned
from headgate.hub.arbiter_link import ArbiterLink, Heard
from headgate.machine import arbiter_socket
from headgate.model.cluster import Node
from headgate.model.identifiers import TaskId
from headgate.model.reasons import Reason, ReasonKind
from headgate.model.shortage_text import shortage_in_words

_LEAST_CORES = 0.1


@dataclass(slots=True)
class _TaskParts:
    """What tasks of a job take here.

    Args:
        slots: The part of each task.
        is_granted: They may start.
        begun: When they might (monotonic seconds).
    """

    slots: dict[TaskId, Slot]
    is_granted: bool = False
    begun: float | None = None

    def demand(self, key: str) -> JobDemand:
        """The same as the arbiter is asked for it: all tasks together."""
        slots = self.slots.values()
        return JobDemand(
            key,
            sum(slot.cores for slot in slots),
            1,
            sum(slot.memory_bytes or 0 for slot in slots),
            sum(slot.gpus for slot in slots),
            left=self._left(),
            name=next(iter(self.slots)).job.name,
            private=any(slot.private for slot in slots),
            resumes=Resumes.NO,
        )

    def _left(self) -> Span | None:
        """Seconds that are left of the job, as was expected when it asked; None: not known."""
        takes = next((slot.takes for slot in self.slots.values()), None)
        if takes is None:
            return None
        past = time.monotonic() - self.begun if self.begun is not None else 0.0
        return Span(*(max(seconds - past, 0.0) for seconds in takes))


class NodeSharing:
    """Keeps the accounts of a node by its arbiter. Without one, all tasks may start at once.

    Args:
        node: The node.
        tell: Takes events to the hub.
        stop: Ends a task.
    """

    def __init__(
        self, node: Node, tell: Callable[[Event], None], stop: Callable[[TaskId], None]
    ) -> None:
        self._node, self._tell, self._stop = node, tell, stop
        self._parts: dict[str, _TaskParts] = {}
        self._cores = node.cores
        self._hub = Hub("", secrets.token_hex(8))
        self._trouble: str | None = None
        self._loop = asyncio.new_event_loop()
        self._link = ArbiterLink(
            arbiter_socket.path(),
            self._demand,
            self._shared,
            self._hear,
            self._troubled,
            lambda _, error: traceback.print_exception(error),
        )
        self._thread = threading.Thread(target=self._run, name="arbiter", daemon=True)

    @classmethod
    def start(
        cls, node: Node, tell: Callable[[Event], None], stop: Callable[[TaskId], None]
    ) -> NodeSharing:
        """Begin to look for an arbiter."""
        sharing = cls(node, tell, stop)
        sharing._thread.start()
        return sharing

    # --- what the hub asks for; any thread --------------------------------------------------------

    def reserve(self, key: str, slots: Mapping[TaskId, Slot]) -> None:
        """Have tasks wait for their part; `Granted` tells that they may start."""
        self._loop.call_soon_threadsafe(self._reserve, key, dict(slots))

    def release(self, key: str, tasks: Collection[TaskId]) -> None:
        """Give back what tasks have, or what they still wait for."""
        self._loop.call_soon_threadsafe(self._release, key, tuple(tasks))

    def close(self) -> None:
        """Give everything back."""
        closed = Future[None]()
        self._loop.call_soon_threadsafe(self._close, closed)
        closed.result()
        self._thread.join()

    # --- on the loop ------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.call_soon(self._link.start)
        self._loop.run_forever()
        self._loop.close()

    def _close(self, closed: Future[None]) -> None:
        self._link.close()  # whoever hangs up gives back all that no process holds
        self._loop.stop()
        closed.set_result(None)

    def _reserve(self, key: str, slots: dict[TaskId, Slot]) -> None:
        self._parts[key] = _TaskParts(slots)
        if self._link.is_shared:
            self._link.changed()
        else:
            self._grant(key, ())

    def _release(self, key: str, tasks: tuple[TaskId, ...]) -> None:
        part = self._parts.get(key)
        if part is None:
            return
        for task in tasks:
            part.slots.pop(task, None)
        if not part.slots:
            del self._parts[key]
        self._link.changed()

    def _grant(self, key: str, gpus: tuple[int, ...]) -> None:
        part = self._parts[key]
        part.is_granted, part.begun = True, time.monotonic()
        names = iter(map(str, gpus))
        of_tasks = {
            task: tuple(name for _, name in zip(range(slot.gpus), names, strict=False))
            for task, slot in part.slots.items()
        }
        self._tell(Granted(key, {task: names for task, names in of_tasks.items() if names}))
        self._link.changed()

    def _demand(self) -> Demand:
        stated = {key: part.demand(key) for key, part in self._parts.items()}
        waiting = [stated[key] for key, part in self._parts.items() if not part.is_granted]
        running = [stated[key] for key, part in self._parts.items() if part.is_granted]
        return Demand(self._hub, tuple(waiting), tuple(running))

    # --- what the arbiter says --------------------------------------------------------------------

    def _shared(self, is_shared: bool) -> None:
        if not is_shared:
            self._resize(self._node.cores)
            for key, part in self._parts.items():
                if not part.is_granted:
                    self._grant(key, ())

    def _hear(self, heard: Heard) -> None:
        match heard:
            case ResourceGrant(job) if job.id in self._parts:
                if not self._parts[job.id].is_granted:
                    self._grant(job.id, heard.gpus)
            case UserPart():
                self._resize(heard.hub_cores.get(self._hub.name, heard.cores))
            case JobWaits(job, why):
                if job.id in self._parts:
                    lacks = {"kind": "grant", "node": self._node.name, "why": str(why)}
                    self._tell(ReservationWaits(job.id, f"for {shortage_in_words(lacks)}"))
            case JobIdles(job):
                self._order(job.id, asking.idles(heard), stops=heard.ends)
            case Act(kind=ActKind.TAKE_BACK):
                self._order(heard.job, asking.gives_back(heard), stops=heard.ends)
            case Act(by=by, kind=kind, job=id):
                reason = Reason.of(ReasonKind.ADMINISTRATOR, by=by, act=str(kind))
                self._order(id, reason, stops=kind is ActKind.STOP)

    def _order(self, key: str, reason: Reason, stops: bool) -> None:
        """Tell the tasks of a job, and end them if so ordered; without a job, tell the hub."""
        tasks = self._parts[key].slots if key in self._parts else ()
        for task in tasks or ((None,) if not key else ()):
            self._tell(Warned(task, reason))
            if stops and task is not None:
                self._stop(task)

    def _resize(self, cores: float) -> None:
        """Tell the hub which part of this node is its user's."""
        cores = min(max(round(cores, 1), _LEAST_CORES), self._node.cores)
        if cores != self._cores:
            self._cores = cores
            self._tell(Joined(replace(self._node, cores=cores)))

    def _troubled(self, trouble: str | None) -> None:
        if trouble is not None and trouble != self._trouble:
            self._tell(Warned(None, Reason.of(ReasonKind.ARBITER_AWAY, text=trouble)))
        self._trouble = trouble
