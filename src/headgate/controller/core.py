"""The life of jobs, from submission to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from headgate.controller import faults, finishing, out_of_gpu_memory, pausing, resizing, starting
from headgate.controller.allocation import Allocator
from headgate.controller.at_once import per_core
from headgate.controller.gpu_memory import WorkerSlot
from headgate.controller.jobs import Jobs, in_order, instead
from headgate.controller.memory_parts import outgrows_memory
from headgate.controller.pairing import Pairing
from headgate.controller.pending import Pending
from headgate.controller.queue_orders import Claim, FifoOrder
from headgate.controller.queueing import Queue
from headgate.controller.records import JobRecord
from headgate.controller.start_forecast import StartForecast
from headgate.controller.task_record import TaskRecord
from headgate.controller.unseen_steps import UnseenSteps
from headgate.controller.urgency import Urgency
from headgate.forecast.job_tracker import JobTracker
from headgate.model.actions import Action, Fault, MarkIdle, PlanJob, Warn
from headgate.model.cluster import Node
from headgate.model.endings import Ending, Exit
from headgate.model.events import (
    ChangeRequested,
    CheckpointDone,
    CheckpointLost,
    Event,
    GpuMemoryUsed,
    GpusUsed,
    JobGranted,
    JobPlanned,
    JobSubmitted,
    MachineShared,
    MemoryUsed,
    MoveRequested,
    NodeJoined,
    NodeLeft,
    PauseRequested,
    Predicted,
    ResizeRequested,
    SlotsStated,
    StopRequested,
    TakenUp,
    TaskConnected,
    TaskExited,
    TaskJoined,
    TaskLeaves,
    TaskReady,
    TaskStarted,
    UnpauseRequested,
    Usage,
)
from headgate.model.identifiers import JobId, TaskId
from headgate.model.job_states import ENDED, JobState
from headgate.model.plans import Plan
from headgate.model.progress import Progress
from headgate.model.reasons import Reason, ReasonKind
from headgate.output.vocabulary import is_adversarial
from headgate.planning.interference import Interference
from headgate.policies import NoPolicy
from headgate.policies.base import Arrived, Changed, Left, Policy, Reported, Stalled

_ALONE = Plan(strategy="single", workers=1, batch_per_worker=None)

_Request = (
    StopRequested
    | ResizeRequested
    | ChangeRequested
    | MoveRequested
    | PauseRequested
    | UnpauseRequested
)

_Told = (
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


def live_controller(
    policy: Policy,
    pairs: Callable[[], Interference] = Interference,
    seconds: Callable[[JobId], float | None] = lambda _: None,
) -> Controller:
    """A controller for a hub: jobs share GPUs, and jobs that do not fit wait in the order of
    arrival.

    Args:
        policy: The policy that moves shares.
        pairs: Gives the known slowdowns of jobs by each other.
        seconds: Expected run time of a waiting job; no decision depends on it.
    """
    by_turns = not isinstance(policy, NoPolicy)
    pairing = Pairing(pairs, lambda job: job.spec.name, by_turns)
    queue = Queue(FifoOrder(), True, seconds, pairing, per_core(policy.name), probes=by_turns)
    return Controller(policy, queue, tracks=True, compares_gpus=True)


class Controller:
    """Holds the jobs of every run of one hub.

    Args:
        policy: The policy that moves shares; called only from here.
        queue: Queue for jobs that do not fit; None: all start and share the resources.
        tracks: Whether each job has a tracker even if the policy reads none.
        compares_gpus: Whether jobs on one GPU run side by side where that brings more than turns.

    Example:
        >>> from headgate.policies import EqualPolicy
        >>> controller = Controller(EqualPolicy())
        >>> event = JobSubmitted(JobId("r/a"), Job(name="a", run="true"))
        >>> controller.step(0.0, event)
        ([MarkJob(job='r/a', state='waiting', ...), PlanJob(job='r/a', ...)], None)
    """

    def __init__(
        self,
        policy: Policy,
        queue: Queue | None = None,
        *,
        tracks: bool = False,
        compares_gpus: bool = False,
    ) -> None:
        self.policy = policy
        self._tracks = tracks or policy.tracks
        self._queue = queue
        self._jobs = Jobs()
        self._stall_at: float | None = None  # no job stalls before; reports only put it off
        self._unseen_steps = UnseenSteps(self._jobs)
        self._allocator = allocator = Allocator(policy, self._jobs, compares_gpus)
        self._urgency = Urgency(self._jobs, allocator)
        if queue is not None:
            queue.sees(lambda name: allocator.without_slots(name))  # noqa: PLW0108  # a bound method would be copied
            allocator.is_crowded = queue.gpu_memory.is_crowded
            queue.gives_way(self._urgency.hindered)

    def step(self, now: float, event: Event) -> tuple[list[Action], float | None]:
        """React to an event.

        Args:
            now: Seconds on the run's clock; never goes back.
            event: What happened.

        Returns:
            The actions, in the order in which to take them, and when to send a `Wake` (None: no
            need).
        """
        actions: list[Action] = []
        pending = Pending(now)
        match event:
            case NodeJoined(node, runs):
                actions += self._node_joined(now, node, runs)
            case NodeLeft():
                self._node_left(now, event)
            case JobSubmitted() | SlotsStated():
                actions += self._submitted(pending, event)
            case MachineShared() | JobGranted():
                self._shared(event)
            case JobPlanned():
                actions += self._planned(now, event)
            case MemoryUsed() | GpuMemoryUsed():
                actions += self._memory_used(now, event)
            case TaskExited(task, exit):
                actions += self._exited(pending, task, exit)
            case Usage() | Progress() | CheckpointDone() | CheckpointLost():
                actions += self._told(pending, event)
            case TaskConnected() | GpusUsed() | TaskJoined() | TaskLeaves():
                actions += self._told(pending, event)
            case Predicted(job):
                owner = self._jobs.all.get(job)
                is_served = owner is not None and owner.tasks and not owner.is_frozen
                if self.policy.predicts and is_served:
                    pending.changes.append(event)
            case (
                StopRequested()
                | ResizeRequested()
                | ChangeRequested()
                | MoveRequested()
                | PauseRequested()
                | UnpauseRequested()
            ):
                actions += self._requested(pending, event)
            case TaskStarted() | TaskReady():
                actions += self._up(pending, event)
        self._judge_stalls(pending)
        if self._jobs.limited:
            actions += self._timeouts(now)
        actions += self._urgency.end(pending)
        actions += self._start_due(pending)
        actions += self._urgency.make_way(pending, self._queue)
        actions += self._allocator.settle(pending)
        return actions, self._wake_at()

    @property
    def waits(self) -> bool:
        """Whether a job waits for room."""
        return self._queue is not None and self._queue.waits

    def tracker(self, job: JobId) -> JobTracker | None:
        """The tracker of a job; None: the job has not run, or is not tracked."""
        record = self._jobs.all.get(job)
        return record.tracker if record is not None else None

    def stated(self) -> tuple[list[Claim], list[Claim]]:
        """What a hub states to the arbiter of a shared machine: `Queue.stated`."""
        return self._queue.stated() if self._queue is not None else ([], [])

    def ahead(self, now: float, ends: Mapping[JobId, float]) -> list[StartForecast]:
        """What the jobs that wait for room are waiting for: `Queue.ahead`."""
        return self._queue.ahead(now, ends) if self._queue is not None else []

    def forget(self, run: str) -> None:
        """Drop the jobs of an ended run."""
        forgotten = self._jobs.forget(run)
        self._unseen_steps.forget(run)
        if self._queue is not None:
            self._queue.forget(forgotten)
            self._queue.bounds.forget(run)

    def _memory_used(self, now: float, event: MemoryUsed | GpuMemoryUsed) -> list[Action]:
        if self._queue is not None:
            self._queue.memory_used(now, event)
        if isinstance(event, GpuMemoryUsed) and self.policy.grants:
            return self._unseen_steps.look(now, event)
        return []

    def _shared(self, event: MachineShared | JobGranted) -> None:
        if self._queue is None:
            return
        if isinstance(event, MachineShared):
            self._queue.share(event.node if event.shared else None)
        else:
            self._queue.grant(event.job, event.gpus)

    # --- jobs, and requests to them ---------------------------------------------------------------

    def _submitted(self, pending: Pending, event: JobSubmitted | SlotsStated) -> list[Action]:
        if isinstance(event, SlotsStated):
            if self._queue is not None:
                self._queue.at_once_of_all(event.jobs)
            return []
        job = self._jobs.add(event.job, event.spec, pending.now, event.resume, event.nodes)
        job.needs_bytes, job.work, job.gpus, job.divides = (
            event.memory_bytes,
            event.work,
            event.gpus,
            event.divides,
        )
        job.needs_gpu_bytes, job.uses_gpus, job.script, job.revision = (
            event.gpu_memory_bytes,
            event.uses_gpus,
            event.script,
            1,
        )
        job.key, job.best_at_once = event.key, event.best_at_once
        self._allocator.side_by_side.learn(event.beside)
        if self._queue is not None:
            self._queue.at_once(job)
        if event.taken_up is not None:
            return self._taken_up(pending, job, event.taken_up)
        return self._plan_anew(job, Reason(ReasonKind.BEING_PLANNED))

    def _taken_up(self, pending: Pending, job: JobRecord, then: TakenUp) -> list[Action]:
        """A job of a hub that died: it has ended, goes on, or is started again if it can resume."""
        job.attempt, job.ending = then.attempt, then.ending
        if then.state in ENDED:
            job.state, job.reason = then.state, then.reason
            self._jobs.file(job)
            return []
        if then.goes_on:
            job.plan, job.attempt = then.plan, then.attempt - 1
            gpus = then.gpus or ()
            job.slots = tuple(WorkerSlot(node, gpus) for node in job.planned().worker_nodes if gpus)
            if self._queue is not None:
                self._queue.take_up(pending.now, job)
            actions = self._start(pending, [job], Reason(ReasonKind.TAKEN_UP))
            job.begun, job.counts_from = True, pending.now - then.ran
            starting.limit(job)
            return actions
        if then.lost is None:
            return self._plan_anew(job, Reason(ReasonKind.BEING_PLANNED))
        if job.resume is None and not job.spec.resumes and not job.spec.retries:
            lost = Reason.of(then.lost.kind, **{**then.lost.facts, "run": job.run})
            return [job.mark("failed", lost)]
        return self._plan_anew(job, Reason.of(ReasonKind.STARTED_AGAIN, after=then.lost))

    def _planned(self, now: float, event: JobPlanned) -> list[Action]:
        job = self._jobs.all.get(event.job)
        if job is None or job.revision != event.revision or job.state in ENDED:
            return []
        job.plan = event.plan
        self._jobs.file(job)
        return starting.wait(now, job)

    def _requested(self, pending: Pending, event: _Request) -> list[Action]:
        job = self._jobs.all.get(event.job)
        if job is None:
            return []
        match event:
            case StopRequested(_, kill, reason):
                return self._stop(job, kill, reason)
            case ResizeRequested(_, workers):
                return resizing.resize(job, workers, self._allocator, pending)
            case ChangeRequested(_, spec):
                job.spec = spec
                starting.limit(job)
                if self._queue is not None:
                    self._queue.at_once(job)
                    self._queue.asks_anew(job)
                    self._jobs.file(job)
                if job.tasks and not job.is_frozen:
                    pending.moved[job.id] = job
                    pending.changes.append(Changed(job.id, job.priority, spec.limits.cores))
                return []
            case MoveRequested(_, plan, reason, waits):
                return resizing.move(job, plan, reason, waits)
            case PauseRequested():
                return pausing.pause(pending, job, event, self._queue)
            case UnpauseRequested():
                job.spared_by = job.paused_for
                return pausing.unpause(pending, job, event, self._queue)

    # --- reports of tasks -------------------------------------------------------------------------

    def _told(self, pending: Pending, event: _Told) -> list[Action]:
        job = self._owner(event.task)
        if job is None:
            return []
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
                job.resume = event.instead
                lost = Reason.of(ReasonKind.CHECKPOINT_LOST, text=event.text)
                if event.instead is not None:
                    return faults.restart(job, task, lost)
                none_left = Reason.of(ReasonKind.NO_CHECKPOINT_LEFT, after=lost)
                return self._end(job, "failed", none_left, lost=True)
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
            self._stall_at = _soonest(self._stall_at, job.stalls_at())
        if job.watch is None or job.state != "running" or progress.covers == "part":
            return []  # the first batches do not show an epoch's final value
        latest = rule.raw_value(
            progress.loss if progress.mean is None else progress.mean, progress.metrics
        )
        if latest is None:
            return []
        if job.watch.reached(latest):
            facts = {"metric": rule.metric, "value": latest, "goal": rule.goal}
            return self._end(job, "done", Reason(ReasonKind.GOAL_REACHED, facts))
        return [Warn(job.watch.doubt, job.id)] if job.watch.doubt is not None else []

    def _judge_stalls(self, pending: Pending) -> None:
        """Let trackers detect jobs that stopped reporting, and tell the policy."""
        if self._stall_at is None or pending.now < self._stall_at:
            return
        self._stall_at = None
        for job in self._jobs.all.values():
            if job.tracker is not None and job.tasks and not job.is_frozen:
                if job.tracker.judge_stall(pending.now) and self.policy.tracks:
                    pending.changes.append(Stalled(job.id))
                self._stall_at = _soonest(self._stall_at, job.tracker.stalls_at())

    # --- ends -------------------------------------------------------------------------------------

    def _exited(self, pending: Pending, id: TaskId, exit: Exit) -> list[Action]:
        job = self._owner(id)
        if job is None:
            return []
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
                actions += self._fail(job, task, Exit(code=1), early)
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
            return self._fail(job, task, exit, why)
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
                *self._end(job, "failed", advised, exit, lost=True),
            ]
        if node is not None and faults.is_replaced(job, task):
            return faults.restart_server(job, task, loss, node, pending)
        return faults.restart(job, task, loss)

    def _up(self, pending: Pending, event: TaskStarted | TaskReady) -> list[Action]:
        """A task has started. A task of a role is then ready at once, later, or not in time."""
        job = self._owner(event.task)
        if job is None:
            return []
        task, failure = job.tasks[event.task], None
        if isinstance(event, TaskStarted):
            starting.began(pending.now, job)
            if not task.joins:
                job.other_tasks()
            role = job.spec.role_of(task.name)
            is_ready = role is not None and role.ready is None
        else:
            is_ready, failure = event.failure is None, event.failure
        if is_ready:
            starting.ready(pending, job, task, self._allocator)
        elif failure is not None and job.undisturbed and not task.stopping:
            return self._fail(job, task, Exit(code=1), failure)
        return []

    def _fail(self, job: JobRecord, task: TaskRecord, exit: Exit, why: Reason) -> list[Action]:
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
            self._queue.ended(pending.now, job)
        failure, job.failure = job.failure, None
        code = (failure or exit).shell_code
        if job.ends_as is not None:
            return [finishing.as_asked(job, *job.ends_as, code), *finishing.doubts(job)]
        if job.restart is not None:
            job.not_before = pending.now
            return [job.mark("waiting", Reason.of(ReasonKind.STARTED_AGAIN, after=job.restart))]
        if failure is None:
            return [job.mark("done", finishing.how_finished(job), 0), *finishing.doubts(job)]
        job.ending = None
        reason = job.failed_by or failure.because()
        nodes = self._allocator.nodes
        if more := faults.grow_after_oom(job, task, failure, reason, nodes):
            job.not_before = pending.now
            return more
        if job.tries_elsewhere:
            job.tries_elsewhere, job.not_before = False, pending.now
            return [job.mark("waiting", reason, code)]
        started = failure.code is not None or failure.signal is not None
        if started and job.doubts_its_plan:
            job.spec, job.plan = replace(job.spec, plan=_ALONE), None
            job.revision += 1
            return self._plan_anew(job, Reason.of(ReasonKind.TRIED_AS_ONE_TASK, after=reason), code)
        if started and job.retried < job.spec.retries:
            wait = min(2.0**job.retried, 60.0)
            job.retried += 1
            job.not_before = pending.now + wait
            left = job.spec.retries - job.retried + 1
            again = Reason.of(ReasonKind.TRIED_AGAIN, after=reason, seconds=wait, retries_left=left)
            return [job.mark("waiting", again, code)]
        advised = faults.advised(job, failure, reason, job.failed_at, nodes)
        return [job.mark("failed", advised, code)]

    def _plan_anew(self, job: JobRecord, reason: Reason, code: int | None = None) -> list[Action]:
        return [job.mark("waiting", reason, code), PlanJob(job.id, job.wanted, job.revision)]

    def _stop(self, job: JobRecord, kill: bool, reason: Reason | None) -> list[Action]:
        if job.state in ENDED:
            return []
        if not job.tasks:
            if job.queued and self._queue is not None:
                self._queue.withdraw(job)
            early = Reason.of(ReasonKind.STOPPED_BEFORE_START, attempt=job.attempt)
            return [job.mark("stopped", early)]
        if not kill and reason is not None:
            return self._end(job, "stopped", reason)
        state: JobState = "killed" if kill else "stopped"
        by_user = ReasonKind.KILLED_BY_USER if kill else ReasonKind.STOPPED_BY_USER
        asked = Reason(ReasonKind.USER_ASKED)
        return self._end(job, state, Reason(by_user), kill=kill, while_stopping=asked)

    def _end(
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

    def _timeouts(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for job in in_order(self._jobs.limited.values()):
            if job.deadline is not None and now >= job.deadline:
                job.limit(None)
                if job.evaluates_last:
                    actions += faults.evaluated(job)
                    continue
                over = Reason.of(ReasonKind.TIMED_OUT, seconds=job.spec.timeout or 0.0)
                actions += self._end(job, "failed", over)
        return actions

    # --- starting ---------------------------------------------------------------------------------

    def _start_due(self, pending: Pending) -> list[Action]:
        due, actions = starting.due(pending.now, self._jobs, self._allocator.nodes)
        if self._queue is not None:
            due, more = self._queue.admit(pending.now, due)
            actions += [*more, *self._queue.bounds.decided()]
        return actions + self._start(pending, due)

    def _start(
        self, pending: Pending, jobs: Sequence[JobRecord], why: Reason | None = None
    ) -> list[Action]:
        if not jobs:
            return []
        # Jobs with reserved GPUs go first, so that the others get the remaining GPUs.
        first = sorted(jobs, key=lambda job: not job.slots)
        actions = [
            action for job in first for action in starting.place(pending, job, self._allocator)
        ]
        # Shares of new jobs are settled together with all others, before the new jobs start.
        for job in jobs:
            if self._tracks:
                job.track(pending.now)
            most, workers = job.spec.limits.cores, job.planned().workers
            pending.changes.append(Arrived(job.id, job.priority, most, workers, job.tracker))
            if (
                job.work is not None
                and job.attempt == 1
                and job.resume is None
                and self.policy.predicts
            ):
                pending.changes.append(Predicted(job.id, *job.work))
        actions += self._allocator.settle(pending)
        for job in jobs:
            started = Reason.of(
                ReasonKind.STARTED,
                attempt=job.attempt,
                resumed_from=job.resume.where if job.resume is not None else None,
                is_urgent=job.spec.urgent or None,
                **job.overtook,
            )
            job.overtook = {}
            actions.append(job.mark("running", why or started))
        return actions

    # --- nodes ------------------------------------------------------------------------------------

    def _node_joined(self, now: float, node: Node, runs: Sequence[str]) -> list[Action]:
        """A node joined that jobs of these runs may use. Jobs that wait for room elsewhere start on
        it in their turn.
        """
        self._allocator.join(node)
        if self._queue is not None:
            self._queue.join(node)
        jobs = in_order(job for run in runs for job in self._jobs.of(run))
        for job in jobs:
            if job.nodes and node.name not in job.nodes:
                job.nodes = (*job.nodes, node.name)
            job.gone.pop(node.name, None)
            job.awaits = None
        if self._queue is None:
            return []
        waiting = [
            job for job in jobs if job.queued and job.plan is not None and not job.placed_by_user
        ]
        return self._queue.move(now, waiting, node, self._allocator.nodes)

    def _node_left(self, now: float, event: NodeLeft) -> None:
        """A node left for the jobs of some runs (none: all) and may come back. Jobs that wait for
        room on it ask for it elsewhere.
        """
        name, runs = event.node, event.runs
        until = now if event.for_good else now + faults.BACK_SECONDS
        if not runs:
            self._allocator.leave(name)
            if self._queue is not None:
                self._queue.leave(name)
        for job in (
            [job for run in runs for job in self._jobs.of(run)] if runs else self._jobs.all.values()
        ):
            job.gone[name] = until
            job.awaits = None
            plan = job.plan
            if (
                self._queue is not None
                and job.queued
                and plan
                and name in (*plan.worker_nodes, *plan.server_nodes)
            ):
                self._queue.withdraw(job)
                self._jobs.file(job)

    # --- small things -----------------------------------------------------------------------------

    def _owner(self, task: TaskId) -> JobRecord | None:
        job = self._jobs.all.get(task.job)
        return job if job is not None and task in job.tasks else None

    def _wake_at(self) -> float | None:
        times = [self._allocator.wake_at, self._queue.wake_at if self._queue is not None else None]
        times += [job.deadline for job in self._jobs.limited.values()]
        times += [starting.time_of(job) for job in self._jobs.planned]
        return _soonest(self._stall_at, *times)


def _soonest(*times: float | None) -> float | None:
    return min((time for time in times if time is not None), default=None)
