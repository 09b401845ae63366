"""The bridge's part that every cluster has: it carries out the hub's requests on the agents."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from typing import Protocol

from headgate.engines.remote import files
from headgate.engines.remote.far_files import FarFiles
from headgate.engines.remote.link import AgentLink
from headgate.engines.remote.wire import (
    Answered,
    Ask,
    Close,
    EndTask,
    Release,
    Report,
    Request,
    Reserve,
    Returned,
    To,
)

ORPHANED_SECONDS = 10.0
"""How long tasks have to save a checkpoint once the hub is gone."""


class HubLine(Protocol):
    """The bridge's end of the way to the hub."""

    def send(self, what: Report, /) -> None:
        """Send a report. If the hub is gone, it is lost."""

    def receive(self) -> Request | Report | None:
        """The next request; None if the hub is gone."""


class AgentsDriver(ABC):
    """Does what the hub asks for, until the hub or the cluster is gone.

    Args:
        pipe: To the hub.
        far: The hub's files, for a driver that does not see them; None: it does.
    """

    def __init__(self, pipe: HubLine, far: FarFiles | None = None) -> None:
        self._pipe = pipe
        self._far = far
        self._files: files.Files = far or files.Files()
        self._links: dict[str, AgentLink] = {}
        self._lock = threading.Lock()
        self._ending = threading.Event()

    def serve(self) -> None:
        """Do what the hub asks for, until it closes the bridge or is gone."""
        while (request := self._pipe.receive()) is not None:
            match request:
                case To(node, command):
                    if (link := self._links.get(node)) is not None:
                        link.do(command)
                case Reserve() | Release():
                    self._reserve(request)
                case Ask(number, node):
                    if (link := self._links.get(node)) is not None:
                        threading.Thread(target=link.ask, args=(request,), daemon=True).start()
                    else:
                        self._pipe.send(Returned(number, None, f"node {node} is gone"))
                case Answered() if self._far is not None:
                    self._far.answered(request)
                case Close():
                    break
        if request is None:
            if self._far is not None:
                self._far.gone()
            self._orphaned()
        elif self._far is not None:
            threading.Thread(target=self._take_answers, args=(self._far,), daemon=True).start()
        self.close()

    def close(self) -> None:
        """End every task and agent, and give everything back."""
        self._ending.set()
        closing = [threading.Thread(target=link.close) for link in list(self._links.values())]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join()
        self._end()

    @abstractmethod
    def _reserve(self, request: Reserve | Release) -> None:
        """Reserve what tasks take, or give it back; return at once."""

    @abstractmethod
    def _end(self) -> None:
        """Leave the cluster, once all agents are gone."""

    def _take_answers(self, far: FarFiles) -> None:
        """Take in what the hub still answers while everything ends."""
        while (answer := self._pipe.receive()) is not None:
            if isinstance(answer, Answered):
                far.answered(answer)
        far.gone()

    def _orphaned(self) -> None:
        """The hub is gone: let the tasks save what they have, as tasks on its own machine do."""
        links = list(self._links.values())
        for link in links:
            for task in list(link.running):
                link.do(EndTask(task, ORPHANED_SECONDS))
        deadline = time.monotonic() + ORPHANED_SECONDS + 5
        while any(link.running for link in links) and time.monotonic() < deadline:
            time.sleep(0.1)
