"""Pause a job: freeze its tasks, end them with a checkpoint, or hold it back in the queue."""

from __future__ import annotations

from headgate.controller import starting
from headgate.controller.pending import Pending
from headgate.controller.queueing import Queue
from headgate.controller.records import JobRecord
from headgate.model.actions import Action, HoldJob, MarkIdle
from headgate.model.events import PauseRequested, UnpauseRequested
from headgate.model.job_states import ENDED
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies.base import Arrived, Left


def pause(
    pending: Pending, job: JobRecord, request: PauseRequested, queue: Queue | None
) -> list[Action]:
    """Pause a job. A job that is ending, or paused in that way already, stays as it is.

    One that its user has frozen gives its slot to another; an urgent job needs none of it.
    """
    if job.state in ENDED or not job.undisturbed or job.finished:
        return []
    if not job.tasks:
        if job.queued and queue is not None:
            queue.withdraw(job)
        job.pause_for(request.urgent)
        return [job.mark("waiting", Reason(ReasonKind.BEING_PLANNED))]
    if request.release:
        return job.release(request.urgent)
    if job.is_frozen:
        return []
    job.pause_for(request.urgent)
    job.frozen_at = pending.now
    job.limit(None)
    pending.changes.append(Left(job.id, False))
    if queue is not None and not request.urgent:
        queue.freeze(pending.now, job, True)
    return [HoldJob(job.id, True), job.mark("paused", job.pause_reason()), *_idle(pending, job)]


def unpause(
    pending: Pending, job: JobRecord, request: UnpauseRequested, queue: Queue | None = None
) -> list[Action]:
    """Let a paused job go on. One that still ends for its pause starts again after that."""
    if job.paused_for is None:
        return []
    job.pause_for(None)
    if not job.tasks:
        job.not_before = pending.now if job.attempt else None
        again = job.mark("waiting", Reason(ReasonKind.UNPAUSED))
        return [again, *starting.wait(pending.now, job)]
    if job.frozen_at is None or not job.undisturbed:
        return []
    seconds, job.frozen_at = pending.now - job.frozen_at, None
    if queue is not None:
        queue.freeze(pending.now, job, False)
    if job.tracker is not None:
        job.tracker.stood_still(seconds)
    job.counts_from += seconds
    starting.limit(job)
    plan, spec = job.planned(), job.spec
    arrived = Arrived(job.id, job.priority, spec.limits.cores, plan.workers, job.tracker)
    pending.changes.append(arrived)
    pending.moved[job.id] = job
    reason = Reason.of(ReasonKind.UNPAUSED, seconds=None if request.refused else seconds)
    return [HoldJob(job.id, False), job.mark("running", reason), *_idle(pending, job)]


def _idle(pending: Pending, job: JobRecord) -> list[Action]:
    """Let others have the threads and the GPU time of a frozen job, or take these back."""
    marks: list[Action] = []
    for task in job.tasks.values():
        pending.nodes.add(task.node)
        pending.sized.add(task.node)
        if task.idle != job.is_frozen:
            task.idle = job.is_frozen
            marks.append(MarkIdle(task.id, task.idle))
    return marks
