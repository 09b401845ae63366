"""What tasks report of themselves, and what is measured of them."""

from __future__ import annotations

from headgate.controller.ends import Ends
from headgate.controller.jobs import Jobs
from headgate.controller.memory_parts import outgrows_memory
from headgate.controller.pending import Pending, soonest
from headgate.controller.queueing import Queue
from headgate.controller.records import JobRecord
from headgate.controller.task_record import TaskRecord
from headgate.model.actions import Action, MarkIdle, Warn
from headgate.model.events import (
    CheckpointDone,
    CheckpointLost,
    GpusUsed,
    TaskConnected,
    TaskJoined,
    TaskLeaves,
    Usage,
)
from headgate.model.progress import Progress
from headgate.model.reasons import Reason, ReasonKind
from headgate.output.vocabulary import is_adversarial
from headgate.policies.base import Policy, Reported, Stalled

TaskReport = (
    TaskConnected
    | GpusUsed
    | TaskJoined
    | TaskLeaves
    | CheckpointDone
    | CheckpointLost
    | Usage
    | Progress
)
"""Events that a task reports or that are measured of it."""


class TaskReports:
    """Keeps what is reported in the records of jobs, and tells the policy and the queue what it
    means.

    Args:
        jobs: All jobs.
        policy: The policy that moves shares.
        queue: Told of used memory; None: no job waits for room.
        ends: Ends jobs that reach their goal or cannot go on.

    Attributes:
        stall_at: No job stalls before (s); reports only put it off. None: none is followed.
    """

    def __init__(self, jobs: Jobs, policy: Policy, queue: Queue | None, ends: Ends) -> None:
        self._jobs = jobs
        self._policy = policy
        self._queue = queue
        self._ends = ends
        self.stall_at: float | None = None

    def take(self, pending: Pending, job: JobRecord, event: TaskReport) -> list[Action]:
        """A task of a job reports, or something of it was measured."""
        task = job.tasks[event.task]
        if isinstance(event, TaskConnected | CheckpointDone) and self._jobs.urgent and self._queue:
            self._queue.can_resume()
        match event:
            case TaskConnected(_, framework):
                task.connected, job.framework = True, framework
                job.met = job.met or task.is_worker
            case GpusUsed():
                task.computes_on = event.gpus
                pending.nodes.add(task.node)
                pending.moved[job.id] = job
            case TaskJoined():
                task.joins = False
                job.other_tasks()
            case TaskLeaves():
                task.leaving = True
                job.other_tasks()
            case CheckpointDone():
                if event.checkpoint.step > (job.resume.step if job.resume is not None else 0):
                    job.came_to_work()
                job.resume, job.faults = event.checkpoint, 0
                job.saved_then = job.ends_as is not None
            case CheckpointLost() if job.undisturbed:
                return self._ends.checkpoint_lost(job, task, event)
            case Usage():
                return self._used(pending, job, task, event)
            case Progress():
                job.came_to_work()
                return self._progressed(pending, job, event)
        return []

    def _used(
        self, pending: Pending, job: JobRecord, task: TaskRecord, usage: Usage
    ) -> list[Action]:
        """A reading of a task's use: its job may leave more cores to others, or fewer."""
        if job.is_frozen:
            return []
        turned, needed = task.use(pending.now, usage), job.needed_cores()
        pending.changes.append(job.use(pending.now, usage))
        if job.needed_cores() != needed:
            pending.sized.update(other.node for other in job.tasks.values())
        if self._queue is not None:
            self._queue.uses(pending.now, job)
        if outgrows_memory(job, task):
            pending.moved[job.id] = job
        if not turned:
            return []
        pending.sized.add(task.node)
        return [MarkIdle(task.id, task.idle)]

    def _progressed(self, pending: Pending, job: JobRecord, progress: Progress) -> list[Action]:
        rule = job.spec.progress
        value = rule.value(progress.loss, progress.metrics)
        adversarial = value is not None and is_adversarial(rule.metric, progress.metrics)
        job.report(pending.now, value, progress, adversarial)
        if value is not None and not job.is_frozen:
            less_is_better = -value if rule.rising else value
            place = progress.step, progress.epoch, progress.epochs, progress.count
            pending.changes.append(Reported(job.id, less_is_better, *place, adversarial))
            self.stall_at = soonest(self.stall_at, job.stalls_at())
        if job.watch is None or job.state != "running" or progress.covers == "part":
            return []  # the first batches do not show an epoch's final value
        latest = rule.raw_value(
            progress.loss if progress.mean is None else progress.mean, progress.metrics
        )
        if latest is None:
            return []
        if job.watch.reached(latest):
            facts = {"metric": rule.metric, "value": latest, "goal": rule.goal}
            return self._ends.end(job, "done", Reason(ReasonKind.GOAL_REACHED, facts))
        return [Warn(job.watch.doubt, job.id)] if job.watch.doubt is not None else []

    def judge_stalls(self, pending: Pending) -> None:
        """Let trackers detect jobs that stopped reporting, and tell the policy."""
        if self.stall_at is None or pending.now < self.stall_at:
            return
        self.stall_at = None
        for job in self._jobs.all.values():
            if job.tracker is not None and job.tasks and not job.is_frozen:
                if job.tracker.judge_stall(pending.now) and self._policy.tracks:
                    pending.changes.append(Stalled(job.id))
                self.stall_at = soonest(self.stall_at, job.tracker.stalls_at())
