"""What running attempts have set aside of their nodes, where an engine keeps accounts of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from headgate.cluster import Node
from headgate.engines.base import Slot
from headgate.events import Action, JobId, MoveRequested, SetShare, StartTask, TaskId
from headgate.hub.engines import Engines
from headgate.hub.ledger import Ledger
from headgate.hub.nodes import Nodes
from headgate.planning.placement import place, unplaced


class Reserving:
    """Has engines set aside what tasks take, and give it back.

    A task takes the cores that its plan states, or its part of the job's limit. One of which neither says anything
    takes what it is entitled to as it starts, and gives back what it loses to a job that comes later.

    Args:
        ledger: Where the runs are.
        engines: What keeps the accounts.
        nodes: What the engines' nodes have.
    """

    def __init__(self, ledger: Ledger, engines: Engines, nodes: Nodes) -> None:
        self._ledger = ledger
        self._engines = engines
        self._nodes = nodes
        self._held: dict[JobId, dict[int, dict[TaskId, Slot]]] = {}  # by attempt

    def reserve(self, actions: Iterable[Action]) -> None:
        """Set aside what tasks take that are about to be started, all those of a job together."""
        wanted: dict[tuple[JobId, int], dict[TaskId, Slot]] = {}
        for action in actions:
            if isinstance(action, StartTask):
                wanted.setdefault((action.job, action.attempt), {})[action.task] = self._slot(action)
        for (job, attempt), slots in wanted.items():
            held = self._held.setdefault(job, {}).setdefault(attempt, {})
            self._set_aside(job, attempt, {task: slot for task, slot in slots.items() if held.get(task) != slot})

    def shrink(self, actions: Iterable[Action]) -> None:
        """Give back what tasks are not entitled to any more, now that shares have changed."""
        less: dict[JobId, dict[TaskId, float]] = {}
        for action in actions:
            if isinstance(action, SetShare) and not self._states_cores(action.task):
                less.setdefault(action.task.rsplit("/", 1)[0], {})[action.task] = _fraction(action.entitled_cores)
        for job, entitled in less.items():
            for attempt, held in self._held.get(job, {}).items():
                cut = {
                    task: replace(slot, cores=min(slot.cores, entitled.get(task, slot.cores)))
                    for task, slot in held.items()
                }
                if cut != held:
                    self._set_aside(job, attempt, cut)

    def offer(self, node: Node) -> list[MoveRequested]:
        """A node has come: which jobs that wait for others of its engine are to go there instead, and how."""
        found: list[MoveRequested] = []
        left = node.cores
        for job in list(self._held):
            _, live = self._ledger.find(job)
            spec, current = self._engines.spec_of(job), live.current
            if current is None or self._nodes.get(spec, node.name) is not node or not self._may_use(job, node.name):
                continue
            slots = self._held[job].get(live.attempt, {})
            stated = sum(slot.cores for task, slot in slots.items() if self._states_cores(task))
            memory = sum(slot.memory_bytes or 0 for slot in slots.values())
            gpus = sum(slot.gpus for slot in slots.values())
            fits = 0 < left >= stated and memory <= node.memory_bytes and gpus <= len(node.gpus)
            if slots and fits and job in self._engines.of(job).waiting():
                left -= sum(slot.cores for slot in slots.values())
                plan, reason = place(unplaced(current.plan), [node]), f"node {node.name} has come, which is free"
                found.append(MoveRequested(job, plan, reason, waits=True))
        return found

    def _may_use(self, job: JobId, node: str) -> bool:
        run, live = self._ledger.find(job)
        plan = live.spec.plan
        placed = plan is not None and (plan.worker_nodes or plan.server_nodes)
        return not placed and (not run.submission.only or node in run.submission.only)

    def give_back(self, job: JobId) -> None:
        """Give back what is held for attempts of a job whose tasks have all ended."""
        _, live = self._ledger.find(job)
        running = live.current is not None and any(task.state != "ended" for task in live.current.tasks.values())
        for attempt in list(self._held.get(job, ())):
            if attempt != live.attempt or not running:
                del self._held[job][attempt]
                self._engines.of(job).release(job, attempt)

    def forget(self, run: str) -> None:
        """A run has ended."""
        self._held = {job: attempts for job, attempts in self._held.items() if job.split("/")[0] != run}

    def _set_aside(self, job: JobId, attempt: int, slots: dict[TaskId, Slot]) -> None:
        if slots:
            self._held[job][attempt] |= slots
            self._engines.of(job).reserve(job, attempt, slots)

    def _states_cores(self, task: TaskId) -> bool:
        _, live = self._ledger.find(task)
        if live.spec.limits.cores is not None or live.current is None:
            return True
        plan = live.current.plan
        own = plan.cores_per_server if _is_server(task) else plan.cores_per_worker
        return own is not None

    def _slot(self, start: StartTask) -> Slot:
        plan, limits = start.plan, start.spec.limits
        own = plan.cores_per_server if _is_server(start.task) else plan.cores_per_worker
        part = limits.cores / plan.tasks if limits.cores is not None else None
        stated = min((cores for cores in (own, part) if cores is not None), default=None)
        node = self._nodes.get(self._engines.spec_of(start.job), start.node)
        # The policy may know more cores of this machine than an engine that has it as a node.
        cores = (
            stated if stated is not None else min(start.entitled_cores, node.cores if node else start.entitled_cores)
        )
        gpus = len(start.gpus) if start.gpus is not None and limits.gpus else 0
        return Slot(start.node, _fraction(cores), limits.memory_bytes, gpus)


def _fraction(cores: float) -> float:
    """Rounded down, so that the parts of a node are never more than the whole of it."""
    return math.floor(cores * 1000 + 1e-6) / 1000


def _is_server(task: TaskId) -> bool:
    return task.rsplit("/", 1)[1].startswith("server-")
