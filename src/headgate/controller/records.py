"""The controller's records of jobs and their tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from headgate.controller.gpu_memory import WorkerSlot
from headgate.controller.task_record import TaskRecord
from headgate.forecast.core_need import pace_of
from headgate.forecast.job_tracker import JobTracker, is_busy
from headgate.model.actions import Action, MarkJob, StartTask
from headgate.model.cluster import Node
from headgate.model.endings import Checkpoint, Ending, Exit
from headgate.model.events import GpuUse, Usage
from headgate.model.goals import GoalWatch
from headgate.model.identifiers import JobId, TaskId, TaskName
from headgate.model.job_states import JobState
from headgate.model.jobs import MOST_PRIORITY, Job
from headgate.model.plans import Plan
from headgate.model.progress import Progress
from headgate.model.reasons import Facts, KeepsRoom, PauseKind, Reason, ReasonKind
from headgate.model.shares import NOTHING, Share
from headgate.policies.base import Used

_URGENT_PRIORITY = 10 * MOST_PRIORITY


class JobIndex(Protocol):
    """An index of jobs, which a job keeps true as it changes."""

    limited: dict[JobId, JobRecord]
    giving_way: dict[JobId, JobRecord]
    on: dict[str, dict[TaskId, tuple[JobRecord, TaskRecord]]]

    def file(self, job: JobRecord) -> None:
        """Put a job into the indexes of its state."""


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job of a run that has not been forgotten.

    Args:
        jobs: Index of all jobs, updated when the job changes.
        number: How many jobs were submitted before it.
        key: Key of its script, arguments and variables; empty: unknown.
        needs_bytes: Known memory of a worker; None: unknown.
        needs_gpu_bytes: The same of each GPU that it uses.
        uses_gpus: Whether its program computes on a GPU, judging by its command.
        moved_gpu: It ran out of memory on a GPU and was tried on another with more.
        tries_elsewhere: That try has yet to start.
        slots: Where its workers have room, if GPU memory is reserved for them; empty: none is.
        divides: Whether its script shards the model's memory among its workers.
        work: Core-seconds that such jobs took: likely, least, most; None: unknown.
        gpus: GPUs of each node that its environment allows, in that order; None: all.
        script: Key of its script, whatever its arguments; empty: not known.
        best_at_once: How many jobs of it at once brought most in an earlier run; None: not known.
        queued: It waits in a queue for room, not for a time or another job.
        overtook: Facts of the earlier job that it overtook; empty: none.
        nodes: Names of the nodes that it may use.
        gone: Its lost nodes, and until when each may come back.
        awaits: Until when it waits for one of its nodes to come back; None: it does not wait.
        retried: Attempts that the script failed and that were repeated.
        ends_as: State and reason of its end, once its tasks have ended.
        lost: It ends after a fault that it cannot survive.
        restart: Why it restarts from its last checkpoint, once its tasks have ended.
        failure: Exit of the task that failed the attempt, or of the first that ended badly at a
            stop.
        failed_by: Why the attempt failed; None: it did not fail by itself.
        failed_at: Name of the node of the task that failed the attempt.
        begun: A task of this attempt has started.
        finished: A worker of this attempt has finished.
        overdue_seconds: Time within which a task did not end when asked; None: all did.
        saved_then: A checkpoint was saved after the stop request.
        ending: Details of its end besides the reason; None: nothing.
        evaluates_last: Its workers have ended, and its evaluator has until the deadline.
        kills: Processes of this attempt that the OOM killer killed.
        met: A worker of this attempt has connected.
        worked: A worker has reported progress under this plan, in this or an earlier attempt.
        framework: Framework of a connected task: `torch`, `keras` or `jax`.
        least_workers: Fewest workers among which its memory fits, as far as it has shown.
        faults: Tasks lost since the last checkpoint at a cost to others.
        starts: How often each task was started in this attempt.
        granted: What the policy grants the job as a whole.
        why: Reason of its share, as last announced.
        held: Tasks that wait until the roles before theirs are ready, with the node of each.
        ready: Tasks of roles that are ready.
        paused_for: Id of the urgent job that it is paused for; empty: its user asked; None: it is
            not paused. `pause_for` sets it.
        spared_by: Id of the urgent job that it runs beside: its user unpaused it, or it could not
            be frozen.
        frozen_at: Since when its tasks are frozen; None: they are not. The policy then does not
            know the job.
        counts_from: Since when its attempt counts for its timeout, without pauses.
        watch: Detects when it reaches its goal; None: it has no goal.
        tracker: Its losses and use since it first ran; None: nobody needs them.
    """

    jobs: JobIndex = field(repr=False)
    number: int
    id: JobId
    spec: Job
    submitted: float
    resume: Checkpoint | None
    nodes: tuple[str, ...]
    key: str = ""
    needs_bytes: int | None = None
    needs_gpu_bytes: int | None = None
    uses_gpus: GpuUse = "no"
    moved_gpu: bool = False
    tries_elsewhere: bool = False
    slots: tuple[WorkerSlot, ...] = ()
    divides: bool = False
    work: tuple[float, float, float] | None = None
    gpus: tuple[int, ...] | None = None
    script: str = ""
    best_at_once: int | None = None
    queued: bool = False
    overtook: Facts = field(default_factory=dict)
    state: JobState = "waiting"
    reason: Reason | None = None
    revision: int = 0
    plan: Plan | None = None
    attempt: int = 0
    retried: int = 0
    not_before: float | None = None
    gone: dict[str, float] = field(default_factory=dict)
    awaits: float | None = None
    deadline: float | None = None
    ends_as: tuple[JobState, Reason] | None = None
    lost: bool = False
    restart: Reason | None = None
    failure: Exit | None = None
    failed_by: Reason | None = None
    failed_at: str = ""
    begun: bool = False
    finished: bool = False
    overdue_seconds: float | None = None
    saved_then: bool = False
    ending: Ending | None = None
    evaluates_last: bool = False
    kills: int = 0
    met: bool = False
    worked: bool = False
    framework: str = ""
    least_workers: int = 1
    faults: int = 0
    starts: Counter[TaskName] = field(default_factory=Counter)
    granted: Share = NOTHING
    why: Reason | None = None
    tasks: dict[TaskId, TaskRecord] = field(default_factory=dict)
    held: dict[TaskName, str] = field(default_factory=dict)
    ready: set[TaskName] = field(default_factory=set)
    paused_for: str | None = None
    spared_by: str | None = None
    frozen_at: float | None = None
    counts_from: float = 0.0
    watch: GoalWatch | None = field(init=False)
    tracker: JobTracker | None = None

    def __post_init__(self) -> None:
        self.watch = self.spec.progress.watch()

    @property
    def run(self) -> str:
        return self.id.run

    def planned(self) -> Plan:
        """Its plan.

        Raises:
            ValueError: It has no plan yet.
        """
        if self.plan is None:
            raise ValueError(f"{self.id} has no plan")
        return self.plan

    @property
    def wanted(self) -> Job:
        """The job to be planned, with no fewer workers than its memory needs."""
        fewest, most = self.spec.limits.workers
        if self.least_workers <= fewest or self.spec.plan is not None:
            return self.spec
        least = min(self.least_workers, most) if most is not None else self.least_workers
        return replace(self.spec, limits=replace(self.spec.limits, workers=(least, most)))

    def mark(self, state: JobState, reason: Reason, code: int | None = None) -> MarkJob:
        """Enter a state. A paused job neither waits nor runs until it is unpaused."""
        if self.paused_for is not None and state in ("waiting", "running"):
            state, reason = "paused", self.pause_reason()
        self.state, self.reason = state, reason
        self.jobs.file(self)
        return MarkJob(self.id, state, reason, code, self.ending)

    @property
    def priority(self) -> float:
        """Its priority; that of an urgent job is above all others."""
        return _URGENT_PRIORITY if self.spec.urgent else self.spec.priority

    @property
    def keeps_room(self) -> KeepsRoom | None:
        """Why its tasks are not ended for an urgent job; None: they may be."""
        if self.spec.urgent:
            return KeepsRoom.URGENT
        if not self.spec.pausable:
            return KeepsRoom.NOT_PAUSABLE
        saves = self.spec.resumes or any(task.connected for task in self.tasks.values())
        return None if saves or self.resume is not None else KeepsRoom.NO_CHECKPOINT

    def pause_for(self, urgent: str | None) -> None:
        """Note that it is paused, or no longer (None); argument as `paused_for`."""
        self.paused_for = urgent
        if urgent:
            self.jobs.giving_way[self.id] = self
        else:
            self.jobs.giving_way.pop(self.id, None)

    def release(self, urgent: str) -> list[Action]:
        """End its tasks with a checkpoint, from which it goes on once it is unpaused."""
        keeps_pause = urgent and self.paused_for is not None  # its user's outlasts the urgent job
        self.pause_for(self.paused_for if keeps_pause else urgent)
        return self.restart_for(Reason(ReasonKind.PAUSES))

    def restart_for(self, reason: Reason) -> list[Action]:
        """End its tasks with a checkpoint, from which it goes on once there is room again."""
        self.restart = reason
        stops = [task.stop(reason) for task in self.workers() or self.tasks.values()]
        return [self.mark("stopping", reason), *stops]

    @property
    def is_frozen(self) -> bool:
        """Whether its tasks are frozen."""
        return self.frozen_at is not None

    def pause_reason(self) -> Reason:
        """Why it is paused, and what it keeps."""
        facts = {"keeps": PauseKind.HELD_BACK, "urgent": self.paused_for or None}
        if self.tasks and self.undisturbed:
            facts["keeps"] = PauseKind.FROZEN
        elif self.attempt:
            facts["keeps"] = PauseKind.RELEASED
            facts["resumes_from"] = self.resume.where if self.resume is not None else None
        return Reason.of(ReasonKind.PAUSED, **facts)

    def workers(self) -> list[TaskRecord]:
        """Running workers, by index."""
        return sorted(
            (task for task in self.tasks.values() if task.is_worker), key=lambda task: task.index
        )

    def at_work(self) -> list[TaskRecord]:
        """Workers that have the job's state and are not leaving, by index."""
        return [task for task in self.workers() if not task.joins and not task.leaving]

    def spread(self, workers: bool) -> Counter[str]:
        """Number of its workers, or of its servers, on each node."""
        return Counter(task.node for task in self.tasks.values() if task.is_worker == workers)

    @property
    def placed_by_user(self) -> bool:
        """Whether its user chose the nodes of its tasks."""
        return self.spec.plan is not None and bool(
            self.spec.plan.worker_nodes or self.spec.plan.server_nodes
        )

    @property
    def gpu_memory_bytes(self) -> int | None:
        """Expected memory of each worker on each of its GPUs; None: unknown."""
        stated, needs = self.spec.limits.gpu_memory_bytes, self.needs_gpu_bytes
        return max(stated or 0, needs or 0) or None if self.moved_gpu else stated or needs

    def gpus_of(self, task: TaskRecord) -> tuple[int, ...]:
        """GPUs that a task computes on, as far as known: reported by it, reserved for it, or all
        visible to it.
        """
        kept = dict.fromkeys(
            gpu for slot in self.slots if slot.node == task.node for gpu in slot.gpus
        )
        return task.computes_on or tuple(kept) or task.gpus or ()

    @property
    def sees_gpus_of_all(self) -> bool:
        """Whether each worker sees the GPUs of all workers on its node and picks one by local rank,
        as other launchers do.
        """
        # TensorFlow processes use all GPUs that they see
        return self.spec.contract not in (None, "tensorflow")

    @property
    def doubts_its_plan(self) -> bool:
        """Whether a plan chosen by Headgate may make it fail: several tasks that never reported
        progress.
        """
        may_be_alone = (
            self.spec.plan is None and max(self.spec.limits.workers[0], self.least_workers) <= 1
        )
        several = self.planned().trains_together and self.planned().tasks > 1
        return may_be_alone and several and not (self.worked or self.finished)

    def came_to_work(self) -> None:
        """A task reported progress, or saved a checkpoint beyond the one it began from. Messages
        while the tasks are being stopped do not count for the next plan.
        """
        self.worked = self.worked or self.undisturbed
        if self.spec.resumes and self.undisturbed:
            self.faults = 0  # checkpoints of its script are not reported

    @property
    def undisturbed(self) -> bool:
        """Whether it runs, and nothing ordered so far ends the attempt."""
        return self.ends_as is None and self.restart is None and self.failure is None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes that it may use; empty: any."""
        plan = self.planned()
        return self.nodes or tuple(dict.fromkeys((*plan.worker_nodes, *plan.server_nodes)))

    def there(self, nodes: Mapping[str, Node]) -> Mapping[str, Node]:
        """The given nodes without those that are lost to it, whoever else uses them."""
        return (
            {name: node for name, node in nodes.items() if name not in self.gone}
            if self.gone
            else nodes
        )

    def reachable(self, nodes: Mapping[str, Node]) -> list[Node]:
        """The available nodes among those that it may use."""
        nodes_for_job = self.there(nodes)
        return [
            nodes_for_job[name] for name in self.names or nodes_for_job if name in nodes_for_job
        ]

    def missed(self, now: float) -> list[str]:
        """Names of its lost nodes that may come back."""
        return [name for name in self.names if self.gone.get(name, now) > now]

    def begin(self) -> None:
        """Start a new attempt."""
        self.attempt += 1
        self.ends_as = self.restart = self.failure = self.failed_by = None
        self.ending = self.overdue_seconds = None
        self.begun = self.finished = self.evaluates_last = self.met = self.saved_then = False
        self.frozen_at = None
        self.held, self.ready = {}, set()
        self.kills = 0
        self.granted = NOTHING
        self.starts.clear()

    def track(self, now: float) -> None:
        """Let its tracker follow the new attempt."""
        if self.tracker is None:
            rule = self.spec.progress
            self.tracker = JobTracker(now, goal=rule.goal, rising=rule.rising)
        else:
            self.tracker.begin_attempt(now, resumes=self.resume is not None)

    def add(
        self, name: TaskName, node: str, gpus: tuple[int, ...] | None, joins: bool = False
    ) -> TaskRecord:
        """Make the record of a task that is about to start."""
        id = self.id.task(name)
        self.starts[name] += 1
        again = self.starts[name] > 1
        task = self.tasks[id] = TaskRecord(
            id,
            node,
            gpus,
            joins,
            is_worker=self.spec.ends_with(name),
            again=again,
            saves=self.spec.resumes,
            grace=self.spec.grace,
        )
        self.jobs.on.setdefault(node, {})[id] = (self, task)
        return task

    def drop(self, id: TaskId) -> TaskRecord:
        """Remove an ended task."""
        task = self.tasks.pop(id)
        del self.jobs.on[task.node][id]
        self.other_tasks()
        return task

    def limit(self, deadline: float | None) -> None:
        """Set the deadline of its attempt; None: no deadline."""
        self.deadline = deadline
        if deadline is None:
            self.jobs.limited.pop(self.id, None)
        else:
            self.jobs.limited[self.id] = self

    def allowed(self, task: TaskRecord) -> Share:
        """The most that its plan and its user allow a task; core limits are divided among its
        running tasks.
        """
        plan, limits = self.planned(), self.spec.limits_of(task.name)
        own = plan.cores_per_worker if task.is_worker else plan.cores_per_server
        job_cores = self.spec.limits.cores
        part = job_cores / len(self.tasks) if job_cores is not None else None
        if self.spec.roles:
            own = limits.cores
        cap = min((cap for cap in (own, part) if cap is not None), default=None)
        if cap is None and limits.memory_bytes is None:
            return NOTHING
        return Share(cpu_cap_cores=cap, memory_bytes=limits.memory_bytes)

    def needed_cores(self) -> float | None:
        """Cores with which its steps wait for other things; None: unknown."""
        need = self.tracker.core_need.need if self.tracker is not None else None
        return need.cores if need is not None and need.waits else None

    def use(self, now: float, latest: Usage) -> Used:
        """Record the present use of one task.

        Returns:
            The use of all tasks together. Tasks without a reading count as much as the mean.
        """
        usages = [task.used for task in self.tasks.values() if task.used is not None]
        all_of_them = len(self.tasks) / len(usages)
        used = Used(
            self.id,
            all_of_them * sum(usage.cpu_cores for usage in usages),
            all_of_them * sum(usage.memory_bytes for usage in usages),
            all_of_them * sum(usage.disk_bytes_per_second for usage in usages),
            all_of_them * sum(usage.network_bytes_per_second for usage in usages),
            max((usage.seconds for usage in usages if usage.seconds is not None), default=None),
            pace_of(usages, all_of_them),
        )
        if self.tracker is not None:
            self.tracker.clock.worked(now, is_busy(latest))
            self.tracker.use(
                now,
                used.cpu_cores,
                used.memory_bytes,
                used.disk_bytes_per_second,
                used.network_bytes_per_second,
                used.seconds,
                used.pace,
            )
        return used

    def report(
        self, now: float, value: float | None, progress: Progress, adversarial: bool
    ) -> None:
        """Record a progress report; `value` is its metric."""
        if self.tracker is None:
            return
        for part in progress.parts:
            report = replace(
                progress,
                step=part.step,
                epoch=part.epoch,
                within=part.within,
                loss=part.loss,
                count=1,
                parts=(),
            )
            self.tracker.report(part.at, part.loss, report)
        if not progress.parts:
            self.tracker.report(now, value, progress, adversarial)

    def stalls_at(self) -> float | None:
        """When it counts as stalled unless it reports before; None: unknown."""
        return self.tracker.stalls_at() if self.tracker is not None else None

    def other_tasks(self) -> None:
        """Note that its set of tasks has changed."""
        if self.tracker is not None:
            self.tracker.other_tasks()

    def starting(self, task: TaskRecord, reason: Reason) -> StartTask:
        """The action that starts a task of it, with the task's present share."""
        return StartTask(
            task=task.id,
            job=self.id,
            spec=self.spec,
            plan=self.planned(),
            node=task.node,
            attempt=self.attempt,
            share=task.share,
            threads=task.threads,
            entitled_cores=task.entitled,
            reason=reason,
            gpus=task.gpus,
            resume=None if task.joins else self.resume,
            joins=task.joins,
        )
