"""The connected bridge: it puts agents on the nodes, reserves, and carries out the hub's
requests.
"""

from __future__ import annotations

import math
import os
import pickle
import threading
from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from headgate.engines.ray import connect
from headgate.engines.ray.bootstrap import RayAgent, actor_class, package
from headgate.engines.ray.reservation import Reservations
from headgate.engines.remote.driver import ORPHANED_SECONDS, AgentsDriver
from headgate.engines.remote.far_files import FarFiles
from headgate.engines.remote.link import AgentLink
from headgate.engines.remote.pipe import Pipe
from headgate.engines.remote.settings import Settings
from headgate.engines.remote.wire import HERE, Joined, Open, Opened, Release, Reserve, Warned
from headgate.model import log_levels
from headgate.model.cluster import Node
from headgate.model.errors import HeadgateError, UsageError
from headgate.model.shares import Uncontrolled

LOOK_SECONDS = 1.0
"""How often the driver looks for new and lost nodes, and whether the head answers."""

HEAD_GONE_LOOKS = 5
"""The head counts as gone once it has not answered so many times in a row."""

MOST_DEATHS = 5
"""A node on which so many agents have died gets no more of them."""

PATIENCE_SECONDS = 90.0
"""Silence after which an agent takes itself for cut off, unless `HEADGATE_RAY_PATIENCE_SECONDS`
says otherwise. By default, Ray gives a node up after 64 s.
"""

_nodes: Callable[[], list[Mapping[str, Any]]] = ray.nodes
_HEAD = "node:__internal_head__"
_PLAIN = frozenset({"CPU", "GPU", "memory", "object_store_memory"})


class Driver(AgentsDriver):
    """Does what the hub asks for, until the hub or the cluster is gone.

    Args:
        pipe: To the hub.
        wanted: The cluster to connect to.
    """

    def __init__(self, pipe: Pipe, wanted: Open) -> None:
        far = FarFiles(pipe) if wanted.address == HERE else None
        super().__init__(pipe, far)
        self._wanted = wanted
        self._patience = _patience()
        self._package = package()
        self._agents = actor_class()
        self._reservations = Reservations(pipe.send)
        self._facts: dict[str, Mapping[str, Any]] = {}
        self._known: set[str] = set()
        self._deaths: dict[str, int] = {}
        self._headless = False
        self._archives: dict[str, Any] = {}

    def open(self, address: str) -> Opened:
        """Put an agent on every node, and describe the cluster.

        Raises:
            HeadgateError: No node takes an agent.
        """
        self._address = address
        opened, troubles = self._welcome(self._newcomers())
        if not opened:
            raise HeadgateError(
                "; ".join(troubles)
                or (
                    f"the Ray cluster at {address} has no node with a CPU; add one: ray start "
                    f"--address {address}"
                )
            )
        for trouble in troubles:
            self._pipe.send(Warned(None, trouble))
        threading.Thread(target=self._watch_cluster, name="nodes", daemon=True).start()
        uncontrolled = [limit for _, limits in opened for limit in limits]
        nodes = tuple(node for node, _ in opened)
        return Opened(address, self._head(), nodes, tuple(dict.fromkeys(uncontrolled)))

    def _reserve(self, request: Reserve | Release) -> None:
        match request:
            case Reserve(key, slots):
                with self._lock:
                    facts = dict(self._facts)
                self._reservations.reserve(key, slots, facts)
            case Release(key, tasks):
                self._reservations.release(key, tasks)

    def _end(self) -> None:
        self._reservations.close()
        ray.shutdown()

    # --- nodes ------------------------------------------------------------------------------------

    def _newcomers(self) -> list[Mapping[str, Any]]:
        """Nodes with a CPU that have no agent yet. Lost nodes are reported."""
        alive = {node["NodeID"]: node for node in _nodes() if node["Alive"]}
        for link in list(self._links.values()):
            if link.id not in alive:
                self._lose(link.name, "Ray's health check does not reach it")
        return [
            node
            for id, node in alive.items()
            if id not in self._known and node["Resources"].get("CPU", 0) > 0
        ]

    def _welcome(
        self, nodes: list[Mapping[str, Any]]
    ) -> tuple[list[tuple[Node, tuple[Uncontrolled, ...]]], list[str]]:
        """Put agents on nodes. Return the nodes that answer with what cannot be controlled there,
        and the reasons of the others.
        """
        links = []
        for facts in nodes:
            self._known.add(facts["NodeID"])
            links.append(self._start(facts))
        opened, troubles = [], []
        for link, facts in zip(links, nodes, strict=True):
            try:
                opened.append(link.open())
            except HeadgateError as error:
                troubles.append(str(error))
                continue
            with self._lock:
                self._links[link.name] = link
                self._facts[link.name] = facts
        return opened, troubles

    def _start(self, facts: Mapping[str, Any]) -> AgentLink:
        given = facts["Resources"]
        custom = [
            name
            for name in given
            if name not in _PLAIN and not name.startswith(("node:", "accelerator_type:"))
        ]
        settings = Settings(
            engine="ray",
            name=self._name(facts),
            address=facts["NodeManagerAddress"],
            cores=given["CPU"],
            memory_bytes=int(given.get("memory", 0)),
            gpus=int(given.get("GPU", 0)),
            kind=",".join(sorted(custom)),
            shared=self._wanted.shared,
            speeds=self._wanted.speeds,
            patience_seconds=self._patience,
            log=os.environ.get(log_levels.VARIABLE, ""),
        )
        where = NodeAffinitySchedulingStrategy(facts["NodeID"], soft=False)
        actor = self._agents.options(scheduling_strategy=where).remote(
            self._package, pickle.dumps(settings), str(os.getppid())
        )
        archive = None if self._wanted.shared else self._archive
        tell, gone = self._pipe.send, self._agent_gone
        agent = RayAgent(actor)
        return AgentLink(
            settings.name, facts["NodeID"], agent, tell, archive, self._files, gone, self._patience
        )

    def _head(self) -> str:
        """Address and port of the head; the port alone if Ray does not say which node it is."""
        heads = [
            str(node["NodeManagerAddress"])
            for node in _nodes()
            if node["Alive"] and _HEAD in node["Resources"]
        ]
        return f"{''.join(heads)}:{connect.split(self._address)[1]}"

    def _name(self, facts: Mapping[str, Any]) -> str:
        """Its host name, or its address if another node has the same host name."""
        name = str(facts["NodeManagerHostname"])
        alive = [node for node in _nodes() if node["Alive"] and node["NodeManagerHostname"] == name]
        if len(alive) == 1 and name not in self._links:
            return name
        address = str(facts["NodeManagerAddress"])
        return address if address not in self._links else f"{address}-{facts['NodeID'][:6]}"

    def _archive(self, folder: str) -> Any:
        with self._lock:
            if folder not in self._archives:
                self._archives[folder] = ray.put(self._files.pack(folder))
            return self._archives[folder]

    def _lose(self, name: str, reason: str) -> None:
        if (link := self._links.get(name)) is not None:
            link.lose(reason)

    def _agent_gone(self, link: AgentLink) -> None:
        """An agent is gone. If its node is still there, it gets another one."""
        with self._lock:
            if self._links.get(link.name) is link:
                del self._links[link.name]
                del self._facts[link.name]
            self._deaths[link.id] = self._deaths.get(link.id, 0) + 1
            if self._deaths[link.id] < MOST_DEATHS:
                self._known.discard(link.id)
        if not self._headless:
            link.kill()

    def _watch_cluster(self) -> None:
        """Watch which nodes come and go, and whether the head is there."""
        host, port = connect.split(self._address)
        silent = 0
        while not self._ending.wait(LOOK_SECONDS):
            silent = 0 if connect.answers(host, port, LOOK_SECONDS) else silent + 1
            if silent >= HEAD_GONE_LOOKS:
                self._give_up(f"the head of the Ray cluster at {self._address} is gone")
            if silent:
                continue  # Ray would wait for it
            opened, troubles = self._welcome(self._newcomers())
            for node, _ in opened:
                self._pipe.send(Joined(node))
            for trouble in troubles:
                self._pipe.send(Warned(None, trouble))

    def _give_up(self, reason: str) -> None:
        """End everything now: without a head, Ray ends every process of the cluster after a while,
        this one too.
        """
        self._headless = True  # nobody can be killed through Ray any more
        links = list(self._links.values())
        for link in links:
            self._lose(link.name, reason)
        closing = [threading.Thread(target=link.close, daemon=True) for link in links]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(ORPHANED_SECONDS)
        os._exit(1)


def _patience() -> float:
    """Seconds.

    Raises:
        UsageError: The variable is no number of 1 or more.
    """
    setting = os.environ.get("HEADGATE_RAY_PATIENCE_SECONDS", str(PATIENCE_SECONDS))
    try:
        seconds = float(setting)
    except ValueError:
        seconds = math.nan
    if not 1 <= seconds < math.inf:
        raise UsageError(
            f"found HEADGATE_RAY_PATIENCE_SECONDS={setting}; expected seconds, 1 or more"
        )
    return seconds
