"""The core: events in, actions out. No clock, no files, no sockets; the hub and the simulator drive the same object."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from headgate.events import (
    ENDED,
    Action,
    Checkpoint,
    CheckpointDone,
    Event,
    Exit,
    JobId,
    JobPlanned,
    JobState,
    JobSubmitted,
    MarkJob,
    NodeJoined,
    PlanJob,
    Progress,
    SetShare,
    StartTask,
    StopRequested,
    StopTask,
    TaskConnected,
    TaskExited,
    TaskId,
    TaskStarted,
    Usage,
    Wake,
    Warn,
)
from headgate.jobs import Job
from headgate.plans import Plan
from headgate.policies.base import Arrived, Change, Left, Policy, Reported, Used
from headgate.shares import Share, entitled
from headgate.units import say_seconds

GRACE_SECONDS = 10.0
"""How long a task that is asked to end may take before it is killed."""

CONNECTED_GRACE_SECONDS = 60.0
"""The same for a task that answers on the channel: it first has to reach the end of its step and to save a
checkpoint."""


@dataclass(slots=True)
class _Task:
    id: TaskId
    node: str
    share: Share
    threads: int
    entitled: float
    gpus: tuple[int, ...] | None
    connected: bool = False


@dataclass(slots=True, eq=False)
class _Job:
    id: JobId
    spec: Job
    submitted: float
    resume: Checkpoint | None
    state: JobState = "waiting"
    reason: str = ""
    revision: int = 0
    plan: Plan | None = None
    attempt: int = 0
    not_before: float | None = None
    deadline: float | None = None
    ends_as: tuple[JobState, str] | None = None
    tasks: dict[TaskId, _Task] = field(default_factory=dict)
    failure: Exit | None = None

    @property
    def run(self) -> str:
        return self.id.rsplit("/", 1)[0]


class Controller:
    """Holds the jobs of every run of one hub.

    Args:
        policy: What moves shares; driven only from here.

    Example:
        >>> from headgate.policies import EqualPolicy
        >>> controller = Controller(EqualPolicy())
        >>> controller.step(0.0, JobSubmitted("r/a", Job(name="a", run="true")))
        ([MarkJob(job='r/a', state='waiting', reason='being planned', exit_code=None), PlanJob(job='r/a', ...)], None)
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._jobs: dict[JobId, _Job] = {}
        self._cores: dict[str, float] = {}
        self._gpus: dict[str, tuple[int, ...]] = {}
        self._policy_wake: float | None = None
        self._policy_fault = ""

    def step(self, now: float, event: Event) -> tuple[list[Action], float | None]:
        """What to do about an event.

        Args:
            now: Seconds on the run's clock; never goes back.
            event: What happened.

        Returns:
            The actions, in the order in which they are to be taken, and when to send a `Wake` (None: no need).
        """
        actions: list[Action] = []
        changes: list[Change] = []
        match event:
            case NodeJoined(node):
                self._cores[node.name] = node.cores
                self._gpus[node.name] = tuple(gpu.index for gpu in node.gpus)
            case JobSubmitted(job, spec, resume):
                entry = self._jobs[job] = _Job(job, spec, now, resume)
                entry.revision = 1
                actions += [self._mark(entry, "waiting", "being planned"), PlanJob(job, spec, entry.revision)]
            case JobPlanned(job, revision, plan):
                found = self._jobs.get(job)
                if found is not None and found.revision == revision and found.state not in ENDED:
                    found.plan = plan
                    actions += self._say_waiting(now, found)
            case TaskConnected(task):
                if (owner := self._owner(task)) is not None:
                    owner.tasks[task].connected = True
            case TaskExited(task, exit):
                actions += self._exited(now, task, exit, changes)
            case Progress():
                actions += self._progressed(event, changes)
            case Usage(task, cpu_cores, memory_bytes):
                if (owner := self._owner(task)) is not None:
                    changes.append(Used(owner.id, cpu_cores, memory_bytes))
            case CheckpointDone(task, checkpoint):
                if (owner := self._owner(task)) is not None:
                    owner.resume = checkpoint
            case StopRequested(job, kill):
                actions += self._stop(job, kill)
            case TaskStarted() | Wake():
                pass
        actions += self._timeouts(now)
        actions += self._start_due(now, changes)
        due = self._policy_wake is not None and now >= self._policy_wake
        if changes or due:
            actions += self._share(now, changes)
        return actions, self._wake_at()

    def forget(self, run: str) -> None:
        """Drop the jobs of a run that has ended."""
        self._jobs = {id: job for id, job in self._jobs.items() if job.run != run}

    # --- what happened ----------------------------------------------------------------------------------------------

    def _exited(self, now: float, task: TaskId, exit: Exit, changes: list[Change]) -> list[Action]:
        job = self._owner(task)
        if job is None:
            return []
        del job.tasks[task]
        if not exit.ok and job.failure is None:
            job.failure = exit
        if job.tasks:
            # One task less than the plan has: the others wait for it in vain.
            return [] if job.failure is None else self._end(job, "failed", exit.in_words())
        changes.append(Left(job.id))
        job.deadline = None
        failure, job.failure = job.failure, None
        code = (failure or exit).shell_code
        if job.ends_as is not None:
            return [self._mark(job, *job.ends_as, code)]
        if failure is None:
            return [self._mark(job, "done", "finished", 0)]
        reason = failure.in_words()
        started = failure.code is not None or failure.signal is not None
        if started and job.attempt <= job.spec.retries:
            wait = min(2.0 ** (job.attempt - 1), 60.0)
            job.not_before = now + wait
            left = job.spec.retries - job.attempt + 1
            again = f"{reason}; tried again in {say_seconds(wait)}" + (f" ({left} retries left)" if left > 1 else "")
            return [self._mark(job, "waiting", again, code)]
        return [self._mark(job, "failed", reason, code)]

    def _progressed(self, progress: Progress, changes: list[Change]) -> list[Action]:
        job = self._owner(progress.task)
        if job is None:
            return []
        if progress.loss is not None:
            changes.append(
                Reported(job.id, progress.loss, progress.step, progress.epoch, progress.epochs, progress.count)
            )
        rule = job.spec.progress
        value = progress.metrics.get(rule.metric, progress.loss if rule.metric == "loss" else None)
        if value is None or rule.goal is None or job.state != "running" or not rule.reached(value):
            return []
        return self._end(job, "done", f"reached its goal: {rule.metric} {value:.6g}, asked for {rule.goal:g}")

    def _stop(self, id: JobId, kill: bool) -> list[Action]:
        job = self._jobs.get(id)
        if job is None or job.state in ENDED:
            return []
        if not job.tasks:
            when = "it was tried again" if job.attempt else "it started"
            return [self._mark(job, "stopped", f"stopped before {when}")]
        if kill:
            return self._end(job, "killed", "killed by its user", kill=True)
        return self._end(job, "stopped", "stopped by its user")

    def _end(self, job: _Job, state: JobState, reason: str, *, kill: bool = False) -> list[Action]:
        """Have the tasks of a job ended, as `state`; a second call can only make it harder, from stopping to
        killing."""
        if job.ends_as is not None and not kill:
            return []
        job.ends_as = (state, reason)
        actions: list[Action] = [self._mark(job, "stopping", reason)]
        for task in job.tasks.values():
            grace = 0.0 if kill else CONNECTED_GRACE_SECONDS if task.connected else GRACE_SECONDS
            actions.append(StopTask(task.id, grace, reason))
        return actions

    def _timeouts(self, now: float) -> list[Action]:
        actions: list[Action] = []
        for job in self._jobs.values():
            if job.deadline is not None and now >= job.deadline:
                job.deadline = None
                actions += self._end(job, "failed", f"over its timeout of {say_seconds(job.spec.timeout or 0.0)}")
        return actions

    # --- starting ---------------------------------------------------------------------------------------------------

    def _start_time(self, job: _Job) -> float | None:
        """When a waiting job may start; None while that is not known."""
        if job.not_before is not None:
            return job.not_before
        return job.submitted + job.spec.at if job.spec.after is None else None

    def _start_due(self, now: float, changes: list[Change]) -> list[Action]:
        actions: list[Action] = []
        # Jobs that were handed in together start with shares that know of each other.
        unplanned = {job.run for job in self._jobs.values() if job.state == "waiting" and job.plan is None}
        due: list[_Job] = []
        skipped = True
        while skipped:  # a skipped job may be what another one waits for
            skipped = False
            for job in self._jobs.values():
                if job.state != "waiting" or job.plan is None or job.run in unplanned or job in due:
                    continue
                if job.not_before is None and job.spec.after is not None:
                    other = self._jobs.get(f"{job.run}/{job.spec.after}")
                    if other is None or other.state == "done":
                        job.not_before = now + job.spec.at
                        actions += self._say_waiting(now, job)
                    elif other.state in ENDED:
                        why = f"{other.spec.name}, which it comes after, ended as {other.state}"
                        actions.append(self._mark(job, "skipped", why))
                        skipped = True
                        continue
                when = self._start_time(job)
                if when is not None and now >= when:
                    due.append(job)
        return actions + self._start(now, due, changes)

    def _say_waiting(self, now: float, job: _Job) -> list[Action]:
        if job.not_before is None and job.spec.after is not None:
            return [self._mark(job, "waiting", f"for {job.spec.after} to finish")]
        when = self._start_time(job)
        if when is None or when <= now:
            return []
        return [self._mark(job, "waiting", f"starts in {say_seconds(when - now)}")]

    def _start(self, now: float, jobs: Sequence[_Job], changes: list[Change]) -> list[Action]:
        if not jobs:
            return []
        for job in jobs:
            self._place(now, job)
        # Newcomers' shares are settled with everybody else's before they start, so that they start with them.
        arrived = [Arrived(job.id, job.spec.priority, job.spec.limits.cores) for job in jobs]
        actions = self._share(now, [*changes, *arrived], starting=jobs)
        changes.clear()
        for job in jobs:
            text = f"going on from step {job.resume.step}" if job.resume is not None else "started"
            again = f" (attempt {job.attempt})" if job.attempt > 1 else ""
            actions.append(self._mark(job, "running", text + again))
        return actions

    def _place(self, now: float, job: _Job) -> None:
        """Make the tasks of a job's next attempt."""
        plan, limits = job.plan, job.spec.limits
        if plan is None:
            raise ValueError(f"{job.id} has no plan")
        job.attempt += 1
        job.ends_as = None
        job.deadline = now + job.spec.timeout if job.spec.timeout is not None else None
        nodes = [(f"worker-{i}", node) for i, node in enumerate(plan.worker_nodes)]
        nodes += [(f"server-{i}", node) for i, node in enumerate(plan.server_nodes)]
        cap = limits.cores / len(nodes) if limits.cores is not None else None
        share = Share(cpu_cap_cores=cap, memory_bytes=limits.memory_bytes)
        for name, node in nodes:
            task = f"{job.id}/{name}"
            job.tasks[task] = _Task(task, node, share, 0, 0.0, self._least_used(node, limits.gpus))

    def _least_used(self, node: str, count: int | None) -> tuple[int, ...] | None:
        """The GPUs of a node that the fewest tasks use, so many of them; None where a job may use all."""
        if count is None:
            return None
        used = Counter(
            gpu for job in self._jobs.values() for t in job.tasks.values() if t.node == node for gpu in t.gpus or ()
        )
        return tuple(sorted(sorted(self._gpus[node], key=lambda gpu: (used[gpu], gpu))[:count]))

    # --- sharing ----------------------------------------------------------------------------------------------------

    def _share(self, now: float, changes: Sequence[Change], starting: Sequence[_Job] = ()) -> list[Action]:
        """Ask the policy, and bring every task to what follows from its answer; tasks of `starting` are started with
        it."""
        actions: list[Action] = []
        reasons: dict[JobId, str] = {}
        granted: dict[TaskId, Share] = {}
        try:
            decision = self.policy.decide(now, sum(self._cores.values()), changes)
            for id, (share, reason) in decision.shares.items():
                job = self._jobs.get(id)
                if job is None or not job.tasks:
                    continue
                for task in job.tasks.values():
                    granted[task.id] = _within(share, job, len(job.tasks))
                reasons[id] = reason
            self._policy_wake, self._policy_fault = decision.wake_at, ""
        except Exception as error:  # noqa: BLE001  # a plug-in's fault must not end the jobs
            granted, self._policy_wake = {}, None
            if self._policy_fault != repr(error):  # not with each report of each job
                self._policy_fault = repr(error)
                actions.append(Warn(f"policy {self.policy.name!r} failed, shares stay as they are: {error!r}"))
        for job in self._jobs.values():
            for task in job.tasks.values():
                task.share = task.share.merged(granted.get(task.id, Share()))
        cores = self._entitled()
        for job in self._jobs.values():
            for task in job.tasks.values():
                task.entitled, before = cores[task.id], (task.entitled, task.threads)
                task.threads = max(1, math.ceil(task.entitled - 1e-9))
                reason = reasons.get(job.id, "what others leave" if task.share.cpu_weight is not None else "no policy")
                if job in starting and job.plan is not None:
                    actions.append(
                        StartTask(
                            task=task.id,
                            job=job.id,
                            spec=job.spec,
                            plan=job.plan,
                            node=task.node,
                            attempt=job.attempt,
                            share=task.share,
                            threads=task.threads,
                            entitled_cores=task.entitled,
                            reason=reason,
                            gpus=task.gpus,
                            resume=job.resume,
                        )
                    )
                elif task.id in granted or before != (task.entitled, task.threads):
                    change = granted.get(task.id, Share())
                    actions.append(SetShare(task.id, change, task.threads, task.entitled, reason))
        return actions

    def _entitled(self) -> dict[TaskId, float]:
        """Cores that each task is entitled to, node by node."""
        result: dict[TaskId, float] = {}
        for node, cores in self._cores.items():
            tasks = [t for job in self._jobs.values() for t in job.tasks.values() if t.node == node]
            result |= entitled(cores, {t.id: t.share for t in tasks})
        return result

    # --- small things -----------------------------------------------------------------------------------------------

    def _mark(self, job: _Job, state: JobState, reason: str, code: int | None = None) -> MarkJob:
        job.state, job.reason = state, reason
        return MarkJob(job.id, state, reason, code)

    def _owner(self, task: TaskId) -> _Job | None:
        job = self._jobs.get(task.rsplit("/", 1)[0])
        return job if job is not None and task in job.tasks else None

    def _wake_at(self) -> float | None:
        times: list[float | None] = [self._policy_wake]
        for job in self._jobs.values():
            times.append(job.deadline)
            if job.state == "waiting" and job.plan is not None:
                times.append(self._start_time(job))
        return min((t for t in times if t is not None), default=None)


def _within(share: Share, job: _Job, tasks: int) -> Share:
    """A job's share as that of each of its tasks, never above what the user allows."""
    limit = job.spec.limits.cores
    cap = share.cpu_cap_cores
    if limit is not None and cap is not None:
        cap = min(cap, limit) if isinstance(cap, int | float) else limit
    weight = share.cpu_weight
    return Share(
        cpu_weight=max(weight / tasks, 1.0) if weight is not None else None,
        cpu_cap_cores=cap / tasks if isinstance(cap, int | float) else cap,
        memory_bytes=share.memory_bytes if job.spec.limits.memory_bytes is None else None,
        disk_bytes_per_second=share.disk_bytes_per_second,
        gpu_fraction=share.gpu_fraction,
    )
