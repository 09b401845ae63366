"""The engines of a hub, and the resources that running attempts reserve on their nodes.

The engine of the hub's machine is always open, those of clusters while a run uses them.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from headgate import engines
from headgate.arbiter.records import Span
from headgate.engines.base import LOCAL, Engine, EngineSpec, Listener, Slot
from headgate.hub.parts import Component
from headgate.hub.parts.nodes import Nodes
from headgate.hub.state.runs import LiveRuns
from headgate.model.actions import Action, StartTask
from headgate.model.cluster import Cluster, Node
from headgate.model.endings import Exit
from headgate.model.errors import HeadgateError
from headgate.model.events import Event, MoveRequested, NodeJoined, TaskExited
from headgate.model.identifiers import JobId, TaskId
from headgate.model.plans import Plan
from headgate.model.reasons import Reason, ReasonKind
from headgate.planning.placement import place, place_within, unplaced
from headgate.profiling import calibration
from headgate.sampling.columns import Column

Usage = Callable[[EngineSpec, str, Mapping[Column, float]], None]


class Engines:
    """Opens an engine when the first run names it, and closes it after the last run that uses it.

    Args:
        home: Headgate's folder.
        local: The engine of this machine, not yet open.
        listener: Receives the engines' messages about tasks.
        usage: Called on the loop with resource use of an engine's remote tasks and nodes.
        nodes: Told of the nodes of engines.
        live_runs: The runs that use engines.
    """

    def __init__(
        self,
        home: Path,
        local: Engine,
        listener: Listener,
        usage: Usage,
        nodes: Nodes,
        live_runs: LiveRuns,
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
        """The engine specification of a run."""
        return self._live_runs.runs[run].submission.engine

    @asynccontextmanager
    async def opened(self, spec: EngineSpec) -> AsyncIterator[Engine]:
        """Open the engine of a submission until it is submitted. If no run uses it then, it is
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
        """Close the engines that no run uses, except that of this machine."""
        for spec in list(self._open):
            async with self._turn(spec):
                if spec == LOCAL or self._is_used(spec) or spec not in self._open:
                    continue
                await self._end(spec)

    async def close(self) -> None:
        """Kill what runs and close all engines."""
        await asyncio.gather(*(asyncio.to_thread(engine.close) for engine in self._open.values()))

    async def _renew(self, spec: EngineSpec) -> None:
        """Close an engine whose cluster is gone, so that it is opened again.

        Raises:
            HeadgateError: Its jobs have not ended yet.
        """
        if spec == LOCAL or spec not in self._open or self._open[spec].cluster().nodes:
            return
        if any(run.submission.engine == spec for run in self._live_runs.runs.values()):
            raise HeadgateError(
                f"the cluster of engine {spec} is gone, and jobs that ran there are "
                "ending; try again"
            )
        await self._end(spec)

    async def _end(self, spec: EngineSpec) -> None:
        engine = self._open.pop(spec)
        self._nodes.drop(spec)
        await asyncio.to_thread(engine.close)

    async def _start(self, spec: EngineSpec) -> None:
        engine = engines.make(spec, self._home)
        try:
            heard = _Heard(
                spec, self._listener, self._usage, self._nodes, partial(self._measured, engine)
            )
            await asyncio.to_thread(engine.open, heard)
        except HeadgateError:
            raise
        except Exception as error:  # code of another package
            raise HeadgateError(f"engine {spec} could not be opened: {error!r:.300}") from error
        try:
            self._nodes.add(spec, self._measured(engine))
        except HeadgateError:
            await asyncio.to_thread(engine.close)
            raise
        self._open[spec] = engine

    def _measured(self, engine: Engine) -> Cluster:
        """The nodes of an engine, with measurements of `headgate calibrate`."""
        name = engine.called()
        return calibration.known(name, engine.cluster(), self._home) if name else engine.cluster()

    def _turn(self, spec: EngineSpec) -> asyncio.Lock:
        return self._turns.setdefault(spec, asyncio.Lock())

    def _is_used(self, spec: EngineSpec) -> bool:
        return self._handed_in[spec] > 0 or any(
            run.submission.engine == spec for run in self._live_runs.runs.values()
        )


class _Heard(Listener):
    """Messages of one engine, from its threads."""

    def __init__(
        self,
        spec: EngineSpec,
        listener: Listener,
        usage: Usage,
        nodes: Nodes,
        measured: Callable[[], Cluster],
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

    def warned(self, task: TaskId | None, what: Reason | str) -> None:
        self._listener.warned(task, what)

    def waits(self, task: TaskId, what: str) -> None:
        self._listener.waits(task, what)

    def usage(self, target: str, reading: Mapping[Column, float]) -> None:
        self._loop.call_soon_threadsafe(self._told_usage, self._spec, target, reading)

    def joined(self, node: Node) -> None:
        node = next(
            (
                measured_node
                for measured_node in self._measured().nodes
                if measured_node.name == node.name
            ),
            node,
        )
        self._loop.call_soon_threadsafe(self._nodes.came, self._spec, node)

    def left(self, name: str, reason: str, for_good: bool = False) -> None:
        self._loop.call_soon_threadsafe(self._nodes.went, self._spec, name, reason, for_good)


class _Amount(NamedTuple):
    """Resources of a node."""

    cores: float
    memory_bytes: int
    gpus: int

    def less(self, other: _Amount, times: int = 1) -> _Amount:
        return _Amount(
            self.cores - times * other.cores,
            self.memory_bytes - times * other.memory_bytes,
            self.gpus - times * other.gpus,
        )


class TaskReservations(Component):
    """Reserves resources of tasks at their engines, and releases them.

    A task reserves the cores that its plan states, or its part of the job's limit. Tasks without
    either get equal parts of the rest of their node. They give back what they lose to a later task.

    Args:
        live_runs: The runs.
        engines: Engines that keep the reservations.
        nodes: Nodes of the engines.
        step: Sends an event to the controller when a job should move to a new node.
        left: Seconds that a job takes or has left; None: not known.
    """

    def __init__(
        self,
        live_runs: LiveRuns,
        engines: Engines,
        nodes: Nodes,
        step: Callable[[Event], None],
        left: Callable[[JobId], Span | None],
    ) -> None:
        self._left = left
        self._live_runs = live_runs
        self._engines = engines
        self._nodes = nodes
        self._step = step
        self._held: dict[JobId, dict[int, dict[TaskId, Slot]]] = {}  # by attempt

    def reserve(self, starts: Sequence[StartTask]) -> None:
        """Reserve for tasks that are about to start, all tasks of a job together. Tasks beside them
        first give back what they lose.
        """
        parts = self._parts(starts)
        for job, attempts in self._held.items():
            for attempt, held in attempts.items():
                most = {
                    task: parts.get((self._engines.spec_of(job.run), slot.node))
                    for task, slot in held.items()
                }
                cut = {
                    task: replace(held[task], cores=part)
                    for task, part in most.items()
                    if part is not None and part < held[task].cores and not self._states_cores(task)
                }
                self._set_aside(job, attempt, cut)
        wanted: dict[tuple[JobId, int], dict[TaskId, Slot]] = {}
        for start in starts:
            wanted.setdefault((start.job, start.attempt), {})[start.task] = self._slot(start, parts)
        for (job, attempt), slots in wanted.items():
            held = self._held.setdefault(job, {}).setdefault(attempt, {})
            self._set_aside(
                job, attempt, {task: slot for task, slot in slots.items() if held.get(task) != slot}
            )

    def _parts(self, starts: Iterable[StartTask]) -> dict[tuple[EngineSpec, str], float]:
        """Cores of each task without stated cores, by engine and node: equal parts of what the
        others leave. The policy's grants are not used, because they change.
        """
        sharing: dict[tuple[EngineSpec, str], int] = {}
        left: dict[tuple[EngineSpec, str], float] = {}
        attempts: dict[JobId, int] = {}
        for start in starts:
            place, stated = (self._engines.spec_of(start.job.run), start.node), _stated(start)
            attempts[start.job] = start.attempt
            sharing[place] = sharing.get(place, 0) + (stated is None)
            left[place] = left.get(place, 0.0) - (stated or 0.0)
        for job, held in self._held.items():
            for attempt, slots in held.items():
                for task, slot in slots.items():
                    place = self._engines.spec_of(job.run), slot.node
                    # the previous attempt has ended
                    if place in sharing and attempts.get(job, attempt) == attempt:
                        states = self._states_cores(task)
                        sharing[place] += not states
                        left[place] -= slot.cores if states else 0.0
        nodes = {place: self._nodes.get(*place) for place in sharing}
        return {
            place: _fraction(max(node.cores + left[place], 0.0) / sharing[place])
            for place, node in nodes.items()
            if node is not None and sharing[place]
        }

    def offer(self, node: Node) -> list[MoveRequested]:
        """Moves of waiting jobs of an engine to a node that has just joined."""
        move_requesteds: list[MoveRequested] = []
        room: dict[str, _Amount] = {}
        for job in list(self._held):
            _, live = self._live_runs.find(job)
            spec, current = self._engines.spec_of(job.run), live.current
            if (
                current is None
                or self._nodes.get(spec, node.name) is not node
                or not self._may_use(job, node.name)
            ):
                continue
            slots = self._held[job].get(live.attempt, {})
            if not slots or job not in self._engines.of(job.run).waiting():
                continue
            room = room or self._room(spec)
            others = [
                node_of_engine
                for node_of_engine in self._nodes.of(spec)
                if node_of_engine is not node and self._may_use(job, node_of_engine.name)
            ]
            plan = self._elsewhere(current.plan, slots, node, others, room)
            if plan is None or plan == current.plan:
                continue
            names = tuple(dict.fromkeys((*plan.worker_nodes, *plan.server_nodes)))
            several = names if len(names) > 1 else None
            reason = Reason.of(ReasonKind.NODE_CAME, node=node.name, nodes=several)
            move_requesteds.append(MoveRequested(job, plan, reason, waits=True))
            for task, slot in slots.items():
                name = (plan.server_nodes if task.name.is_server else plan.worker_nodes)[task.index]
                room[name] = room[name].less(_amount(slot))
        return move_requesteds

    def _elsewhere(
        self,
        plan: Plan,
        slots: Mapping[TaskId, Slot],
        node: Node,
        others: Sequence[Node],
        room: Mapping[str, _Amount],
    ) -> Plan | None:
        """A job's plan on a new node, or on this and others together; None: no room."""
        nothing = _Amount(0.0, 0, 0)
        counts = {"worker": nothing, "server": nothing}
        for task, slot in slots.items():
            counts["server" if task.name.is_server else "worker"] = _amount(
                slot, self._states_cores(task)
            )

        def fits(name: str, workers: int, servers: int) -> bool:
            left = room[name].less(counts["worker"], workers).less(counts["server"], servers)
            return (
                room[name].cores > 0 and min(left.cores + 1e-6, left.memory_bytes, left.gpus) >= 0
            )

        if fits(node.name, plan.workers, plan.servers):
            return place(unplaced(plan), [node])
        spread = place_within(plan, [node, *others], fits)
        return (
            spread
            if spread is not None and node.name in (*spread.worker_nodes, *spread.server_nodes)
            else None
        )

    def _room(self, spec: EngineSpec) -> dict[str, _Amount]:
        """Free resources of each node of an engine beside running jobs. Tasks without stated cores
        make room.
        """
        room = {
            node.name: _Amount(node.cores, node.memory_bytes, len(node.gpus))
            for node in self._nodes.of(spec)
        }
        for job, attempts in self._held.items():
            if self._engines.spec_of(job.run) != spec or job in self._engines.of(job.run).waiting():
                continue
            for slots in attempts.values():
                for task, slot in slots.items():
                    if slot.node in room:
                        room[slot.node] = room[slot.node].less(
                            _amount(slot, self._states_cores(task))
                        )
        return room

    def _may_use(self, job: JobId, node: str) -> bool:
        run, live = self._live_runs.find(job)
        plan = live.spec.plan
        placed = plan is not None and (plan.worker_nodes or plan.server_nodes)
        return not placed and (not run.submission.only or node in run.submission.only)

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        starts = [action for action in actions if isinstance(action, StartTask)]
        if starts:  # it looks at all jobs, and most events start none
            self.reserve(starts)
        match event:
            case TaskExited(task):
                self._give_back(task.job, starts)
            case NodeJoined(node):
                # its jobs may start there first; then look for jobs to move
                asyncio.get_running_loop().call_soon(self._move_to, node)

    def _move_to(self, node: Node) -> None:
        for move in self.offer(node):
            self._step(move)

    def _give_back(self, job: JobId, starts: Iterable[StartTask]) -> None:
        """Release the reservations of ended tasks of a job, also while its other tasks go on."""
        _, live = self._live_runs.find(job)
        now = live.current.tasks if live.current is not None else {}
        running = {
            (live.attempt, job.task(name)) for name, task in now.items() if task.state != "ended"
        }
        running |= {(start.attempt, start.task) for start in starts}
        attempts = self._held.get(job, {})
        for attempt, held in list(attempts.items()):
            ended = [task for task in held if (attempt, task) not in running]
            if ended:
                attempts[attempt] = {task: slot for task, slot in held.items() if task not in ended}
                self._engines.of(job.run).release(job, attempt, ended)
            if not attempts[attempt]:
                del attempts[attempt]

    def forget(self, run: str) -> None:
        self._held = {job: attempts for job, attempts in self._held.items() if job.run != run}

    def _set_aside(self, job: JobId, attempt: int, slots: dict[TaskId, Slot]) -> None:
        if slots:
            self._held[job][attempt] |= slots
            self._engines.of(job.run).reserve(job, attempt, slots)

    def _states_cores(self, task: TaskId) -> bool:
        _, live = self._live_runs.find(task)
        if live.spec.limits.cores is not None or live.current is None:
            return True
        plan = live.current.plan
        own = plan.cores_per_server if task.name.is_server else plan.cores_per_worker
        return own is not None

    def _slot(self, start: StartTask, parts: Mapping[tuple[EngineSpec, str], float]) -> Slot:
        stated = _stated(start)
        place = self._engines.spec_of(start.job.run), start.node
        cores = stated if stated is not None else parts.get(place, start.entitled_cores)
        gpus = len(start.gpus) if start.gpus is not None and start.spec.limits.gpus else 0
        memory = start.spec.limits.memory_bytes
        left = self._left(start.job)
        takes = (left.likely, left.least, left.most) if left is not None else None
        return Slot(start.node, _fraction(cores), memory, gpus, start.spec.private, takes)


def _amount(slot: Slot, states_cores: bool = True) -> _Amount:
    return _Amount(slot.cores if states_cores else 0.0, slot.memory_bytes or 0, slot.gpus)


def _stated(start: StartTask) -> float | None:
    """Cores that a task's plan or its part of the job's limit states; None: neither does."""
    plan, limit = start.plan, start.spec.limits.cores
    own = plan.cores_per_server if start.task.name.is_server else plan.cores_per_worker
    part = limit / plan.tasks if limit is not None else None
    return min((cores for cores in (own, part) if cores is not None), default=None)


def _fraction(cores: float) -> float:
    """Rounded down, so that the parts never exceed the node."""
    return math.floor(cores * 1000 + 1e-6) / 1000
