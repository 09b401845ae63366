"""What may be done about a finding, and the facts of each remedy. Values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from headgate.diagnosis.attribution import Resource
from headgate.recorded.jobs import CoresSetting
from headgate.sampling.outside_programs import OutsideProgram


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
    COMPARE_EARLIER = "compare-earlier"
    COMPARE_RUNS = "compare-runs"
    DECODE_ONCE = "decode-once"
    END_OTHER_PROGRAMS = "end-other-programs"
    END_PROGRAM = "end-program"
    ENLARGE_STEPS = "enlarge-steps"
    EVALUATE_LESS = "evaluate-less"
    EXCHANGE_ROWS = "exchange-rows"
    FIND_LEAK = "find-leak"
    FREEZE_GARBAGE = "freeze-garbage"
    LEAVE_NODE_OUT = "leave-node-out"
    LEAVE_TOGETHER = "leave-together"
    LONGER_RUNS = "longer-runs"
    LOWER_LEARNING_RATE = "lower-learning-rate"
    NAME_STEP = "name-step"
    NONE = "none"
    PIN_MEMORY = "pin-memory"
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
        settings: Proposed values of job-file fields by path, such as `limits.memory`; None: remove
            the field.
        job: The job of the settings; empty: the job of the finding.
        facts: Further facts behind the advice.
        speedup: Resulting speedup; None: unknown.
        otherwise: An additional or alternative remedy.
    """

    kind: RemedyKind
    settings: Mapping[str, Any] = field(default_factory=dict)
    job: str = ""
    facts: Any = None
    speedup: float | None = None
    otherwise: Remedy | None = None


NO_REMEDY = Remedy(kind=RemedyKind.NONE)


@dataclass(frozen=True, slots=True)
class ResourceFacts:
    """Twice as much of a resource; `now`: the present number; None: not a number."""

    resource: Resource
    now: int | None


@dataclass(frozen=True, slots=True)
class CoresFacts:
    """The setting to raise or remove; None: none limits its cores."""

    setting: CoresSetting | None


@dataclass(frozen=True, slots=True)
class TasksFacts:
    """Tasks that share some cores, and whether they have roles."""

    setting: CoresSetting | None
    cores: float
    tasks: int
    roles: bool


@dataclass(frozen=True, slots=True)
class NodesFacts:
    """Nodes to keep.

    Args:
        listed: Whether the plan lists the workers' nodes.
        parts: Whether the plan lists each worker's part of the batch.
    """

    nodes: tuple[str, ...]
    listed: bool
    parts: bool


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """The role that gets one more task."""

    role: str


@dataclass(frozen=True, slots=True)
class ReadersFacts:
    """Processes that read the job's input; None: unknown."""

    now: int | None


@dataclass(frozen=True, slots=True)
class ThreadSetting:
    """Threads that have a core each, and `OMP_NUM_THREADS` in the job's own `env`; empty: not
    set.
    """

    stated: str
    threads: int


@dataclass(frozen=True, slots=True)
class StacksFacts:
    """The processes whose stacks to look at, and whether a library of Headgate's would show more.

    Args:
        readers: Loader workers that read its input; None: its tasks.
    """

    readers: int | None = None
    every_thread: bool = True
    libraries: bool = False


@dataclass(frozen=True, slots=True)
class AloneFacts:
    """What a run alone would show.

    Args:
        threads: The benefit of more threads; else the cost of neighbours.
        fixed: Its thread count is fixed, so that no trial shows it.
        provable: `headgate explain --prove` shows it too.
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
    """Completion time of a job one after the other, and as it ran."""

    job: str
    alone: float
    elapsed: float


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """Jobs one after the other.

    Args:
        ends: Completion times; empty: unknown.
        shorter: Whether the first is known to be the shortest.
        replaced: The present `after:` of the second; empty: none.
    """

    order: Sequence[str]
    ends: tuple[SoloEnd, ...] = ()
    shorter: bool = False
    replaced: str = ""
