"""What tasks and nodes use, read every second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from headgate import events
from headgate.cluster import Node
from headgate.engines.base import Engine
from headgate.events import Event
from headgate.hub.ledger import Ledger
from headgate.telemetry.base import Target
from headgate.telemetry.round import Round, samplers

SAMPLE_SECONDS = 1.0
_NODE = "node:"


class Sampling:
    """Reads the samplers as long as there are runs.

    Args:
        ledger: Whose runs the readings are for.
        engine: Whose tasks are read.
        node: This machine.
        step: Tells the controller.
    """

    def __init__(self, ledger: Ledger, engine: Engine, node: Node, step: Callable[[Event], None]) -> None:
        self._ledger = ledger
        self._engine = engine
        self._node = node
        self._step = step
        self._round = Round(samplers(ledger.trouble), ledger.trouble)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin, unless it goes on already."""
        if self._timer is None:
            self._sample()

    def close(self) -> None:
        """Read no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _sample(self) -> None:
        runs = self._ledger.runs
        if not runs:
            self._timer = None
            self._round.read(time.monotonic(), [])  # lets go of the files of what is gone
            return
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_SECONDS, self._sample)
        targets = {task: Target(task, box) for task, box in self._engine.boxes().items()}
        for run in runs.values():
            for node in (self._node, *run.submission.nodes):
                targets[_NODE + node.name] = Target(_NODE + node.name, None, node.place)
        readings = self._round.read(time.monotonic(), list(targets.values()))
        for run in runs.values():
            for node in (self._node, *run.submission.nodes):
                if (reading := readings.get(_NODE + node.name)) is not None:
                    run.record_usage(_NODE + node.name, reading)
        for id, reading in readings.items():
            if id.startswith(_NODE) or id.split("/")[0] not in runs:
                continue
            run, live = self._ledger.find(id)
            run.record_usage(id.split("/", 1)[1], reading)
            name = id.rsplit("/", 1)[1]
            if live.current is not None and name in live.current.tasks:
                live.current.tasks[name].usage = reading
            if "cpu_cores" in reading and "memory_bytes" in reading:
                self._step(events.Usage(id, reading["cpu_cores"], reading["memory_bytes"]))
