"""How tasks and attempts end, and what their jobs do then."""

from __future__ import annotations

from dataclasses import asdict, replace

from headgate.controller import faults, out_of_gpu_memory, starting
from headgate.controller.allocation import Allocator
from headgate.controller.jobs import Jobs, in_order, instead
from headgate.controller.pending import Pending
from headgate.controller.queueing import Queue
from headgate.controller.records import JobRecord
from headgate.controller.task_record import TaskRecord
from headgate.model.actions import Action, Fault, MarkJob, Warn
from headgate.model.endings import Doubt, Ending, Exit, StopAnswer
from headgate.model.events import CheckpointLost
from headgate.model.identifiers import TaskId
from headgate.model.job_states import ENDED, JobState
from headgate.model.plans import Plan
from headgate.model.reasons import Reason, ReasonKind
from headgate.policies.base import Left

_ALONE = Plan(strategy="single", workers=1, batch_per_worker=None)


class Ends:
    """Ends jobs that are asked to end, fail or run out of time, and starts again those that can go
    on.

    Args:
        jobs: All jobs.
        allocator: Knows the nodes.
        queue: Told of ended attempts; None: no job waits for room.
    """

    def __init__(self, jobs: Jobs, allocator: Allocator, queue: Queue | None) -> None:
        self._jobs = jobs
        self._allocator = allocator
        self._queue = queue

    def exited(self, pending: Pending, job: JobRecord, id: TaskId, exit: Exit) -> list[Action]:
        """A task of a job has ended."""
        task = job.drop(id)
        job.kills += exit.kills
        if task.is_worker:
            job.overdue_seconds = exit.overdue_seconds or job.overdue_seconds
            job.ending = Ending.of(exit) or job.ending
        pending.left(job, task)
        why = exit.because()
        if exit.on_gpu:
            why = out_of_gpu_memory.explain(job, task, exit, self._allocator, self._queue)
        actions: list[Action] = []
        if job.undisturbed and not task.stopping:
            if faults.is_last(job, task, exit):
                job.finished = True
            elif faults.has_served(job, task, exit):
                pass
            elif job.spec.roles and exit.ok:
                early = Reason(ReasonKind.NOT_READY)
                actions += self.fail(job, task, Exit(code=1), early)
            else:
                actions += self._task_lost(pending, job, task, exit, why)
        elif job.ends_as is not None and not exit.ok and job.failure is None:
            job.failure = exit
        elif faults.is_cause(job, exit):
            faults.fail(job, task, exit, why)
        actions += faults.settle(pending.now, job)
        return actions if job.tasks else [*actions, *self._ended(pending, job, task, exit)]

    def _task_lost(
        self, pending: Pending, job: JobRecord, task: TaskRecord, exit: Exit, why: Reason
    ) -> list[Action]:
        """A task ended before its time."""
        nodes = job.there(self._allocator.nodes)
        if not faults.is_fault(job, task, exit, nodes):
            return self.fail(job, task, exit, why)
        loss = faults.describe(task, exit, why, nodes)
        if not (exit.port_taken or faults.costs_others(job, task)):
            return faults.survive(job, task, loss, nodes, pending)
        job.faults += 1
        node = instead(job, task.node, nodes)
        has_nodes = node is not None or bool(job.missed(pending.now))
        if job.faults > faults.MOST_BETWEEN_CHECKPOINTS or not has_nodes:
            times = job.faults if has_nodes else None
            over = Reason.of(ReasonKind.CANNOT_GO_ON, after=loss, faults=times)
            advised = faults.advised(job, exit, over, task.node, nodes)
            return [
                Fault(job.id, task.id, over),
                *self.end(job, "failed", advised, exit, lost=True),
            ]
        if node is not None and faults.is_replaced(job, task):
            return faults.restart_server(job, task, loss, node, pending)
        return faults.restart(job, task, loss)

    def checkpoint_lost(
        self, job: JobRecord, task: TaskRecord, event: CheckpointLost
    ) -> list[Action]:
        """A job cannot resume from its checkpoint: it goes on from an earlier one, or fails."""
        job.resume = event.instead
        lost = Reason.of(ReasonKind.CHECKPOINT_LOST, text=event.text)
        if event.instead is not None:
            return faults.restart(job, task, lost)
        none_left = Reason.of(ReasonKind.NO_CHECKPOINT_LEFT, after=lost)
        return self.end(job, "failed", none_left, lost=True)

    def fail(self, job: JobRecord, task: TaskRecord, exit: Exit, why: Reason) -> list[Action]:
        """A task's program failed: stop the others, which would wait for it in vain."""
        faults.fail(job, task, exit, why)
        if job.failed_by is None or not job.tasks:
            return []
        first = job.workers() or list(job.tasks.values())
        stops = [other.stop(job.failed_by, broken=True) for other in first]
        return [job.mark("stopping", job.failed_by), *stops]

    def _ended(
        self, pending: Pending, job: JobRecord, task: TaskRecord, exit: Exit
    ) -> list[Action]:
        """The last task of an attempt has ended."""
        by_itself = job.failure is None and job.restart is None
        done = by_itself if job.ends_as is None else job.ends_as[0] == "done"
        if not job.is_frozen:
            pending.changes.append(Left(job.id, done))
        job.frozen_at = None
        job.limit(None)
        if self._queue is not None:
            self._queue.ended(pending.now, job, done, exit.cpu_seconds)
        failure, job.failure = job.failure, None
        if job.ends_as is not None:
            code = (failure or exit).shell_code
            return [as_asked(job, *job.ends_as, code), *doubts(job)]
        if job.restart is not None:
            job.not_before = pending.now
            return [job.mark("waiting", Reason.of(ReasonKind.STARTED_AGAIN, after=job.restart))]
        if failure is None:
            return [job.mark("done", how_finished(job), 0), *doubts(job)]
        job.ending = None
        return self._failed(pending.now, job, task, failure)

    def _failed(self, now: float, job: JobRecord, task: TaskRecord, failure: Exit) -> list[Action]:
        """An attempt failed: another one may do better, with more memory, elsewhere, as one task or
        later.
        """
        code, nodes = failure.shell_code, self._allocator.nodes
        reason = job.failed_by or failure.because()
        if more := faults.grow_after_oom(job, task, failure, reason, nodes):
            job.not_before = now
            return more
        if job.tries_elsewhere:
            job.tries_elsewhere, job.not_before = False, now
            return [job.mark("waiting", reason, code)]
        has_run = failure.code is not None or failure.signal is not None
        if has_run and job.doubts_its_plan:
            job.spec, job.plan = replace(job.spec, plan=_ALONE), None
            job.revision += 1
            as_one = Reason.of(ReasonKind.TRIED_AS_ONE_TASK, after=reason)
            return starting.plan_anew(job, as_one, code)
        if has_run and job.retried < job.spec.retries:
            wait = min(2.0**job.retried, 60.0)
            job.retried += 1
            job.not_before = now + wait
            left = job.spec.retries - job.retried + 1
            again = Reason.of(ReasonKind.TRIED_AGAIN, after=reason, seconds=wait, retries_left=left)
            return [job.mark("waiting", again, code)]
        advised = faults.advised(job, failure, reason, job.failed_at, nodes)
        return [job.mark("failed", advised, code)]

    def stop(self, job: JobRecord, kill: bool, reason: Reason | None) -> list[Action]:
        """Stop a job. `reason`: why, unless its user asked."""
        if job.state in ENDED:
            return []
        if not job.tasks:
            if job.queued and self._queue is not None:
                self._queue.withdraw(job)
            early = Reason.of(ReasonKind.STOPPED_BEFORE_START, attempt=job.attempt)
            return [job.mark("stopped", early)]
        if not kill and reason is not None:
            return self.end(job, "stopped", reason)
        state: JobState = "killed" if kill else "stopped"
        by_user = ReasonKind.KILLED_BY_USER if kill else ReasonKind.STOPPED_BY_USER
        asked = Reason(ReasonKind.USER_ASKED)
        return self.end(job, state, Reason(by_user), kill=kill, while_stopping=asked)

    def end(
        self,
        job: JobRecord,
        state: JobState,
        reason: Reason,
        failure: Exit | None = None,
        *,
        kill: bool = False,
        lost: bool = False,
        while_stopping: Reason | None = None,
    ) -> list[Action]:
        """End the tasks of a job and mark it as `state`.

        Servers are stopped after the workers, which may need them for their last step. A second
        call can only turn a stop into a kill.

        Args:
            lost: Whether a fault ends the job that it cannot survive.
            while_stopping: Reason until all tasks have ended; None: the final one.
        """
        if job.ends_as is not None and not kill:
            return []
        job.ends_as, job.failure, job.lost = (state, reason), failure, lost
        if not job.tasks:
            return []
        first = list(job.tasks.values()) if kill else job.workers() or list(job.tasks.values())
        mark = job.mark("stopping", while_stopping or reason)
        return [mark, *(task.stop(reason, kill=kill) for task in first)]

    def time_out(self, now: float) -> list[Action]:
        """End the jobs whose time is over."""
        actions: list[Action] = []
        for job in in_order(self._jobs.limited.values()):
            if job.deadline is not None and now >= job.deadline:
                job.limit(None)
                if job.evaluates_last:
                    actions += faults.evaluated(job)
                    continue
                over = Reason.of(ReasonKind.TIMED_OUT, seconds=job.spec.timeout or 0.0)
                actions += self.end(job, "failed", over)
        return actions


def as_asked(job: JobRecord, state: JobState, reason: Reason, code: int) -> MarkJob:
    """The end of a job that was asked to end as `state`."""
    killed, given = state == "killed", job.overdue_seconds
    ending = Ending.asked(
        given, job.resume, killed=killed, saved_then=job.saved_then, resumes=job.spec.resumes
    )
    if state == "stopped" and ending.answer is StopAnswer.NONE:
        state, reason = "killed", Reason.of(ReasonKind.NO_ANSWER, ending=asdict(ending))
    elif not job.lost:
        reason = Reason.of(ReasonKind.ENDED_AS_ASKED, after=reason, ending=asdict(ending))
    if state == "done" and ending.answer is StopAnswer.NONE:
        ending = replace(ending, doubt=Doubt.NO_ANSWER)
    job.ending = ending
    return job.mark(state, reason, code)


def doubts(job: JobRecord) -> list[Action]:
    """A warning if a finished job may have failed."""
    ending = job.ending
    if ending is None or ending.doubt is None:
        return []
    return [Warn(Reason.of(ReasonKind.IN_DOUBT, ending=asdict(ending)), job.id)]


def how_finished(job: JobRecord) -> Reason:
    """Why a job that ended by itself is done."""
    plan = job.planned()
    apart = plan.trains_together and plan.workers > 1 and not job.met and job.spec.contract is None
    return Reason.of(
        ReasonKind.FINISHED,
        copies=plan.workers if apart else None,
        kills=job.kills or None,
        ending=asdict(job.ending) if job.ending is not None else None,
    )
