"""Urgent jobs go first: the jobs in their way stand still while they run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from headgate.controller import pausing
from headgate.controller.allocation import Allocator
from headgate.controller.gpu_memory import WorkerSlot
from headgate.controller.jobs import Jobs
from headgate.controller.pending import Pending
from headgate.controller.queueing import Queue
from headgate.controller.records import JobRecord
from headgate.model.actions import Action
from headgate.model.events import PauseRequested, UnpauseRequested
from headgate.model.identifiers import JobId

_Gpu = tuple[str, int]
_SLACK = 1e-6


class Urgency:
    """Freezes the jobs in the way of running urgent ones, and lets them go on after these.

    In the way of an urgent job on GPUs are the jobs on the same GPUs. In the way of any other are
    jobs on its nodes, the last in rank first, until the cores that the rest may use are enough. A
    job without a limit on its cores may use all.

    Args:
        jobs: All jobs.
        allocator: Knows the nodes.
    """

    def __init__(self, jobs: Jobs, allocator: Allocator) -> None:
        self._jobs = jobs
        self._allocator = allocator

    def end(self, pending: Pending) -> list[Action]:
        """Let jobs go on whose urgent job has ended, or is paused itself."""
        actions: list[Action] = []
        for job in list(self._jobs.giving_way.values()):
            urgent = self._jobs.urgent.get(JobId(job.paused_for or ""))
            if urgent is None or urgent.paused_for is not None:
                actions += pausing.unpause(pending, job, UnpauseRequested(job.id))
        return actions

    def make_way(self, pending: Pending, queue: Queue | None) -> list[Action]:
        """Freeze the jobs that are in the way of running urgent ones."""
        actions: list[Action] = []
        for urgent in self._running():
            for job in self._in_way(urgent):
                request = PauseRequested(job.id, urgent=urgent.id)
                actions += pausing.pause(pending, job, request, queue)
        return actions

    def hindered(self, job: JobRecord, slots: Sequence[WorkerSlot]) -> JobId | None:
        """The running urgent job that a job would hinder if it started in these places; None: it
        may start.
        """
        for urgent in self._running():
            if job.spec.urgent or job.spared_by == urgent.id:
                continue
            gpus = _gpus(urgent)
            if gpus:
                is_in_way = any((slot.node, gpu) in gpus for slot in slots for gpu in slot.gpus)
            else:
                names = [slot.node for slot in slots] or list(job.planned().worker_nodes)
                most = job.spec.limits.cores or math.inf
                shared = _nodes(urgent).keys() & set(names)
                is_in_way = any(self._left(urgent, name) + _SLACK < most for name in shared)
            if is_in_way:
                return urgent.id
        return None

    def _running(self) -> Iterator[JobRecord]:
        """Urgent jobs that run and are neither paused nor being stopped."""
        for urgent in list(self._jobs.urgent.values()):
            if urgent.tasks and urgent.paused_for is None and urgent.undisturbed:
                yield urgent

    def _in_way(self, urgent: JobRecord) -> list[JobRecord]:
        gpus = _gpus(urgent)
        jobs: dict[JobId, JobRecord] = {}
        for name in _nodes(urgent):
            movable = [job for job in self._on(name) if _may_freeze(job, urgent)]
            if gpus:
                jobs |= {job.id: job for job in movable if not gpus.isdisjoint(_gpus(job))}
                continue
            left = self._left(urgent, name)
            for job in sorted(movable, key=lambda job: (job.priority, -job.number)):
                if left >= -_SLACK:
                    break
                left += self._cores(job, name)
                jobs[job.id] = job
        return list(jobs.values())

    def _on(self, name: str) -> list[JobRecord]:
        """Jobs with tasks on a node that are not frozen."""
        jobs = {job.id: job for job, _ in self._jobs.on.get(name, {}).values()}
        return [job for job in jobs.values() if not job.is_frozen]

    def _left(self, urgent: JobRecord, name: str) -> float:
        """Cores of a node beside an urgent job and all others; negative: they are too few."""
        node = self._allocator.nodes.get(name)
        jobs = {urgent.id: urgent} | {job.id: job for job in self._on(name)}
        most = sum(self._cores(job, name) for job in jobs.values())
        return (node.cores if node is not None else 0.0) - most

    def _cores(self, job: JobRecord, name: str) -> float:
        """The most cores of a node that a job may use, or can."""
        tasks = [task for task in job.tasks.values() if task.node == name]
        caps = [job.allowed(task).cpu_cap_cores for task in tasks]
        known = [cap for cap in caps if isinstance(cap, int | float)]
        if len(known) == len(tasks):
            return sum(known)
        node, needed = self._allocator.nodes.get(name), job.needed_cores()
        every = node.cores if node is not None else 0.0
        return every if needed is None else min(every, needed * len(tasks) / len(job.tasks))


def _may_freeze(job: JobRecord, urgent: JobRecord) -> bool:
    return job.spec.pausable and not job.spec.urgent and job.spared_by != urgent.id


def _nodes(job: JobRecord) -> dict[str, None]:
    return dict.fromkeys(task.node for task in job.tasks.values())


def _gpus(job: JobRecord) -> set[_Gpu]:
    """GPUs that a job computes on, as far as known."""
    visible = bool(job.spec.limits.gpus) or job.uses_gpus in ("maybe", "yes")
    gpus: set[_Gpu] = set()
    for task in job.tasks.values():
        if task.computes_on or job.slots or visible:
            gpus |= {(task.node, gpu) for gpu in job.gpus_of(task)}
    return gpus
