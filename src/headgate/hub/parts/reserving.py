"""What running attempts have set aside of their nodes, where an engine keeps accounts of it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headgate.cluster import Node
from headgate.engines.base import EngineSpec, Slot
from headgate.events import Action, Event, MoveRequested, NodeJoined, StartTask, TaskExited
from headgate.hub.parts.engines import Engines
from headgate.hub.parts.nodes import Nodes
from headgate.hub.state.live_runs import Component, LiveRuns
from headgate.identifiers import JobId, TaskId
from headgate.planning.placement import place, place_within, unplaced
from headgate.plans import Plan


class _Amount(NamedTuple):
    """Of a node."""

    cores: float
    memory_bytes: int
    gpus: int

    def less(self, other: _Amount, times: int = 1) -> _Amount:
        return _Amount(
            self.cores - times * other.cores,
            self.memory_bytes - times * other.memory_bytes,
            self.gpus - times * other.gpus,
        )


class Reserving(Component):
    """Has engines reserve what tasks take, and give it back.

    A task takes the cores that its plan states, or its part of the job's limit. Tasks without either take equal parts
    of what these leave of their node. They give back what they lose to a task that comes later.

    Args:
        live_runs: Where the runs are.
        engines: What keeps the accounts.
        nodes: What the engines' nodes have.
        step: Told of jobs that are to go to a node that has come.
    """

    def __init__(self, live_runs: LiveRuns, engines: Engines, nodes: Nodes, step: Callable[[Event], None]) -> None:
        self._live_runs = live_runs
        self._engines = engines
        self._nodes = nodes
        self._step = step
        self._held: dict[JobId, dict[int, dict[TaskId, Slot]]] = {}  # by attempt

    def reserve(self, starts: Sequence[StartTask]) -> None:
        """Reserve what tasks take that are about to be started, all tasks of a job together. Tasks that run beside them
        first give back what is no longer theirs."""
        parts = self._parts(starts)
        for job, attempts in self._held.items():
            for attempt, held in attempts.items():
                most = {task: parts.get((self._engines.spec_of(job.run), slot.node)) for task, slot in held.items()}
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
            self._set_aside(job, attempt, {task: slot for task, slot in slots.items() if held.get(task) != slot})

    def _parts(self, starts: Iterable[StartTask]) -> dict[tuple[EngineSpec, str], float]:
        """Cores of each task whose plan states none, by engine and node: equal parts of what the other tasks leave. The
        policy's grants are no measure, because they change."""
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
                    if place in sharing and attempts.get(job, attempt) == attempt:  # the former one has ended
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
        """A node has come: which jobs that wait for others of its engine are to go there instead, and how."""
        found: list[MoveRequested] = []
        room: dict[str, _Amount] = {}
        for job in list(self._held):
            _, live = self._live_runs.find(job)
            spec, current = self._engines.spec_of(job.run), live.current
            if current is None or self._nodes.get(spec, node.name) is not node or not self._may_use(job, node.name):
                continue
            slots = self._held[job].get(live.attempt, {})
            if not slots or job not in self._engines.of(job.run).waiting():
                continue
            room = room or self._room(spec)
            others = [each for each in self._nodes.of(spec) if each is not node and self._may_use(job, each.name)]
            plan = self._elsewhere(current.plan, slots, node, others, room)
            if plan is None or plan == current.plan:
                continue
            there = dict.fromkeys((*plan.worker_nodes, *plan.server_nodes))
            reason = f"node {node.name} has come, and is free"
            if len(there) > 1:
                reason = f"node {node.name} has come, and there is room on {', '.join(there)} together"
            found.append(MoveRequested(job, plan, reason, waits=True))
            for task, slot in slots.items():
                name = (plan.server_nodes if task.name.is_server else plan.worker_nodes)[task.index]
                room[name] = room[name].less(_amount(slot))
        return found

    def _elsewhere(
        self,
        plan: Plan,
        slots: Mapping[TaskId, Slot],
        node: Node,
        others: Sequence[Node],
        room: Mapping[str, _Amount],
    ) -> Plan | None:
        """The plan of a job on a node that has come, or else on this and others together; None: there is no room."""
        nothing = _Amount(0.0, 0, 0)
        each = {"worker": nothing, "server": nothing}
        for task, slot in slots.items():
            each["server" if task.name.is_server else "worker"] = _amount(slot, self._states_cores(task))

        def fits(name: str, workers: int, servers: int) -> bool:
            left = room[name].less(each["worker"], workers).less(each["server"], servers)
            return room[name].cores > 0 and min(left.cores + 1e-6, left.memory_bytes, left.gpus) >= 0

        if fits(node.name, plan.workers, plan.servers):
            return place(unplaced(plan), [node])
        spread = place_within(plan, [node, *others], fits)
        return spread if spread is not None and node.name in (*spread.worker_nodes, *spread.server_nodes) else None

    def _room(self, spec: EngineSpec) -> dict[str, _Amount]:
        """The part of each node of an engine that running jobs leave free. Tasks without a stated number of cores make
        room."""
        room = {node.name: _Amount(node.cores, node.memory_bytes, len(node.gpus)) for node in self._nodes.of(spec)}
        for job, attempts in self._held.items():
            if self._engines.spec_of(job.run) != spec or job in self._engines.of(job.run).waiting():
                continue
            for slots in attempts.values():
                for task, slot in slots.items():
                    if slot.node in room:
                        room[slot.node] = room[slot.node].less(_amount(slot, self._states_cores(task)))
        return room

    def _may_use(self, job: JobId, node: str) -> bool:
        run, live = self._live_runs.find(job)
        plan = live.spec.plan
        placed = plan is not None and (plan.worker_nodes or plan.server_nodes)
        return not placed and (not run.submission.only or node in run.submission.only)

    def hear(self, event: Event, actions: Sequence[Action]) -> None:
        starts = [action for action in actions if isinstance(action, StartTask)]
        self.reserve(starts)
        match event:
            case TaskExited(task):
                self._give_back(task.job, starts)
            case NodeJoined(node):  # its jobs may be started there: what is to be moved is looked for after that
                asyncio.get_running_loop().call_soon(self._move_to, node)

    def _move_to(self, node: Node) -> None:
        for move in self.offer(node):
            self._step(move)

    def _give_back(self, job: JobId, starts: Iterable[StartTask]) -> None:
        """Give back what is held for those tasks of a job that have ended, be it for one that others go on without."""
        _, live = self._live_runs.find(job)
        now = live.current.tasks if live.current is not None else {}
        running = {(live.attempt, job.task(name)) for name, task in now.items() if task.state != "ended"}
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
        return Slot(start.node, _fraction(cores), start.spec.limits.memory_bytes, gpus)


def _amount(slot: Slot, states_cores: bool = True) -> _Amount:
    return _Amount(slot.cores if states_cores else 0.0, slot.memory_bytes or 0, slot.gpus)


def _stated(start: StartTask) -> float | None:
    """Cores that a task's plan or its part of the job's limit states; None: neither does."""
    plan, limit = start.plan, start.spec.limits.cores
    own = plan.cores_per_server if start.task.name.is_server else plan.cores_per_worker
    part = limit / plan.tasks if limit is not None else None
    return min((cores for cores in (own, part) if cores is not None), default=None)


def _fraction(cores: float) -> float:
    """Rounded down, so that the parts of a node are never more than the whole of it."""
    return math.floor(cores * 1000 + 1e-6) / 1000
