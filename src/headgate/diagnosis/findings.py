"""A finding: what held a job back, its cost, and a remedy. Values only; `headgate.reports` has the
sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from headgate.diagnosis.attribution import LEAST_PART, Resource, TimeEstimate
from headgate.diagnosis.granted import ThreadGrant
from headgate.diagnosis.remedies import NO_REMEDY, Remedy
from headgate.model.identifiers import TaskName
from headgate.model.reasons import Reason
from headgate.recorded.jobs import CoresSetting
from headgate.sampling.outside_programs import OutsideProgram

_FEWER_CORES = 1.1
"""Times as many cores granted before from which on these may explain slower steps."""
LEAST_SECONDS_TOLD = 1.0
"""A smaller cost is not worth a verdict, nor is one below `LEAST_PART`."""


class FindingKind(StrEnum):
    """What may hold a job back; docs/explain.md has a section for each kind."""

    NEIGHBOUR_CORES = "neighbour-cores"
    NEIGHBOUR_MEMORY = "neighbour-memory"
    NEIGHBOUR_DISK = "neighbour-disk"
    NEIGHBOUR_NETWORK = "neighbour-network"
    NEIGHBOUR_GPU = "neighbour-gpu"
    OWN_CAP = "own-cap"
    OWN_MEMORY = "own-memory"
    MEMORY_CREEPS = "memory-creeps"
    GPU_MEMORY_CREEPS = "gpu-memory-creeps"
    OWN_TASKS = "own-tasks"
    OWN_THREADS = "own-threads"
    HYPERVISOR = "hypervisor"
    INPUT = "input"
    DISK = "disk"
    COMMUNICATION = "communication"
    NETWORK = "network"
    CHECKPOINTS = "checkpoints"
    EVALUATION = "evaluation"
    GARBAGE_COLLECTION = "garbage-collection"
    COPIES = "copies"
    BETWEEN_STEPS = "between-steps"
    LOADER = "loader"
    DECODING = "decoding"
    SERVERS = "servers"
    STRAGGLER = "straggler"
    SLOW_NODE = "slow-node"
    SLOW_NIC = "slow-nic"
    DENSE_PULLS = "dense-pulls"
    SMALL_STEPS = "small-steps"
    FAULTS = "faults"
    SLOWER_THAN_BEFORE = "slower-than-before"
    STARTING = "starting"
    LEARNED = "learned"
    DIVERGED = "diverged"
    FAILED = "failed"
    WAITING = "waiting"
    HEALTHY = "healthy"
    NOT_KNOWN = "not-known"

    @property
    def has_cost(self) -> bool:
        """Whether it names a cause that cost time."""
        return self not in (
            FindingKind.HEALTHY,
            FindingKind.NOT_KNOWN,
            FindingKind.FAILED,
            FindingKind.MEMORY_CREEPS,
            FindingKind.GPU_MEMORY_CREEPS,
        )


OF_COMMUNICATION = frozenset(
    {
        FindingKind.STRAGGLER,
        FindingKind.SLOW_NODE,
        FindingKind.SLOW_NIC,
        FindingKind.SERVERS,
        FindingKind.DENSE_PULLS,
    }
)
OF_INPUT = frozenset({FindingKind.LOADER, FindingKind.DECODING})
"""Causes within a job that explain its communication and its waiting for input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What held a job back.

    Args:
        cost: Seconds; 0 with a band if unknown, and for a healthy or failed job.
        resource: A resource whose increase would help; None: there is none.
        culprit: The most expensive neighbour, a job's name or `others`; empty: no neighbour.
        facts: Facts of its kind.
        notes: Other possible costs.
        order: The jobs that `remedy` puts in order; all of them get the same order.
        least: Least fraction of a job's time for a verdict.
    """

    kind: FindingKind
    cost: TimeEstimate
    resource: Resource | None = None
    culprit: str = ""
    facts: Any = None
    remedy: Remedy = NO_REMEDY
    notes: tuple[DoubtfulLoss | LongStart | ThreadGrant, ...] = ()
    order: tuple[str, ...] = ()
    least: float = LEAST_PART


# --- notes ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DoubtfulLoss:
    """A neighbour that may have cost a job up to this many seconds, or nothing."""

    kind: ClassVar = "doubt"
    culprit: str
    resource: Resource
    most: float


@dataclass(frozen=True, slots=True)
class LongStart:
    """A start that took most of a job's time."""

    kind: ClassVar = "long-start"
    seconds: float


# --- facts ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourFacts:
    """The cost of neighbours.

    Args:
        lost: Seconds lost to the worst of them.
        slowed: Fraction of the job's run time; None: it did not run.
        through: Resources, the worst first.
        others: Other neighbours with a cost.
        runs: Other runs on its nodes at the same time.
        programs: The programs outside Headgate that used most of the first of these resources;
            empty: none was seen to use it.
    """

    lost: float
    slowed: float | None
    through: tuple[Resource, ...]
    others: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    programs: tuple[OutsideProgram, ...] = ()


@dataclass(frozen=True, slots=True)
class CapFacts:
    """The setting that limits its cores.

    Args:
        fewer_threads: Most seconds that fewer threads cost in addition; None: nothing.
    """

    setting: CoresSetting | None
    fewer_threads: float | None


@dataclass(frozen=True, slots=True)
class WaitedFacts:
    """What a job waited for before its start, and which jobs overtook it. `skipped`: why it never
    started.
    """

    waited_for: Reason | None = None
    overtaken_by: tuple[str, ...] = ()
    skipped: Reason | None = None


@dataclass(frozen=True, slots=True)
class BesidesFacts:
    """Additional seconds through a device of its own; None: hardly any."""

    device: float | None


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Whether neighbours moved more than the job, at unknown cost, and which of them moved most."""

    unsure: bool
    mover: str = ""


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Memory limit of each task in bytes."""

    limit: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreepFacts:
    """Memory of a task that creeps up over its steps.

    Args:
        bytes_per_second: The rate since its warm-up.
        bytes_per_step: None: its steps are unknown.
        limit: The job's own limit for each task in bytes; None: that of its node counts. Of GPU
            memory: that of the GPUs on which the task holds some; None: unknown.
        seconds_left: From the last reading until the limit is full at this rate; None: unknown.
    """

    task: TaskName
    bytes_per_second: float
    bytes_per_step: float | None
    limit: float | None
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A value that differs between two runs; empty: missing in that run."""

    what: str
    first: str
    second: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowerFacts:
    """A job whose steps take longer than in earlier runs of the same script.

    Args:
        times: The time of a step over the usual one of these runs.
        low: Low end of a 90 % band of that.
        high: High end of it.
        per_sample: Whether the time of a sample is compared, as the steps have other sizes.
        runs: The earlier runs, latest first.
        differs: What differs from the latest of them.
        fewer_cores: Cores granted in the latest of them over those granted now; None: unknown.
    """

    times: float
    low: float
    high: float
    per_sample: bool
    runs: tuple[str, ...]
    differs: tuple[Difference, ...]
    fewer_cores: float | None = None

    @property
    def is_explained(self) -> bool:
        """Whether the job was granted so many fewer cores that nothing else need have changed."""
        return self.fewer_cores is not None and self.fewer_cores >= max(self.low, _FEWER_CORES)


@dataclass(frozen=True, slots=True)
class SlowNicFacts:
    """A node with a slower NIC; bytes a second, None: no limit is known."""

    node: str
    rate: float
    usual_rate: float | None


@dataclass(frozen=True, slots=True)
class TablesFacts:
    """The fraction of a table that a step touches."""

    touched: float


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A full server: the used fractions of its NIC's rate or its cores."""

    task: TaskName
    nic: float | None
    cores: float | None


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """Resources of a loader's workers; None: the job loads in its training process."""

    used: float | None = None
    cores: float | None = None


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Steps too small for the machine.

    Args:
        batches: Batches in a step.
        seconds: Seconds of a batch.
        useful: Seconds of its arithmetic.
        cores: Cores in use while threads spin; None: they do not spin.
    """

    batches: int
    seconds: float
    useful: float
    cores: float | None = None


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """Mean number of threads waiting for a core, and the cores among these for the loader's
    workers.
    """

    waited: float
    helper_cores: float


@dataclass(frozen=True, slots=True)
class PartFacts:
    """The fraction of each step in one span, or outside of those with a name."""

    part: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerFacts:
    """A worker that the others wait for.

    Args:
        own: Seconds of its own part of a step.
        usual: The same of the others.
        span: The span with most of the difference.
        larger_batches: Whether its batches may be larger.
    """

    task: TaskName
    own: float
    usual: float
    span: str
    larger_batches: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowNodeFacts:
    """A slow node that the others wait for.

    Args:
        cores: Cores of the node, if different from the others'.
        limited: Whether a limit on CPU time throttled the worker. Then `own` and `usual` are
            fractions of time, else seconds of its own part of a step.
    """

    task: TaskName
    node: str
    cores: float | None
    limited: bool
    own: float
    usual: float


@dataclass(frozen=True, slots=True)
class PlateauFacts:
    """Where a job stopped learning: its loss, or the first step with a non-finite loss."""

    since: float
    loss: float | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class FailureFacts:
    """How a job ended, as recorded."""

    state: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class HealthyFacts:
    """Seconds of its own work, and its total time.

    Args:
        began: Whether it started.
        lost: Whether it lost a notable time.
    """

    own: float
    elapsed: float
    began: bool
    lost: bool


class MissingKind(StrEnum):
    """Readings that an account may lack."""

    GPU_ALONE = "gpu-alone"
    GPU_OF_SEVERAL_TASKS = "gpu-of-several-tasks"
    CORE_WAITS = "core-waits"
    STEPS = "steps"
    DISK_WAITS = "disk-waits"


@dataclass(frozen=True, slots=True)
class MissingReading:
    """A reading that an account needs and the run lacks.

    Args:
        culprit: The neighbour that used the GPU most meanwhile.
        seconds: Seconds of its use.
    """

    kind: MissingKind
    culprit: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class UnknownFacts:
    """Why the cause is unknown.

    Args:
        ended_early: It ended, or was asked about, before enough readings.
        missing: Readings that the run lacks.
        unexplained: Seconds without an explanation.
    """

    ended_early: bool = False
    missing: tuple[MissingReading, ...] = ()
    unexplained: float = 0.0


# --- facts of remedies ----------------------------------------------------------------------------
