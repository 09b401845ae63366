"""Looks after what runs stand on, which may go while their tasks run on: their folders, and the nodes of labs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from headgate.cluster import Node
from headgate.hub.component import Component
from headgate.hub.live_runs import LiveRuns
from headgate.hub.run import LiveRun
from headgate.runs import STORE
from headgate.telemetry import namespaces
from headgate.units import say_seconds

LOOK_SECONDS = 1.0


class HealthChecks(Component):
    """Looks every second, as long as there are runs.

    Args:
        live_runs: The runs.
        look_for_nodes: Finds out which nodes are gone.
    """

    def __init__(self, live_runs: LiveRuns, look_for_nodes: Callable[[], None]) -> None:
        self._live_runs = live_runs
        self._look_for_nodes = look_for_nodes
        self._cut_off: dict[tuple[str, str], float] = {}  # run and node, and since when on the run's clock
        self._vanished: set[str] = set()  # runs whose folder is gone, which was told
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, unless it goes on already."""
        if self._timer is None:
            self._look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        for run in self._live_runs.runs.values():
            self._look_at_folder(run)
        runs = [run for run in self._live_runs.runs.values() if run.submission.nodes]
        self._cut_off = {key: since for key, since in self._cut_off.items() if key[0] in self._live_runs.runs}
        self._vanished &= self._live_runs.runs.keys()
        if not self._live_runs.runs:
            return
        self._timer = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look)
        if not runs:
            return
        self._look_for_nodes()
        linked = {node.name: _linked(node) for run in runs for node in run.submission.nodes}  # a name is one node's
        for run in runs:
            for node in run.submission.nodes:
                self._compare(run, node.name, linked[node.name])

    def _look_at_folder(self, run: LiveRun) -> None:
        """Tell of a run whose folder somebody has deleted or moved: what it saves and records goes nowhere."""
        if run.id not in self._vanished and not os.path.exists(run.folder / STORE):
            self._vanished.add(run.id)
            self._live_runs.event(
                run,
                "warning",
                f"its folder {run.folder} is gone, with its records and checkpoints; nothing is kept from now on: "
                "stop it and run it again",
            )

    def _compare(self, run: LiveRun, node: str, linked: bool | None) -> None:
        key = run.id, node
        if linked is False and key not in self._cut_off:
            self._cut_off[key] = run.clock()
            self._tell(run, node, "fault", f"node {node} is cut off: its NIC has no link")
        elif linked and (since := self._cut_off.pop(key, None)) is not None:
            took = say_seconds(run.clock() - since)
            self._tell(run, node, "note", f"node {node} is no longer cut off, after {took}")

    def _tell(self, run: LiveRun, node: str, kind: str, text: str) -> None:
        """Tell the jobs that have a task there and another elsewhere, whom it may keep waiting."""
        for name, live in run.jobs.items():
            tasks = list(live.current.tasks.values()) if live.current is not None else []
            nodes = {task.node for task in tasks if task.state != "ended"}
            if node in nodes and len(nodes) > 1:
                self._live_runs.event(run, kind, text, name)


def _linked(node: Node) -> bool | None:
    """Whether a node's NIC has a link; None where that cannot be told."""
    if node.place is None:
        return None
    try:
        return namespaces.linked(node.place.namespace)
    except OSError:
        return None
