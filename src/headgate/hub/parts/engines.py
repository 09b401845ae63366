"""The engines of a hub: that of its machine and, while a run uses them, those of clusters."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from headgate import engines
from headgate.cluster import Cluster, Node
from headgate.engines.base import LOCAL, Engine, EngineSpec, Listener
from headgate.errors import HeadgateError
from headgate.events import Exit
from headgate.hub.parts.nodes import Nodes
from headgate.hub.state.live_runs import LiveRuns
from headgate.identifiers import TaskId
from headgate.profiling import calibration
from headgate.telemetry.columns import Column

Usage = Callable[[EngineSpec, str, Mapping[Column, float]], None]


class Engines:
    """Opens an engine when the first run names it, and closes it when no run uses it any more.

    Args:
        home: Headgate's folder.
        local: The engine of this machine, made and not yet open.
        listener: Whom the engines tell of tasks.
        usage: Told on the loop what the tasks and nodes of an engine used that are not on this machine.
        nodes: Told of the nodes of engines.
        live_runs: The runs that use engines.
    """

    def __init__(
        self, home: Path, local: Engine, listener: Listener, usage: Usage, nodes: Nodes, live_runs: LiveRuns
    ) -> None:
        self._home = home
        self._open: dict[EngineSpec, Engine] = {LOCAL: local}
        self._listener = listener
        self._usage = usage
        self._nodes = nodes
        self._live_runs = live_runs
        self._handed_in: Counter[EngineSpec] = Counter()
        self._turns: dict[EngineSpec, asyncio.Lock] = {}
        local.open(listener)

    def of(self, run: str) -> Engine:
        """The engine of a run."""
        return self._open[self.spec_of(run)]

    def spec_of(self, run: str) -> EngineSpec:
        """Which engine that is."""
        return self._live_runs.runs[run].submission.engine

    @asynccontextmanager
    async def opened(self, spec: EngineSpec) -> AsyncIterator[Engine]:
        """The engine of a submission, open for as long as it takes to hand that in; if no run uses it then, it is
        closed.

        Raises:
            HeadgateError: It cannot be opened.
        """
        self._handed_in[spec] += 1
        try:
            async with self._turn(spec):
                await self._renew(spec)
                if spec not in self._open:
                    await self._start(spec)
            yield self._open[spec]
        finally:
            self._handed_in[spec] -= 1
            await self.release()

    async def release(self) -> None:
        """Close the engines that no run uses, other than that of this machine."""
        for spec in list(self._open):
            async with self._turn(spec):
                if spec == LOCAL or self._is_used(spec) or spec not in self._open:
                    continue
                await self._end(spec)

    async def close(self) -> None:
        """Kill what runs; no engine is open afterwards but in name."""
        await asyncio.gather(*(asyncio.to_thread(engine.close) for engine in self._open.values()))

    async def _renew(self, spec: EngineSpec) -> None:
        """Close an engine whose cluster is gone, so that it is opened again.

        Raises:
            HeadgateError: Jobs have not ended yet that ran there.
        """
        if spec == LOCAL or spec not in self._open or self._open[spec].cluster().nodes:
            return
        if any(run.submission.engine == spec for run in self._live_runs.runs.values()):
            raise HeadgateError(f"the cluster of engine {spec} is gone, and jobs that ran there are ending; try again")
        await self._end(spec)

    async def _end(self, spec: EngineSpec) -> None:
        engine = self._open.pop(spec)
        self._nodes.drop(spec)
        await asyncio.to_thread(engine.close)

    async def _start(self, spec: EngineSpec) -> None:
        engine = engines.make(spec, self._home)
        try:
            heard = _Heard(spec, self._listener, self._usage, self._nodes, partial(self._measured, engine))
            await asyncio.to_thread(engine.open, heard)
        except HeadgateError:
            raise
        except Exception as error:  # another package's code
            raise HeadgateError(f"engine {spec} could not be opened: {error!r:.300}") from error
        try:
            self._nodes.add(spec, self._measured(engine))
        except HeadgateError:
            await asyncio.to_thread(engine.close)
            raise
        self._open[spec] = engine

    def _measured(self, engine: Engine) -> Cluster:
        """The nodes of an engine, with what `headgate calibrate` measured of them."""
        name = engine.called()
        return calibration.known(name, engine.cluster(), self._home) if name else engine.cluster()

    def _turn(self, spec: EngineSpec) -> asyncio.Lock:
        return self._turns.setdefault(spec, asyncio.Lock())

    def _is_used(self, spec: EngineSpec) -> bool:
        return self._handed_in[spec] > 0 or any(run.submission.engine == spec for run in self._live_runs.runs.values())


class _Heard(Listener):
    """What one engine tells, from its threads."""

    def __init__(
        self, spec: EngineSpec, listener: Listener, usage: Usage, nodes: Nodes, measured: Callable[[], Cluster]
    ) -> None:
        self._spec = spec
        self._listener = listener
        self._told_usage = usage
        self._nodes = nodes
        self._measured = measured
        self._loop = asyncio.get_running_loop()

    def started(self, task: TaskId, pid: int) -> None:
        self._listener.started(task, pid)

    def output(self, task: TaskId, lines: Sequence[str]) -> None:
        self._listener.output(task, lines)

    def message(self, task: TaskId, message: Mapping[str, object]) -> None:
        self._listener.message(task, message)

    def exited(self, task: TaskId, exit: Exit) -> None:
        self._listener.exited(task, exit)

    def warned(self, task: TaskId | None, text: str) -> None:
        self._listener.warned(task, text)

    def waits(self, task: TaskId, what: str) -> None:
        self._listener.waits(task, what)

    def usage(self, target: str, reading: Mapping[Column, float]) -> None:
        self._loop.call_soon_threadsafe(self._told_usage, self._spec, target, reading)

    def joined(self, node: Node) -> None:
        node = next((each for each in self._measured().nodes if each.name == node.name), node)
        self._loop.call_soon_threadsafe(self._nodes.came, self._spec, node)

    def left(self, name: str, reason: str, for_good: bool = False) -> None:
        self._loop.call_soon_threadsafe(self._nodes.went, self._spec, name, reason, for_good)
