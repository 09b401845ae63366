"""The life of jobs, from submission to end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from headgate.controller import faults, pausing, resizing, starting
from headgate.controller.allocation import Allocator
from headgate.controller.at_once import per_core
from headgate.controller.ends import Ends
from headgate.controller.gpu_memory import WorkerSlot
from headgate.controller.jobs import Jobs, in_order
from headgate.controller.pairing import Pairing
from headgate.controller.pending import Pending, soonest
from headgate.controller.queue_orders import Claim, FifoOrder
from headgate.controller.queueing import Queue
from headgate.controller.records import JobRecord
from headgate.controller.start_forecast import StartForecast
from headgate.controller.task_reports import TaskReport, TaskReports
from headgate.controller.unseen_steps import UnseenSteps
from headgate.controller.urgency import Urgency
from headgate.forecast.job_tracker import JobTracker
from headgate.model.actions import Action
from headgate.model.cluster import Node
from headgate.model.endings import Exit
from headgate.model.events import (
    ChangeRequested,
    CheckpointDone,
    CheckpointLost,
    Event,
    GpuMemoryUsed,
    GpusUsed,
    JobGivesBack,
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
from headgate.model.identifiers import JobId
from headgate.model.job_states import ENDED
from headgate.model.progress import Progress
from headgate.model.reasons import Reason, ReasonKind
from headgate.planning.interference import Interference
from headgate.policies import NoPolicy
from headgate.policies.base import Arrived, Changed, Policy

_Request = (
    StopRequested
    | ResizeRequested
    | ChangeRequested
    | MoveRequested
    | PauseRequested
    | UnpauseRequested
    | JobGivesBack
)

_TaskEvent = TaskReport | TaskExited | TaskStarted | TaskReady


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
    queue = Queue(FifoOrder(), True, seconds, pairing, per_core(policy.name), alike=by_turns)
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
        self._unseen_steps = UnseenSteps(self._jobs)
        self._allocator = allocator = Allocator(policy, self._jobs, compares_gpus)
        self._ends = Ends(self._jobs, allocator, queue)
        self._reports = TaskReports(self._jobs, policy, queue, self._ends)
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
            case Usage() | Progress() | CheckpointDone() | CheckpointLost() | TaskExited():
                actions += self._of_task(pending, event)
            case TaskConnected() | GpusUsed() | TaskJoined() | TaskLeaves():
                actions += self._of_task(pending, event)
            case TaskStarted() | TaskReady():
                actions += self._of_task(pending, event)
            case Predicted():
                owner = self._jobs.all.get(event.job)
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
                | JobGivesBack()
            ):
                actions += self._requested(pending, event)
        self._reports.judge_stalls(pending)
        if self._jobs.limited:
            actions += self._ends.time_out(now)
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
        return starting.plan_anew(job, Reason(ReasonKind.BEING_PLANNED))

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
            return starting.plan_anew(job, Reason(ReasonKind.BEING_PLANNED))
        if job.resume is None and not job.spec.resumes and not job.spec.retries:
            lost = Reason.of(then.lost.kind, **{**then.lost.facts, "run": job.run})
            return [job.mark("failed", lost)]
        return starting.plan_anew(job, Reason.of(ReasonKind.STARTED_AGAIN, after=then.lost))

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
                return self._ends.stop(job, kill, reason)
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
            case JobGivesBack(_, attempt, reason, ends):
                is_meant = attempt in (None, job.attempt) and job.tasks and not job.finished
                if not is_meant or not job.undisturbed:
                    return []
                return self._ends.stop(job, False, reason) if ends else job.restart_for(reason)
            case PauseRequested():
                return pausing.pause(pending, job, event, self._queue)
            case UnpauseRequested():
                job.spared_by = job.paused_for
                return pausing.unpause(pending, job, event, self._queue)

    # --- tasks ------------------------------------------------------------------------------------

    def _of_task(self, pending: Pending, event: _TaskEvent) -> list[Action]:
        job = self._jobs.all.get(event.task.job)
        if job is None or event.task not in job.tasks:
            return []
        match event:
            case TaskExited(task, exit):
                return self._ends.exited(pending, job, task, exit)
            case TaskStarted() | TaskReady():
                return self._up(pending, job, event)
        return self._reports.take(pending, job, event)

    def _up(self, pending: Pending, job: JobRecord, event: TaskStarted | TaskReady) -> list[Action]:
        """A task has started. A task of a role is then ready at once, later, or not in time."""
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
            return self._ends.fail(job, task, Exit(code=1), failure)
        return []

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
        return actions + [starting.running(job, why) for job in jobs]

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

    def _wake_at(self) -> float | None:
        times = [self._allocator.wake_at, self._queue.wake_at if self._queue is not None else None]
        times += [job.deadline for job in self._jobs.limited.values()]
        times += [starting.time_of(job) for job in self._jobs.planned]
        return soonest(self._reports.stall_at, *times)
