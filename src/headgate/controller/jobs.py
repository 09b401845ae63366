"""The jobs that a controller knows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter

from headgate.controller.records import JobRecord
from headgate.controller.task_record import TaskRecord
from headgate.model.cluster import Node
from headgate.model.endings import Checkpoint
from headgate.model.identifiers import JobId, TaskId
from headgate.model.job_states import ENDED
from headgate.model.jobs import Job
from headgate.planning.placement import for_server


class Jobs:
    """An index of all jobs, so that a step costs as much as it changes and not as much as there is.

    Attributes:
        all: Jobs of runs that have not been forgotten.
        waiting: Jobs that wait for their plan, their time or another job.
        planned: Waiting jobs that could start: planned, with their forerunners ended, in runs whose
            waiting jobs all have a plan. So jobs submitted together start with shares that account
            for each other.
        limited: Jobs whose attempt has a deadline.
        pinned: Jobs with a slice of their own.
        urgent: Urgent jobs that have not ended.
        giving_way: Jobs that are paused for an urgent one.
        on: Tasks with their jobs, by node.
    """

    def __init__(self) -> None:
        self.all: dict[JobId, JobRecord] = {}
        self.waiting: dict[JobId, JobRecord] = {}
        self.limited: dict[JobId, JobRecord] = {}
        self.pinned: dict[JobId, JobRecord] = {}
        self.urgent: dict[JobId, JobRecord] = {}
        self.giving_way: dict[JobId, JobRecord] = {}
        self.on: dict[str, dict[TaskId, tuple[JobRecord, TaskRecord]]] = {}
        self._of_run: dict[str, list[JobRecord]] = {}
        self._unplanned: dict[str, set[JobId]] = {}
        self._planned: dict[str, dict[JobId, JobRecord]] = {}
        self._followers: dict[JobId, list[JobRecord]] = {}
        self._count = 0

    def add(
        self,
        id: JobId,
        spec: Job,
        submitted: float,
        resume: Checkpoint | None,
        nodes: tuple[str, ...],
    ) -> JobRecord:
        """Add a job. A known id means that the job is submitted again."""
        before = self.all.get(id)
        number = self._count
        if before is not None:
            number = before.number
            for task in list(before.tasks):
                before.drop(task)
        self._count += 1
        job = self.all[id] = JobRecord(self, number, id, spec, submitted, resume, nodes)
        self._of_run.setdefault(job.run, []).append(job)
        if spec.share is not None:
            self.pinned[id] = job
        self.giving_way.pop(id, None)
        if spec.urgent:
            self.urgent[id] = job
        for name in spec.forerunners:
            self._followers.setdefault(JobId.of(job.run, name), []).append(job)
        self.file(job)
        return job

    @property
    def planned(self) -> list[JobRecord]:
        return [
            job
            for run, jobs in self._planned.items()
            if not self._unplanned.get(run)
            for job in jobs.values()
        ]

    def of(self, run: str) -> list[JobRecord]:
        """Jobs of a run, in the order of submission."""
        return [job for job in self._of_run.get(run, ()) if self.all.get(job.id) is job]

    def forget(self, run: str) -> list[JobId]:
        """Drop the jobs of a run. Returns their ids."""
        gone = self._of_run.pop(run, [])
        for job in gone:
            for kept in (self.all, self.waiting, self.limited, self.pinned):
                kept.pop(job.id, None)
            self.urgent.pop(job.id, None)
            self.giving_way.pop(job.id, None)
            self._divide(job)
            self._followers.pop(job.id, None)
            for task in list(job.tasks):
                job.drop(task)
        return [job.id for job in gone]

    def file(self, job: JobRecord) -> None:
        """Put a job into the indexes of its state."""
        if job.state == "waiting" and not job.queued:
            self.waiting[job.id] = job
        else:
            self.waiting.pop(job.id, None)
            if job.state in ENDED:
                self.limited.pop(job.id, None)
                self.urgent.pop(job.id, None)
                self.giving_way.pop(job.id, None)
        self._divide(job)
        if job.state in ENDED:
            for follower in self._followers.get(job.id, ()):
                self._divide(follower)

    def _divide(self, job: JobRecord) -> None:
        """Note whether a job waits, and whether it has a plan."""
        unplanned = self._unplanned.setdefault(job.run, set())
        planned = self._planned.setdefault(job.run, {})
        waits = job.id in self.waiting
        if waits and job.plan is None:
            unplanned.add(job.id)
        else:
            unplanned.discard(job.id)
        if waits and job.plan is not None and self._has_turn(job):
            planned[job.id] = job
        else:
            planned.pop(job.id, None)
        if not unplanned and not planned:
            del self._unplanned[job.run], self._planned[job.run]

    def _has_turn(self, job: JobRecord) -> bool:
        """Whether a job has no forerunners, or one of them has ended."""
        if job.not_before is not None or not job.spec.forerunners:
            return True
        first = [self.all.get(JobId.of(job.run, name)) for name in job.spec.forerunners]
        return any(other is None or other.state in ENDED for other in first)


def in_order(jobs: Iterable[JobRecord]) -> list[JobRecord]:
    """Jobs in the order of submission."""
    return sorted(jobs, key=attrgetter("number"))


def instead(job: JobRecord, node: str, nodes: Mapping[str, Node]) -> str | None:
    """A replacement for a server's node that may be lost; None: no node is left."""
    if node in nodes:
        return node
    left = job.reachable(nodes)
    return for_server(left, job.spread(workers=True), job.spread(workers=False)) if left else None
