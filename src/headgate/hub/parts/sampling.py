"""What tasks and nodes use: on this machine read every second, elsewhere told by their engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from headgate import events
from headgate.cluster import Node
from headgate.engines.base import LOCAL, Engine, EngineSpec
from headgate.events import Action, Event
from headgate.hub.state.live_runs import Component, LiveRuns
from headgate.hub.state.run import LiveRun
from headgate.identifiers import TaskId
from headgate.telemetry.base import Target
from headgate.telemetry.columns import Column
from headgate.telemetry.round import SamplingRound, samplers

SAMPLE_SECONDS = 1.0
_NODE = "node:"


class Sampling(Component):
    """Reads the samplers as long as there are runs.

    Args:
        live_runs: Whose runs the readings are for.
        engine: That of this machine, whose tasks are read.
        step: Tells the controller.
    """

    def __init__(self, live_runs: LiveRuns, engine: Engine, step: Callable[[Event], None]) -> None:
        self._live_runs = live_runs
        self._engine = engine
        self._step = step
        self._round = SamplingRound(samplers(live_runs.trouble), live_runs.trouble)
        self._timer: asyncio.TimerHandle | None = None

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        if isinstance(event, events.JobSubmitted) and self._timer is None:
            self._sample()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def told(self, engine: EngineSpec, target: str, reading: Mapping[Column, float]) -> None:
        """An engine says what a task, or a node of it, used."""
        if not target.startswith(_NODE):
            self._task(TaskId(target), reading)
            return
        name = target.removeprefix(_NODE)
        for run in self._live_runs.runs.values():
            if run.submission.engine == engine and any(node.name == name for node in run.nodes):
                run.record_usage(target, reading)

    def _sample(self) -> None:
        runs = self._live_runs.runs
        if not runs:
            self._timer = None
            self._round.read(time.monotonic(), [])  # lets go of the files of what is gone
            return
        self._timer = asyncio.get_running_loop().call_later(SAMPLE_SECONDS, self._sample)
        targets: dict[str, Target] = {task: Target(task, box) for task, box in self._engine.boxes().items()}
        of_runs: dict[str, list[tuple[LiveRun, Node]]] = {}
        for run in runs.values():
            for node in run.nodes if run.submission.engine == LOCAL else ():
                target = _target(node)
                targets[target.id] = target
                of_runs.setdefault(target.id, []).append((run, node))
        for id, reading in self._round.read(time.monotonic(), list(targets.values())).items():
            if id not in of_runs:
                self._task(TaskId(id), reading)
            for run, node in of_runs.get(id, ()):
                run.record_usage(_NODE + node.name, reading)

    def _task(self, id: TaskId, reading: Mapping[Column, float]) -> None:
        if id.run not in self._live_runs.runs:
            return
        run, live = self._live_runs.find(id)
        run.record_usage(id.of_run, reading)
        if live.current is not None and id.name in live.current.tasks:
            live.current.tasks[id.name].usage = reading
        if "cpu_cores" in reading and "memory_bytes" in reading:
            disk = reading.get("disk_read", 0.0) + reading.get("disk_write", 0.0)
            network = reading.get("net_in", 0.0) + reading.get("net_out", 0.0)
            self._step(events.Usage(id, reading["cpu_cores"], reading["memory_bytes"], disk, network))


def _target(node: Node) -> Target:
    """A node of this machine; that itself with the GPUs that a run's environment allows, which differ between runs."""
    if node.place is not None:
        return Target(_NODE + node.name, None, node.place)
    gpus = tuple(gpu.index for gpu in node.gpus)
    return Target(f"{_NODE}{node.name} {gpus}", None, gpus=gpus)
