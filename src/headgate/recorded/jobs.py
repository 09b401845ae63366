"""A recorded job and its phases."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from headgate.model.identifiers import TaskName, TaskOfRun
from headgate.model.job_states import ENDED, JobState
from headgate.model.jobs import Job
from headgate.model.plans import Plan
from headgate.model.profiles import Profile
from headgate.model.reasons import Reason
from headgate.recorded.faults import Survived
from headgate.recorded.progress import ProgressSeries
from headgate.recorded.proofs import Proof
from headgate.recorded.rows import CheckpointRow, EventRow
from headgate.recorded.sampled import SampledStep, TracedStep
from headgate.recorded.steps import StepBreakdown
from headgate.recorded.usage import EMPTY, Signal
from headgate.sampling.columns import Column

STATES: tuple[JobState, ...] = get_args(JobState)
_FASTER = 1.25
"""From this speedup on, one worker instead of several is worth mentioning."""

_THREADS = "OMP_NUM_THREADS"
_NOT_PROFILED = Profile("", "", "run")

Usage = Mapping[Column, Signal]


class CoresSetting(NamedTuple):
    """A setting that limits a job's cores: its path in a job file, and the role it belongs to."""

    field: str
    value: str | float
    role: str = ""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time that a job spent in one state; `attempt` counts from 1 while it has
    tasks."""

    state: str
    start: float
    end: float
    attempt: int
    reason: str

    @property
    def is_frozen(self) -> bool:
        """Whether its tasks were frozen in it."""
        return self.state == "paused" and self.attempt > 0


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """A job's grant from a time on, and the reason.

    Args:
        t: Seconds since the run began.
        cores: Cores that its tasks together are entitled to when every job wants the CPU.
        before: Cores of the previous decision; None: this is the first.
    """

    t: float
    cores: float
    before: float | None
    reason: str


class _HasUsage:
    __slots__ = ()
    usage: Usage

    def signal(self, column: Column) -> Signal:
        """The use in this column; empty: not recorded."""
        return self.usage.get(column, EMPTY)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedTask(_HasUsage):
    """A recorded task of a job.

    Args:
        id: `JOB/ROLE-INDEX`.
        node: Name of its node; empty: unknown.
        usage: Its use while the job ran.
        division: How its sampled steps divide; for a server, its rounds.
        memory_peak_bytes: Peak resident memory from the kernel.
        cap: Most cores that it might use; empty: no cap.
        threads: Compute threads that it was told to use; empty: none were set.
        gpus: Numbers of GPUs of its node on which it held memory; empty: unknown.
    """

    id: TaskOfRun
    node: str
    started: float | None
    ended: float | None
    usage: Usage
    division: StepBreakdown | None
    memory_peak_bytes: float | None
    cap: Signal = EMPTY
    threads: Signal = EMPTY
    gpus: frozenset[int] = frozenset()

    @property
    def name(self) -> TaskName:
        """`ROLE-INDEX`."""
        return self.id.name

    @property
    def is_worker(self) -> bool:
        return self.name.is_worker

    @property
    def is_server(self) -> bool:
        return self.name.is_server

    @property
    def memory_peak(self) -> float | None:
        """Peak resident memory: the kernel's or the sampled one, whichever is greater. The kernel
        also counts page cache that was released since, as of a deleted file. The page cache that
        was observed is subtracted.
        """
        cache, sampled = self.signal("cache_bytes"), self.signal("memory_bytes").maximum
        given_back = (cache.maximum or 0.0) - (cache.last or 0.0)
        counted = (self.memory_peak_bytes or 0.0) - given_back
        return max((peak for peak in (counted, sampled) if peak and peak > 0.0), default=None)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedJob(_HasUsage):
    """A recorded job. Figures of several tasks are summed.

    Args:
        spec: The job as submitted; without a command if its record is damaged.
        apart: Whether its workers were found to share nothing.
        decisions: Decisions about its cores, in the order of time.
        division: How the sampled steps of its workers divide.
        tasks: Workers first, by index, then servers.
        traced: Sampled steps of each task, for replay.
        sampled: A typical and the slowest step with all that its tasks did; empty for a job of one
            task.
        faults: Faults that it survived.
        proofs: What pauses of other jobs showed about it; the latest for each.
        asides: Seconds of a worker beside its steps, by activity, for the worker with most.
        shell_threads: `OMP_NUM_THREADS` of the submitting shell; empty: not set.
        placement_options: Command-line options for the place where it ran; empty: this machine, or
            unknown.
    """

    name: str
    state: str
    reason: Reason | None
    exit_code: int | None
    spec: Job
    submitted: float
    started: float | None
    ended: float | None
    attempts: int
    phases: tuple[Phase, ...]
    progress: ProgressSeries
    usage: Usage
    entitled: Signal
    decisions: tuple[RecordedDecision, ...]
    division: StepBreakdown | None
    profile: Profile | None
    verified: str | None = field(default=None, kw_only=True)
    plan: Plan | None
    apart: bool = field(default=False, kw_only=True)
    memory_peak_bytes: float | None
    cpu_seconds: float | None
    checkpoints: Sequence[CheckpointRow] = ()
    events: Sequence[EventRow] = ()
    tasks: tuple[RecordedTask, ...] = ()
    sampled: tuple[SampledStep, ...] = ()
    traced: tuple[TracedStep, ...] = ()
    faults: tuple[Survived, ...] = ()
    proofs: tuple[Proof, ...] = ()
    asides: Mapping[str, float] = field(default_factory=dict)
    shell_threads: str = ""
    placement_options: tuple[str, ...] = ()

    def limit(self, name: str) -> float | None:
        """A limit set by its user, such as `memory_bytes` of each task or `cores` of all; None: no
        limit.
        """
        limit = getattr(self.spec.limits, name)
        return float(limit) if limit is not None else None

    def allowed_cores(self, task: RecordedTask, cores: float) -> float:
        """Most cores that its user allows a task on a node with `cores` cores; infinite: no limit.

        The limits are the task's part of `limits: {cores: ...}`, cores stated by its role or plan,
        and `share:`.
        """
        return min(self._allowed(task, cores).values(), default=math.inf)

    def cores_setting(self, task: RecordedTask, cores: float) -> CoresSetting | None:
        """The user's setting that `allowed_cores` comes from; None: no limit."""
        allowed = self._allowed(task, cores)
        return min(allowed, key=lambda setting: allowed[setting], default=None)

    def _allowed(self, task: RecordedTask, cores: float) -> Mapping[CoresSetting, float]:
        """Most cores of a task under each of its user's settings."""
        plan, role = self.spec.plan, self.spec.role_of(task.name)
        of_plan = "cores_per_worker" if task.is_worker else "cores_per_server"
        allowed: dict[CoresSetting, float] = {}
        if self.spec.slice is not None:
            beside = max(sum(other.node == task.node for other in self.tasks), 1)
            share = CoresSetting("share", str(self.spec.share))
            allowed[share] = self.spec.slice * cores / beside
        if job_cores := self.limit("cores"):
            allowed[CoresSetting("limits.cores", job_cores)] = job_cores / max(len(self.tasks), 1)
        if plan is not None and (most := getattr(plan, of_plan)):
            allowed[CoresSetting(f"plan.{of_plan}", most)] = most
        if role is not None and role.cores:
            allowed[CoresSetting("roles.cores", role.cores, role.name)] = role.cores
        return allowed

    @property
    def cost(self) -> Profile:
        """Its profile; one without measurements if it has none."""
        return self.profile or _NOT_PROFILED

    @property
    def synchronous(self) -> bool:
        """Whether each of its steps waits for all workers, as far as its plan is known."""
        return self.plan is None or self.plan.synchronous

    @property
    def distributed(self) -> bool:
        """Whether it had several tasks."""
        return len(self.tasks) > 1

    @property
    def exposed_fraction(self) -> float | None:
        """Fraction of its sampled steps spent only waiting for communication, 0 to 1; None: not
        measured. A single task waits for the other processes that it started.
        """
        return self.division.exposed_fraction if self.division is not None else None

    @property
    def workers(self) -> int:
        return sum(task.is_worker for task in self.tasks)

    @property
    def servers(self) -> int:
        return sum(task.is_server for task in self.tasks)

    @property
    def can_run_alone(self) -> bool:
        """Whether a command can run it as a single process: it is a script without another
        launcher's contract.
        """
        return bool(self.spec.script) and self.spec.contract is None

    @property
    def can_be_planned(self) -> bool:
        """Whether Headgate can plan it. A script for another launcher can be planned if its user
        said how it splits its batch.
        """
        return bool(self.spec.script) and (
            self.spec.contract is None or self.spec.batch is not None
        )

    @property
    def arguments(self) -> str:
        """The arguments of its script, or its command, as typed."""
        return self.spec.arguments

    @property
    def told_threads(self) -> str:
        """`OMP_NUM_THREADS` in its own `env` or in that of a role; empty: not set."""
        environments = [*(role.env for role in self.spec.roles), self.spec.env]
        return next((env[_THREADS] for env in environments if _THREADS in env), "")

    @property
    def single_worker_speedup(self) -> float | None:
        """Speedup of one worker over several, if worth mentioning. One worker does the work of all
        in turn and waits for nobody, so this is a lower bound.
        """
        steps = [task.division for task in self.tasks if task.is_worker]
        known = [step for step in steps if step is not None and step.exposed_fraction is not None]
        if (
            self.spec.contract is not None
            or self.spec.roles
            or not self.synchronous
            or "weak" in self.spec.allow
            or not len(known) == len(steps) > 1
        ):
            return None
        alone = sum(step.step_seconds * (1.0 - (step.exposed_fraction or 0.0)) for step in known)
        times = max(step.step_seconds for step in known) / max(alone, 1e-9)
        return times if times >= _FASTER else None

    @property
    def nodes(self) -> frozenset[str]:
        """Names of the nodes of its tasks, as far as known."""
        return frozenset(task.node for task in self.tasks if task.node)

    @property
    def least_workers(self) -> int:
        """Fewest workers that its plan can have: by `limits: {workers: ...}`, and two under
        TensorFlow's parameter servers (chief and worker).
        """
        has_servers = self.plan is not None and self.plan.strategy == "ps"
        served = self.spec.launch == "tensorflow" and has_servers
        return max(2 if served else 1, self.spec.limits.workers[0])


@dataclass(frozen=True, slots=True, eq=False)
class Neighbour(_HasUsage):
    """What used a node beside a run, and is no job of it.

    Args:
        usage: Its use.
        by_gpu: The fraction of the time in which its kernels ran, by GPU.
    """

    usage: Usage = field(default_factory=dict)
    by_gpu: Mapping[int, Signal] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedNode(_HasUsage):
    """A recorded node; cores, GPUs and rates are None if unknown."""

    name: str
    usage: Usage
    cores: float | None = None
    memory_bytes: float | None = None
    nic_bytes_per_second: float | None = None
    disk_bytes_per_second: float | None = None
    gpus: int | None = None
    gpu_bytes: Mapping[int, float] = field(default_factory=dict)
    description: str = ""
    core_gflops: float | None = None
    neighbours: Mapping[str, Neighbour] = field(default_factory=dict)
    """Jobs of other users, by `USER:JOB`, and all programs outside, `others`."""


def phases(
    marks: Sequence[tuple[float, str, str]],
    *,
    submitted: float,
    started: float | None,
    ended: float | None,
    state: str,
    until: float,
) -> tuple[Phase, ...]:
    """The states of a job up to `until` seconds.

    Args:
        marks: Time, state and reason of each recorded change, in order. Without any, the other
            arguments give an estimate.
    """
    known = [mark for mark in marks if mark[1] in STATES]
    if not known:
        known = [(submitted, "waiting", "")]
        known += [(started, "running", "")] if started is not None else []
        known += [(ended, state, "")] if ended is not None else []
    result: list[Phase] = []
    attempt = 0
    for index, (time, name, reason) in enumerate(known):
        if name in ENDED:
            break
        later = known[index + 1][0] if index + 1 < len(known) else until
        if result and result[-1].state == name:
            time = result.pop().start
        elif name == "running" and not (result and result[-1].is_frozen):
            attempt += 1
        has_tasks = name != "waiting" and not (name == "paused" and not _runs_on(result))
        result.append(Phase(name, time, max(later, time), attempt if has_tasks else 0, reason))
    return tuple(phase for phase in result if phase.end > phase.start)


def running(record: Sequence[Phase]) -> list[tuple[float, float]]:
    """The stretches in which a job's tasks ran, one for each attempt, divided by the pauses in
    which they were frozen. They still run while it stops.
    """
    stretches: dict[tuple[int, int], tuple[float, float]] = {}
    pauses = 0
    for phase in record:
        pauses += phase.is_frozen
        if phase.state in ("running", "stopping"):
            stretch = phase.attempt, pauses
            begin, _ = stretches.get(stretch, (phase.start, phase.end))
            stretches[stretch] = begin, phase.end
    return list(stretches.values())


def _runs_on(record: Sequence[Phase]) -> bool:
    """Whether the last phase had tasks that a pause may freeze."""
    return bool(record) and record[-1].state == "running"
