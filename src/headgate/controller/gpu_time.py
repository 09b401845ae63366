"""Divide the time of GPUs among the jobs that share them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping

from headgate.controller.jobs import Jobs
from headgate.controller.records import JobRecord
from headgate.controller.side_by_side import SideBySide
from headgate.model.identifiers import JobId, TaskId
from headgate.model.shares import UNLIMITED, WEIGHT_DEFAULT, Unlimited
from headgate.policies.weights import MOST_CHANGES, ChangeHistory

_LEFT_TO_OTHERS = 0.05
"""Fraction of a GPU that pinned jobs cannot take."""


class GpuTime:
    """The GPU time of each node: split again when a job arrives or leaves, otherwise rarely.

    Args:
        jobs: All jobs.
        side_by_side: Lets jobs run side by side where that brings more; None: they take turns.
    """

    def __init__(self, jobs: Jobs, side_by_side: SideBySide | None = None) -> None:
        self._jobs = jobs
        self._side_by_side = side_by_side
        self._changes: defaultdict[str, ChangeHistory] = defaultdict(ChangeHistory)
        self._waiting: set[str] = set()

    @property
    def due_at(self) -> float | None:
        """When the next pending split is due; None: none is pending."""
        times = [self._changes[name].free_at(MOST_CHANGES) for name in self._waiting]
        if self._side_by_side is not None and (due_at := self._side_by_side.due_at) is not None:
            times.append(due_at)
        return min(times, default=None)

    def due(self, now: float, nodes: Collection[str]) -> set[str]:
        """Nodes due for a new split of GPU time: a job arrived or left, or the last split is old
        enough.

        Args:
            now: Seconds on the run's clock.
            nodes: Nodes on which a task started or ended.
        """
        ready = {
            name
            for name in self._waiting
            if name in nodes or self._changes[name].free_at(MOST_CHANGES) <= now
        }
        return ready | self._compared(now)

    def _compared(self, now: float) -> set[str]:
        """Nodes on which a measurement goes on."""
        return self._side_by_side.due(now) if self._side_by_side is not None else set()

    def divide(
        self, now: float, changed: Iterable[str], nodes: Collection[str]
    ) -> dict[TaskId, float | Unlimited]:
        """Changes of GPU time of tasks on changed nodes and on those that are due."""
        self._waiting.update(changed)
        compared = self._compared(now)
        ready = self.due(now, nodes)
        self._waiting -= ready
        changes = self._fractions(now, ready)
        changed_on = {self._jobs.all[id.job].tasks[id].node for id in changes}
        for name in changed_on.difference(nodes, compared):
            self._changes[name].note(now)
        return changes

    def _fractions(self, now: float, nodes: Iterable[str]) -> dict[TaskId, float | Unlimited]:
        """Changes of GPU time of tasks on these nodes, on GPUs with several jobs."""
        result: dict[TaskId, float | Unlimited] = {}
        for name in nodes:
            gpu_tasks = [
                (job, task)
                for job, task in self._jobs.on.get(name, {}).values()
                if task.computes_on and not job.is_frozen
            ]
            users: dict[int, dict[JobId, JobRecord]] = {}
            for job, task in gpu_tasks:
                for gpu in task.computes_on:
                    users.setdefault(gpu, {})[job.id] = job
            fractions = {**_shared({gpu: jobs.values() for gpu, jobs in users.items()})}
            if self._side_by_side is not None:
                fractions |= self._side_by_side.parts(now, name, users, fractions)
            beside = Counter((job.id, gpu) for job, task in gpu_tasks for gpu in task.computes_on)
            for job, task in gpu_tasks:
                if job.granted.gpu_fraction is not None:
                    continue  # the policy grants it
                fraction = fractions.get(job.id, 1.0)
                # its workers there take turns independently of each other
                if fraction < 1.0 and not job.planned().in_step:
                    fraction /= max(beside[job.id, gpu] for gpu in task.computes_on)
                wanted = fraction if fraction < 1.0 else UNLIMITED
                if wanted != (task.share.gpu_fraction or UNLIMITED):
                    result[task.id] = wanted
        return result


def _shared(users: Mapping[int, Collection[JobRecord]]) -> Mapping[JobId, float]:
    """The fraction of GPU time of each job.

    A pinned job gets its slice, reduced if slices exceed the GPU. The others get, by weight, what
    their fullest GPU leaves. What a job leaves on a GPU because another GPU holds it back goes to
    the others there. This is max-min fairness by progressive filling (Bertsekas and Gallager, Data
    Networks, 6.5.2).

    Args:
        users: The jobs that compute on each GPU of a node.

    Returns:
        The fractions, without jobs that have no weight or whose GPU time the policy grants itself.
    """
    fractions: dict[JobId, float] = {}
    left: dict[int, float] = {}
    weights: dict[int, dict[JobId, float]] = {}
    for gpu, jobs in users.items():
        pinned = {job.id: slice for job in jobs if (slice := job.spec.slice) is not None}
        divisor = max(sum(pinned.values()), 1.0)
        fractions |= {
            id: min(slice / divisor, fractions.get(id, 1.0)) for id, slice in pinned.items()
        }
        usual = WEIGHT_DEFAULT if pinned else None
        free = [job for job in jobs if job.id not in pinned and job.granted.gpu_fraction is None]
        weights[gpu] = {
            job.id: weight
            for job in free
            if (weight := job.granted.cpu_weight or usual) is not None
        }
    for gpu, jobs in users.items():
        left[gpu] = max(
            1.0 - sum(fractions[job.id] for job in jobs if job.spec.slice is not None),
            _LEFT_TO_OTHERS,
        )
    while any(weights.values()):
        totals = {
            gpu: sum(gpu_weights.values()) for gpu, gpu_weights in weights.items() if gpu_weights
        }
        fullest = min(totals, key=lambda gpu: left[gpu] / totals[gpu])
        part = left[fullest]
        for id, weight in list(weights[fullest].items()):
            fractions[id] = part * weight / totals[fullest]
            for gpu, gpu_weights in weights.items():
                if gpu_weights.pop(id, None) is not None:
                    left[gpu] -= fractions[id]
    return fractions
