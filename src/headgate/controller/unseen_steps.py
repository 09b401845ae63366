"""Find jobs that share a GPU and cannot take turns, because nothing tells where their steps end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headgate.controller.jobs import Jobs
from headgate.controller.records import JobRecord
from headgate.controller.task_record import TaskRecord
from headgate.model.actions import Action, Warn
from headgate.model.events import GpuMemoryUsed
from headgate.model.identifiers import JobId, TaskId
from headgate.model.reasons import Reason, ReasonKind

PATIENCE_SECONDS = 60.0
"""Time in which a job that holds memory of a GPU beside others has to tell of a step there."""


class UnseenSteps:
    """Warns once of each such job."""

    def __init__(self, jobs: Jobs) -> None:
        self._jobs = jobs
        self._since: dict[TaskId, float] = {}
        self._warned: set[JobId] = set()

    def look(self, now: float, event: GpuMemoryUsed) -> list[Action]:
        """React to the GPU memory that tasks hold."""
        since: dict[TaskId, float] = {}
        actions: list[Action] = []
        for job, task, gpus, beside in self._without_turns(event):
            since[task.id] = self._since.get(task.id, now)
            if now - since[task.id] >= PATIENCE_SECONDS and job.id not in self._warned:
                self._warned.add(job.id)
                facts = {"gpus": gpus, "beside": beside, "unobserved": not job.spec.observe or None}
                actions.append(Warn(Reason.of(ReasonKind.NO_TURNS, **facts), job.id))
        self._since = since
        return actions

    def forget(self, run: str) -> None:
        """Drop the jobs of an ended run."""
        self._warned = {job for job in self._warned if job.run != run}

    def _without_turns(
        self, event: GpuMemoryUsed
    ) -> Iterator[tuple[JobRecord, TaskRecord, tuple[int, ...], tuple[str, ...]]]:
        """Tasks that hold memory of a GPU beside other jobs and have told of no step there, with
        these GPUs and jobs.
        """
        on_node = self._jobs.on.get(event.node, {})
        for id, by_gpu in event.held.items():
            job, task = on_node.get(id, (None, None))
            if job is None or task is None or task.computes_on:
                continue
            shared = {
                gpu: others for gpu in by_gpu if (others := _others(job, gpu, event.held, on_node))
            }
            if shared:
                names = dict.fromkeys(name for others in shared.values() for name in others)
                yield job, task, tuple(sorted(shared)), tuple(names)


def _others(
    job: JobRecord,
    gpu: int,
    held: Mapping[TaskId, Mapping[int, float]],
    on_node: Mapping[TaskId, tuple[JobRecord, TaskRecord]],
) -> list[str]:
    """Names of the other jobs that hold memory of a GPU."""
    ids = (id for id, by_gpu in held.items() if id in on_node and by_gpu.get(gpu))
    return [on_node[id][0].spec.name for id in ids if on_node[id][0] is not job]
