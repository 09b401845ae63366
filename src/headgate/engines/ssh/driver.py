"""The bridge of engine `ssh`: an agent on each machine, and reservations that take all or none."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from headgate.engines.base import Slot
from headgate.engines.remote.driver import AgentsDriver, HubLine
from headgate.engines.remote.link import AgentLink
from headgate.engines.remote.settings import Settings
from headgate.engines.remote.wire import (
    Granted,
    Impossible,
    Joined,
    Open,
    Opened,
    Release,
    Report,
    Reserve,
)
from headgate.engines.ssh.agent import SshAgent, package
from headgate.model import log_levels
from headgate.model.cluster import Node
from headgate.model.errors import HeadgateError
from headgate.model.identifiers import TaskId
from headgate.model.shares import Uncontrolled

PATIENCE_SECONDS = 90.0
"""Silence after which an agent takes itself for cut off; `ssh` gives up before that."""
AGAIN_SECONDS = 15.0
"""A machine that is gone is tried again after so long."""
Answer = tuple[Node, tuple[Uncontrolled, ...]]


@dataclass(slots=True)
class _NodeReservation:
    """What tasks take on several machines. The machines are asked one after the other, in the order
    of their names: two jobs that ask like that never wait for each other in a circle.
    """

    slots: dict[TaskId, Slot]
    asked: list[str] = field(default_factory=list)
    gpus: dict[TaskId, tuple[str, ...]] = field(default_factory=dict)

    def of(self, name: str) -> dict[TaskId, Slot]:
        """What tasks take on a machine."""
        return {task: slot for task, slot in self.slots.items() if slot.node == name}

    def next(self) -> str | None:
        """The next machine to ask; None: all tasks have what they take."""
        return min({slot.node for slot in self.slots.values()} - set(self.asked), default=None)


class SshDriver(AgentsDriver):
    """Puts agents on machines, and carries out the hub's requests.

    Args:
        line: To the hub.
        hosts: The machines, as `ssh` takes them.
        wanted: What the hub asks for.
    """

    def __init__(self, line: HubLine, hosts: Sequence[str], wanted: Open) -> None:
        super().__init__(line)
        self._hosts, self._wanted = tuple(hosts), wanted
        self._package = package()
        self._archives: dict[str, bytes] = {}
        self._open: dict[str, _NodeReservation] = {}

    def open(self) -> Opened:
        """Put an agent on each machine.

        Raises:
            HeadgateError: One does not answer.
        """
        opened, troubles = self._welcome(self._hosts)
        if troubles:
            raise HeadgateError("; ".join(troubles))
        threading.Thread(target=self._renew, name="ssh-again", daemon=True).start()
        limits = tuple(dict.fromkeys(limit for _, limits in opened for limit in limits))
        head = hashlib.sha256(",".join(self._hosts).encode()).hexdigest()[:12]
        nodes = tuple(node for node, _ in opened)
        return Opened(self._wanted.address, head, nodes, limits)

    def _end(self) -> None:
        """Nothing to do: the machines go on without Headgate."""

    # --- machines ---------------------------------------------------------------------------------

    def _welcome(self, hosts: Sequence[str]) -> tuple[list[Answer], list[str]]:
        """Put agents on machines, all at once. Return those that answer, and why others do not."""
        with ThreadPoolExecutor(max(len(hosts), 1)) as pool:
            answers = list(pool.map(self._start, hosts))
        opened = [answer for answer in answers if not isinstance(answer, str)]
        return opened, [answer for answer in answers if isinstance(answer, str)]

    def _start(self, host: str) -> Answer | str:
        settings = Settings(
            engine="ssh",
            name=host.rpartition("@")[2],
            address="",
            cores=None,
            memory_bytes=0,
            gpus=None,
            kind="",
            shared=self._wanted.shared,
            speeds=self._wanted.speeds,
            patience_seconds=PATIENCE_SECONDS,
            log=os.environ.get(log_levels.VARIABLE, ""),
        )
        agent = SshAgent(host, self._package, settings, f"{socket.gethostname()}-{os.getpid()}")
        archive = None if self._wanted.shared else self._archive
        link = AgentLink(
            settings.name,
            host,
            agent,
            self._tell,
            archive,
            self._files,
            self._gone,
            PATIENCE_SECONDS,
        )
        try:
            answer = link.open()
        except HeadgateError as error:
            agent.kill()
            return str(error)
        with self._lock:
            self._links[link.name] = link
        return answer

    def _archive(self, folder: str) -> bytes:
        with self._lock:
            if folder not in self._archives:
                self._archives[folder] = self._files.pack(folder)
            return self._archives[folder]

    def _gone(self, link: AgentLink) -> None:
        with self._lock:
            if self._links.get(link.name) is link:
                del self._links[link.name]
        link.kill()

    def _renew(self) -> None:
        """Try machines again that are gone."""
        while not self._ending.wait(AGAIN_SECONDS):
            gone = [host for host in self._hosts if host.rpartition("@")[2] not in self._links]
            for node, _ in self._welcome(gone)[0] if gone else ():
                self._pipe.send(Joined(node))

    # --- reservations -----------------------------------------------------------------------------

    def _reserve(self, request: Reserve | Release) -> None:
        match request:
            case Reserve(key, slots):
                self._open[key] = _NodeReservation(dict(slots))
                self._go_on(key)
            case Release(key, tasks):
                self._release(key, tasks)

    def _go_on(self, key: str) -> None:
        """Ask the next machine, or tell the hub that its tasks may start."""
        with self._lock:
            reservation = self._open.get(key)
            name = reservation.next() if reservation is not None else None
            if reservation is None or name is None:
                granted = None if reservation is None else Granted(key, dict(reservation.gpus))
                slots: Mapping[TaskId, Slot] = {}
            else:
                granted = None
                reservation.asked.append(name)
                slots = {
                    task: slot for task, slot in reservation.slots.items() if slot.node == name
                }
            link = self._links.get(name) if name is not None else None
        if granted is not None:
            self._pipe.send(granted)
        elif link is not None:
            link.do(Reserve(key, slots))
        elif name is not None:
            self._pipe.send(Impossible(key, f"node {name} is gone"))

    def _release(self, key: str, tasks: Collection[TaskId]) -> None:
        with self._lock:
            reservation = self._open.get(key)
            if reservation is None:
                return
            nodes = {reservation.slots[task].node for task in tasks if task in reservation.slots}
            for task in tasks:
                reservation.slots.pop(task, None)
            if not reservation.slots:
                del self._open[key]
            links = [self._links[name] for name in nodes if name in self._links]
        for link in links:
            link.do(Release(key, tuple(tasks)))

    def _tell(self, report: Report) -> None:
        """Pass on what happens on a machine. A reservation goes on to the next one."""
        match report:
            case Granted(key, gpus):
                with self._lock:
                    if key in self._open:
                        self._open[key].gpus |= gpus
                self._go_on(key)
            case _:
                self._pipe.send(report)
