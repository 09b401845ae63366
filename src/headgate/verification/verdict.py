"""What a verification found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Sameness(StrEnum):
    """The answer."""

    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


class Why(StrEnum):
    """Why it probably differs, or why nothing can be said."""

    # Of a difference.
    LOSS = "loss"
    """Gradients differ: parts of the loss weigh unequally."""
    HOOK = "hook"
    """Hooks on gradients."""
    BUFFER = "buffer"
    """Buffers that a forward pass changes."""
    NORMALISATION = "normalisation"
    """Statistics of each worker's own samples."""
    RANDOM = "random"
    """Random draws in a step."""
    DATA = "data"
    """Other samples."""
    UNPREPARED = "unprepared"
    """An optimizer that was not given to `prepare`."""
    APART = "apart"
    """Workers differ from each other."""
    SET = "set"
    """Workers differ from each other by what the script does to weights."""
    OPTIMIZER = "optimizer"
    """The same gradients, other weights."""
    RESUME = "resume"
    """What a checkpoint does not hold."""
    # Of no answer.
    NO_STEP = "no-step"
    FAILED = "failed"
    WORKERS_FAILED = "workers-failed"
    SLOW = "slow"
    VARIES = "varies"
    """The script differs from itself, with the same seeds."""
    SENSITIVE = "sensitive"
    """Rounding alone takes it elsewhere."""
    OUTSIDE = "outside"
    NETWORK = "network"
    """It failed of what it could not reach."""
    OPEN = "open"
    """Nothing holds back what it sends."""
    GPU = "gpu"
    """It failed without the GPUs that its job holds."""
    UNSEEN = "unseen"
    """Its framework shows its steps to nobody."""
    SHARDED = "sharded"
    """No worker has a whole tensor."""
    OWN_BATCH = "own-batch"
    ASYNCHRONOUS = "asynchronous"
    NOT_STOPPED = "not-stopped"
    ROOM = "room"
    UNFENCED = "unfenced"
    NOT_YET = "not-yet"
    ELSEWHERE = "elsewhere"
    ROLES = "roles"


class LeftOut(StrEnum):
    """What a trial does not do of what the script asks for."""

    DROPOUT = "dropout"
    NOISE = "noise"
    MIXED_PRECISION = "mixed-precision"
    GPUS = "gpus"


class CutOff(StrEnum):
    """What keeps a trial from other programs."""

    NAMESPACE = "namespace"
    """A network of its own."""
    PORTS = "ports"
    """Landlock, which refuses TCP to ports that services have."""
    PYTHON = "python"
    """Python alone."""


class StopPlace(StrEnum):
    """Where a script was as it was asked to stop."""

    VALIDATION = "validation"
    ACCUMULATION = "accumulation"
    EPOCH_END = "epoch-end"
    TRAINING = "training"


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """Where two records first differ.

    Args:
        step: Step, from 1.
        optimizer: Which optimizer's, from 1.
        kind: `gradient`, `weight` or `buffer`.
        tensors: Names of those that differ, the farthest first.
        size: How far the first of them is off, relative to its norm.
    """

    step: int
    optimizer: int
    kind: str
    tensors: tuple[str, ...]
    size: float


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer of one verification.

    Args:
        answer: It.
        workers: Workers that it was compared with.
        steps: Steps that were compared.
        double: Whether the script computed in float64.
        cause: Why, where it is not the same.
        difference: Where it first differs.
        largest: The largest relative difference of any tensor at any step.
        rounding: The largest between two runs alone whose weights began some roundings apart.
        strategy: Of the plan.
        servers: Its parameter servers.
        left_out: What the script asks for and was not done, alone or under the plan.
        loss_differs: How far the losses that were reported differ, relative; 0: they do not.
        fenced: Whether the kernel kept what it wrote away from other files.
        cut_off: What kept it from other programs.
        outside: Paths outside of its folder that it tried to write.
        network: What it tried to reach over a network, and could not.
        detail: What names the cause further: a path, the script's last words, names of tensors.
        stopped_in: Where it was stopped, of a verification of a resume.
        stopped_at: In which forward pass.
        seed: What decided that.
        seconds: How long it took.
        output: Where what the script printed is, where it failed.
        sources: The modules and settings of its own that it read, with the SHA-256 of each. A path
            begins with the number of its folder, as of `folders.outer`.
    """

    answer: Sameness
    workers: int
    steps: int = 0
    double: bool = True
    cause: Why | None = None
    difference: FirstDifference | None = None
    largest: float = 0.0
    rounding: float = 0.0
    strategy: str = "allreduce"
    servers: int = 0
    left_out: tuple[LeftOut, ...] = ()
    loss_differs: float = 0.0
    fenced: bool = True
    cut_off: CutOff = CutOff.NAMESPACE
    outside: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    detail: tuple[str, ...] = ()
    stopped_in: StopPlace | None = None
    stopped_at: int | None = None
    seed: int | None = None
    seconds: float = 0.0
    output: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
