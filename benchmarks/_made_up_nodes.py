"""An engine whose nodes and tasks are made up: a hub with very many of them on a small machine.

Each task tells every `MADE_UP_EVERY` seconds how far it is, its loss and what it uses; real ones do
so once a second. The file that `MADE_UP_EVENTS` names has the events a second of all together.
"""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from headgate.engines.base import Engine, EngineSpec, Listener
from headgate.isolation.base import Box, Launch
from headgate.model.cluster import Cluster, Node
from headgate.model.endings import Exit
from headgate.model.identifiers import TaskId
from headgate.model.shares import Share

CORES, MEMORY = 16.0, 64 << 30
_TICKS = 20
"""A second."""


class MadeUpNodes(Engine):
    """Nodes that are not there.

    Args:
        spec: With the number of nodes as its address.
    """

    name = "made-up"

    def __init__(self, spec: EngineSpec) -> None:
        self._nodes = [f"node{number:02}" for number in range(int(spec.address))]
        self._tasks: dict[TaskId, float] = {}
        self._turns = int(_TICKS * float(os.environ["MADE_UP_EVERY"]))
        self._events = Path(os.environ["MADE_UP_EVENTS"])
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def open(self, listener: Listener) -> None:
        self._listener = listener
        self._thread.start()

    def cluster(self) -> Cluster:
        gigabit = 1.25e9
        return Cluster(
            tuple(
                Node(name, CORES, MEMORY, core_gflops=50.0, nic_bytes_per_second=gigabit)
                for name in self._nodes
            )
        )

    def start(self, launch: Launch, share: Share, log: str) -> None:
        Path(log).touch()
        self._listener.started(launch.task, os.getpid())
        self._tasks[launch.task] = time.monotonic()

    def set_share(self, task: TaskId, share: Share) -> None: ...

    def send(self, task: TaskId, message: Mapping[str, object]) -> None: ...

    def stop(self, task: TaskId, grace: float) -> None:
        if self._tasks.pop(task, None) is not None:
            self._listener.exited(task, Exit(code=None, signal=signal.SIGTERM))

    def boxes(self) -> Mapping[TaskId, Box]:
        return {}

    def close(self) -> None:
        for task in list(self._tasks):
            self.stop(task, 0.0)
        self._ending.set()
        self._thread.join()

    # --- what its tasks and nodes tell ------------------------------------------------------------

    def _run(self) -> None:
        draw, due = random.Random(0), 0.0
        for tick in self._ticks():
            tasks = list(self._tasks.items())
            for task, began in tasks[tick % self._turns :: self._turns]:
                self._tell(task, time.monotonic() - began, draw)
            for node in self._nodes[tick % self._turns :: self._turns]:
                used = {"cpu_cores": draw.uniform(4, CORES), "memory_bytes": 2e10 * draw.random()}
                traffic = {"net_in": 1e8 * draw.random(), "net_out": 1e8 * draw.random()}
                self._listener.usage(f"node:{node}", {**used, **traffic})  # type: ignore[dict-item]
            due = due + float(self._events.read_text() or 0) / _TICKS if tasks else 0.0
            for _ in range(int(due)):
                note = {"type": "note", "text": f"made up: {draw.random():.6f}", "warns": True}
                self._listener.message(draw.choice(tasks)[0], note)
            due %= 1.0

    def _ticks(self) -> Iterator[int]:
        tick, began = 0, time.monotonic()
        while not self._ending.wait(max(began + tick / _TICKS - time.monotonic(), 0.0)):
            tick += 1
            yield tick

    def _tell(self, task: TaskId, age: float, draw: random.Random) -> None:
        step = int(10 * age)
        loss = 0.2 + math.exp(-age / 300) * (1 + 0.05 * draw.random())
        progress = {"step": step, "epoch": step // 600, "epochs": 100, "loss": loss}
        metrics = {"accuracy": 1 - loss / 2}
        self._listener.message(task, {"type": "progress", **progress, "metrics": metrics})
        used = {"cpu_cores": draw.uniform(0.5, 1.5), "memory_bytes": 1e9 * (1 + draw.random())}
        waited = {"cpu_waiting": draw.uniform(0.0, 0.6), "cpu_ready": 0.95, "cpu_throttled": 0.0}
        self._listener.usage(task, used | waited)  # type: ignore[arg-type]
