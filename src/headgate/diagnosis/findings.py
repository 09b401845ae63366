"""A finding: what held a job back, what it cost, and what helps. Values only;
`headgate.reports.findings` has the sentences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from headgate.diagnosis.attribution import LEAST_PART, Resource, TimeEstimate
from headgate.diagnosis.granted import ThreadGrant
from headgate.model.identifiers import TaskName
from headgate.model.reasons import Reason
from headgate.recorded.jobs import CoresSetting
from headgate.sampling.outside_programs import OutsideProgram

LEAST_SECONDS_TOLD = 1.0
"""What cost less is not worth a verdict, nor what cost less than `LEAST_PART`."""


class FindingKind(StrEnum):
    """What may hold a job back; docs/explain.md has a section for each."""

    NEIGHBOUR_CORES = "neighbour-cores"
    NEIGHBOUR_MEMORY = "neighbour-memory"
    NEIGHBOUR_DISK = "neighbour-disk"
    NEIGHBOUR_NETWORK = "neighbour-network"
    NEIGHBOUR_GPU = "neighbour-gpu"
    OWN_CAP = "own-cap"
    OWN_MEMORY = "own-memory"
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
        return self not in (FindingKind.HEALTHY, FindingKind.NOT_KNOWN, FindingKind.FAILED)


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
"""Causes within a job that explain its communication, and its waiting for input."""


class RemedyKind(StrEnum):
    """What to do about a finding."""

    ADD_CORES = "add-cores"
    ADD_CORES_OR_REMOVE_TASKS = "add-cores-or-remove-tasks"
    ADD_LOADER_WORKERS = "add-loader-workers"
    ADD_RESOURCE = "add-resource"
    ADD_SERVER = "add-server"
    ASK_FOR_CORES = "ask-for-cores"
    ASK_OWNER = "ask-owner"
    CACHE_DATA = "cache-data"
    CALIBRATE = "calibrate"
    COMPARE_RUNS = "compare-runs"
    DECODE_ONCE = "decode-once"
    END_OTHER_PROGRAMS = "end-other-programs"
    END_PROGRAM = "end-program"
    ENLARGE_STEPS = "enlarge-steps"
    EVALUATE_LESS = "evaluate-less"
    EXCHANGE_ROWS = "exchange-rows"
    FREEZE_GARBAGE = "freeze-garbage"
    LEAVE_NODE_OUT = "leave-node-out"
    LEAVE_TOGETHER = "leave-together"
    LONGER_RUNS = "longer-runs"
    LOWER_LEARNING_RATE = "lower-learning-rate"
    NAME_STEP = "name-step"
    NONE = "none"
    PREPARE_DATA = "prepare-data"
    PRINT_STEPS = "print-steps"
    RAISE_MEMORY = "raise-memory"
    RAISE_SHARE = "raise-share"
    REDUCE_SERVERS = "reduce-servers"
    REDUCE_THREADS = "reduce-threads"
    REDUCE_WORKERS = "reduce-workers"
    RUN_ALONE = "run-alone"
    RUN_FEWER = "run-fewer"
    RUN_APART = "run-apart"
    RUN_IN_TURN = "run-in-turn"
    SAVE_LESS = "save-less"
    SEE_LOGS = "see-logs"
    SEE_PLANS = "see-plans"
    SEE_STACKS = "see-stacks"
    SEE_STATUS = "see-status"
    SINGLE_WORKER = "single-worker"
    STOP = "stop"
    TURN_ON_READINGS = "turn-on-readings"
    USE_ONE_HUB = "use-one-hub"
    WAIT_FOR_ENDS = "wait-for-ends"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What helps against a finding.

    Args:
        settings: Fields of a job file by their path, such as `limits.memory`, with the proposed
            value; None: without it.
        job: The job that the settings belong to; empty: the one that the finding is about.
        facts: What else the advice rests on.
        speedup: How many times the speed that brings; None: not known.
        otherwise: What helps besides or instead.
    """

    kind: RemedyKind
    settings: Mapping[str, Any] = field(default_factory=dict)
    job: str = ""
    facts: Any = None
    speedup: float | None = None
    otherwise: Remedy | None = None


NO_REMEDY = Remedy(kind=RemedyKind.NONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What held a job back.

    Args:
        cost: Seconds; 0 with a band where not known, and of a job that is healthy or failed.
        resource: More of it would help; None if there is none.
        culprit: The neighbour that cost it most, a job's name or `others`; empty if no neighbour
            did.
        facts: What the finding rests on, by its kind.
        notes: What else may have cost it time.
        order: The jobs that `remedy` puts in order, which all of them are told alike.
        least: The part of a job's time from which on it is worth a verdict.
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
    """A neighbour that may have cost a job up to so many seconds, or nothing."""

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
    """What neighbours cost a job.

    Args:
        lost: Seconds, to the worst of them.
        slowed: Part of the time that the job ran; None: it did not run.
        through: Resources, the worst first.
        others: Neighbours that cost it something as well.
        runs: Other runs on its nodes at the same time.
        programs: The programs outside Headgate that used most.
    """

    lost: float
    slowed: float | None
    through: tuple[Resource, ...]
    others: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    programs: tuple[OutsideProgram, ...] = ()


@dataclass(frozen=True, slots=True)
class CapFacts:
    """The setting that held its cores back.

    Args:
        fewer_threads: Seconds that having fewer threads cost as well, at the most; None: nothing.
    """

    setting: CoresSetting | None
    fewer_threads: float | None


@dataclass(frozen=True, slots=True)
class WaitedFacts:
    """What a job waited for before it started.

    Args:
        overtaken_by: Jobs that came later and started before it.
        skipped: Why it never started; None: it did, or may still.
    """

    waited_for: Reason | None = None
    overtaken_by: tuple[str, ...] = ()
    skipped: Reason | None = None


@dataclass(frozen=True, slots=True)
class BesidesFacts:
    """Seconds beside the cost that a device of its own took; None: hardly any."""

    device: float | None


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """Whether neighbours moved more than the job, and nothing tells what that cost it."""

    unsure: bool


@dataclass(frozen=True, slots=True)
class MemoryFacts:
    """Bytes that each of its tasks may use."""

    limit: float | None


@dataclass(frozen=True, slots=True)
class SlowNicFacts:
    """A node whose NIC is slower; bytes a second, None: no limit is known."""

    node: str
    rate: float
    usual_rate: float | None


@dataclass(frozen=True, slots=True)
class TablesFacts:
    """The part of a table that a step touches."""

    touched: float


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """A full server: the parts of its NIC's rate or of its cores that were in use."""

    task: TaskName
    nic: float | None
    cores: float | None


@dataclass(frozen=True, slots=True)
class LoaderFacts:
    """What a loader's workers had; None: the job loads in its training process."""

    used: float | None = None
    cores: float | None = None


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Steps too small for the machine.

    Args:
        batches: Of a step.
        seconds: Of a batch.
        useful: Seconds of its arithmetic.
        cores: In use while threads spin; None: they do not.
    """

    batches: int
    seconds: float
    useful: float
    cores: float | None = None


@dataclass(frozen=True, slots=True)
class ThreadFacts:
    """Threads that waited for a core, on average; and the cores that the loader's workers wanted
    of these.
    """

    waited: float
    helper_cores: float


@dataclass(frozen=True, slots=True)
class PartFacts:
    """The part of each step that lies outside its named spans."""

    part: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerFacts:
    """A worker that the others wait for.

    Args:
        own: Seconds of its own part of a step.
        usual: The same of the others.
        span: In which most of the difference is.
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
        cores: Of the node, where the others' have another number.
        limited: Whether a limit on its CPU time held the worker back: then `own` and `usual` are
            parts of the time, else seconds of its own part of a step.
    """

    task: TaskName
    node: str
    cores: float | None
    limited: bool
    own: float
    usual: float


@dataclass(frozen=True, slots=True)
class PlateauFacts:
    """Where a job stopped learning: its loss, or the step since when that is no number."""

    since: float
    loss: float | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class FailureFacts:
    """The state in which a job ended, and why."""

    state: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class HealthyFacts:
    """Seconds of its own work, and all of its time.

    Args:
        began: Whether it began.
        lost: Whether anything worth a word was lost.
    """

    own: float
    elapsed: float
    began: bool
    lost: bool


class MissingKind(StrEnum):
    """Readings that an account may miss."""

    GPU_ALONE = "gpu-alone"
    CORE_WAITS = "core-waits"
    STEPS = "steps"
    DISK_WAITS = "disk-waits"


@dataclass(frozen=True, slots=True)
class MissingReading:
    """A reading that an account needs and the run lacks.

    Args:
        culprit: The neighbour that used the GPU most meanwhile.
        seconds: That it used it for.
    """

    kind: MissingKind
    culprit: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class UnknownFacts:
    """Why it is not known what held a job back.

    Args:
        ended_early: It ended before enough was read of it.
        missing: Readings that the run lacks.
        unexplained: Seconds that nothing explains.
    """

    ended_early: bool = False
    missing: tuple[MissingReading, ...] = ()
    unexplained: float = 0.0


# --- facts of remedies ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ResourceFacts:
    """Twice as much of a resource; `now` is how many there are, None: that is no number."""

    resource: Resource
    now: int | None


@dataclass(frozen=True, slots=True)
class CoresFacts:
    """The setting to raise or drop; None: none holds its cores back."""

    setting: CoresSetting | None


@dataclass(frozen=True, slots=True)
class TasksFacts:
    """Tasks that share so many cores, and whether they have roles."""

    setting: CoresSetting | None
    cores: float
    tasks: int
    roles: bool


@dataclass(frozen=True, slots=True)
class NodesFacts:
    """Nodes to keep.

    Args:
        listed: Whether the plan lists nodes of workers.
        parts: Whether the plan lists each worker's part of the batch.
    """

    nodes: tuple[str, ...]
    listed: bool
    parts: bool


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """The role that gets one task more."""

    role: str


@dataclass(frozen=True, slots=True)
class ReadersFacts:
    """Processes that read the job's input beside it; None: not known."""

    now: int | None


@dataclass(frozen=True, slots=True)
class ThreadSetting:
    """What `OMP_NUM_THREADS` says in the job's own `env`; empty: nothing."""

    stated: str


@dataclass(frozen=True, slots=True)
class StacksFacts:
    """Whose stacks to look at, and whether Headgate's libraries would tell more.

    Args:
        readers: Loader workers that read its input; None: its tasks.
    """

    readers: int | None = None
    every_thread: bool = True
    libraries: bool = False


@dataclass(frozen=True, slots=True)
class AloneFacts:
    """What a run alone would tell.

    Args:
        threads: What more threads bring; else what neighbours cost.
        fixed: Its threads stay as they began, so that no trial tells it.
        provable: `headgate explain --prove` tells it as well.
    """

    threads: bool
    fixed: bool = False
    provable: bool = False


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """The program outside Headgate that used most.

    Args:
        renice: Whether a lower priority would help, and may be set.
    """

    program: OutsideProgram
    renice: bool = False


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Another run at the same time."""

    run: str


@dataclass(frozen=True, slots=True)
class SoloEnd:
    """Seconds until a job is done one after the other, and as it ran."""

    job: str
    alone: float
    elapsed: float


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """Jobs one after the other.

    Args:
        ends: Of each job; empty where not known.
        shorter: Whether the first is known to be the shortest.
        replaced: What the second has in `after:` now; empty: nothing.
    """

    order: Sequence[str]
    ends: tuple[SoloEnd, ...] = ()
    shorter: bool = False
    replaced: str = ""
