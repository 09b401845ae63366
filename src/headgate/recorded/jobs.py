"""What was recorded of a job, and its phases."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, get_args

from headgate.model.events import ENDED, JobState
from headgate.model.identifiers import TaskName, TaskOfRun
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
"""From so many times the speed on, one worker instead of several is worth a word."""

_THREADS = "OMP_NUM_THREADS"
_NOT_PROFILED = Profile("", "", "run")

Usage = Mapping[Column, Signal]


class CoresSetting(NamedTuple):
    """A setting of a job that limits its cores: its path in a job file, and whose role it is."""

    field: str
    value: str | float
    role: str = ""


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of time that a job spent in one state; `attempt` counts from 1 while it runs."""

    state: str
    start: float
    end: float
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """What a job was granted from a time on, and why.

    Args:
        t: Seconds since the run began.
        cores: Cores that all its tasks together are entitled to when every job wants the CPU.
        before: The cores of the decision before; None for the first.
    """

    t: float
    cores: float
    before: float | None
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class RecordedTask:
    """What was recorded of a task of a job.

    Args:
        id: `JOB/ROLE-INDEX`.
        node: Name of its node; empty if not known.
        usage: While its job ran.
        division: How its sampled steps divide; of a server, its rounds.
        memory_peak_bytes: Most resident memory, as the kernel counted it.
        cap: The most cores that it might use; empty if it had no cap.
        threads: The number of compute threads that it was told to use; empty if it was told none.
        gpus: Numbers of the GPUs of its node that it held memory on; empty if not known.
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
        """Most resident memory, as the kernel has it or as it was sampled, whichever is more. The
        kernel's counts page cache that was given back since, such as that of a file that was
        deleted: as much as was seen is left out.
        """
        cache, sampled = self.signal("cache_bytes"), self.signal("memory_bytes").maximum
        given_back = (cache.maximum or 0.0) - (cache.last or 0.0)
        counted = (self.memory_peak_bytes or 0.0) - given_back
        return max((peak for peak in (counted, sampled) if peak and peak > 0.0), default=None)

    def signal(self, column: Column) -> Signal:
        """The usage of that column; empty where there was none."""
        return self.usage.get(column, EMPTY)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedJob:
    """All that was recorded of a job. Figures of several tasks are added up.

    Args:
        reason: Why it is in its state; None: nothing tells.
        spec: As it was handed in; without a command where its record is damaged.
        apart: Whether its workers turned out to share nothing.
        decisions: About what it was entitled to, in the order of time.
        division: How the sampled steps of its workers divide.
        tasks: Workers first, by index, then servers.
        traced: Sampled steps of each of its tasks, to be replayed.
        sampled: A typical and the slowest step with all that its tasks did; empty for a job of one
            task.
        faults: Those that it survived.
        proofs: What pauses of other jobs told about it; for each of them, the latest.
        asides: Seconds that a worker spent beside its steps, by what they were spent on; the worker
            that spent most.
        shell_threads: What `OMP_NUM_THREADS` said where the run was handed in; empty: nothing.
        placement_options: Options of a command that run or plan it where it ran; empty: on this
            machine, or not known.
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
        """A limit that its user set, such as `memory_bytes` of each of its tasks, or `cores` of
        all; None: no limit.
        """
        limit = getattr(self.spec.limits, name)
        return float(limit) if limit is not None else None

    def allowed_cores(self, task: RecordedTask, cores: float) -> float:
        """The most cores that its user lets a task have on a node of so many: its part of `limits:
        {cores: ...}`, which all tasks divide, what its role or its plan leaves each, and `share:`;
        infinite if there is none of these.
        """
        return min(self._allowed(task, cores).values(), default=math.inf)

    def cores_setting(self, task: RecordedTask, cores: float) -> CoresSetting | None:
        """The setting of its user that `allowed_cores` comes from; None: nothing limits them."""
        allowed = self._allowed(task, cores)
        return min(allowed, key=lambda setting: allowed[setting], default=None)

    def _allowed(self, task: RecordedTask, cores: float) -> Mapping[CoresSetting, float]:
        """By each of its user's settings the most cores that it leaves a task."""
        plan, role = self.spec.plan, self.spec.role_of(task.name)
        of_plan = "cores_per_worker" if task.is_worker else "cores_per_server"
        allowed: dict[CoresSetting, float] = {}
        if self.spec.slice is not None:
            beside = max(sum(other.node == task.node for other in self.tasks), 1)
            share = CoresSetting("share", str(self.spec.share))
            allowed[share] = self.spec.slice * cores / beside
        if whole := self.limit("cores"):
            allowed[CoresSetting("limits.cores", whole)] = whole / max(len(self.tasks), 1)
        if plan is not None and (most := getattr(plan, of_plan)):
            allowed[CoresSetting(f"plan.{of_plan}", most)] = most
        if role is not None and role.cores:
            allowed[CoresSetting("roles.cores", role.cores, role.name)] = role.cores
        return allowed

    @property
    def cost(self) -> Profile:
        """Its profile; one in which nothing was measured where it has none."""
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
    def workers(self) -> int:
        return sum(task.is_worker for task in self.tasks)

    @property
    def servers(self) -> int:
        return sum(task.is_server for task in self.tasks)

    @property
    def can_run_alone(self) -> bool:
        """Whether a command runs it as a single process: of a script, unless another launcher's
        contract asks for what it has.
        """
        return bool(self.spec.script) and self.spec.contract is None

    @property
    def can_be_planned(self) -> bool:
        """Whether Headgate can plan it. A script for another launcher can be planned if its user
        said what becomes of its batch.
        """
        return bool(self.spec.script) and (
            self.spec.contract is None or self.spec.batch is not None
        )

    @property
    def arguments(self) -> str:
        """The arguments of its script, or its command, as they are typed."""
        run = self.spec.run
        command = run if isinstance(run, str) else shlex.join(run or ())
        return " ".join(filter(None, [command, shlex.join(self.spec.args)]))

    @property
    def told_threads(self) -> str:
        """What `OMP_NUM_THREADS` says in its own `env`, or in that of one of its roles; empty:
        nothing.
        """
        environments = [*(role.env for role in self.spec.roles), self.spec.env]
        return next((env[_THREADS] for env in environments if _THREADS in env), "")

    @property
    def single_worker_speedup(self) -> float | None:
        """How many times as fast one worker would be, if that is worth a word. It does in a step
        what all workers do, one after the other, and waits for nobody: that is the most that it
        takes.
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
        """The fewest that its plan can have: those of its `limits: {workers: ...}`, and the chief
        and a worker of TensorFlow's parameter servers.
        """
        has_servers = self.plan is not None and self.plan.strategy == "ps"
        served = self.spec.launch == "tensorflow" and has_servers
        return max(2 if served else 1, self.spec.limits.workers[0])

    def signal(self, column: Column) -> Signal:
        """The usage of that column; empty where there was none."""
        return self.usage.get(column, EMPTY)


@dataclass(frozen=True, slots=True, eq=False)
class RecordedNode:
    """What was recorded of a node; cores, GPUs and rates are None where they are not known."""

    name: str
    usage: Usage
    cores: float | None = None
    memory_bytes: float | None = None
    nic_bytes_per_second: float | None = None
    disk_bytes_per_second: float | None = None
    gpus: int | None = None
    description: str = ""
    core_gflops: float | None = None

    def signal(self, column: Column) -> Signal:
        """The usage of that column; empty where there was none."""
        return self.usage.get(column, EMPTY)


def phases(
    marks: Sequence[tuple[float, str, str]],
    *,
    submitted: float,
    started: float | None,
    ended: float | None,
    state: str,
    until: float,
) -> tuple[Phase, ...]:
    """The states that a job went through, up to `until` seconds.

    Args:
        marks: Time, state and reason of each change that was recorded, in order; where there is
            none, the other arguments tell the little that they can.
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
        elif name == "running":
            attempt += 1
        result.append(
            Phase(name, time, max(later, time), attempt if name != "waiting" else 0, reason)
        )
    return tuple(phase for phase in result if phase.end > phase.start)


def running(record: Sequence[Phase]) -> list[tuple[float, float]]:
    """The stretches of time in which a job's tasks ran, one for each attempt: while it stops, they
    still run.
    """
    running_spans: dict[int, tuple[float, float]] = {}
    for phase in record:
        if phase.state in ("running", "stopping"):
            begin, _ = running_spans.get(phase.attempt, (phase.start, phase.end))
            running_spans[phase.attempt] = begin, phase.end
    return list(running_spans.values())
