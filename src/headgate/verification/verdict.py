"""The result of a verification."""

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
    """Why it probably differs, or why it cannot be verified."""

    # causes of a difference
    LOSS = "loss"
    """Gradients differ: parts of the loss weigh unequally."""
    HOOK = "hook"
    """Hooks on gradients."""
    BUFFER = "buffer"
    """Buffers that a forward pass changes."""
    NORMALISATION = "normalisation"
    """Statistics over each worker's own samples."""
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
    """The same gradients, but different weights."""
    RESUME = "resume"
    """State that a checkpoint does not hold."""
    # reasons for no result
    NO_STEP = "no-step"
    FAILED = "failed"
    WORKERS_FAILED = "workers-failed"
    SLOW = "slow"
    VARIES = "varies"
    """The script differs from itself with the same seeds."""
    SENSITIVE = "sensitive"
    """Rounding alone changes the result."""
    OUTSIDE = "outside"
    NETWORK = "network"
    """It failed because it could not reach a network."""
    OPEN = "open"
    """Nothing isolates it from networks."""
    GPU = "gpu"
    """It failed without the GPUs of its job."""
    UNSEEN = "unseen"
    """Its framework does not show its steps."""
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
    """Requested operations that a trial does not do."""

    DROPOUT = "dropout"
    NOISE = "noise"
    MIXED_PRECISION = "mixed-precision"
    GPUS = "gpus"


class CutOff(StrEnum):
    """The mechanism that isolates a trial from other programs."""

    NAMESPACE = "namespace"
    """Its own network namespace."""
    PORTS = "ports"
    """Landlock, which refuses TCP to ports of services."""
    PYTHON = "python"
    """Only Python."""


class StopPlace(StrEnum):
    """Where a script was when it was asked to stop."""

    VALIDATION = "validation"
    ACCUMULATION = "accumulation"
    EPOCH_END = "epoch-end"
    TRAINING = "training"


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first difference of two records.

    Args:
        step: Step, from 1.
        optimizer: Number of the optimizer, from 1.
        kind: `gradient`, `weight` or `buffer`.
        tensors: Names of those that differ, the most distant first.
        size: Distance of the first, relative to its norm.
    """

    step: int
    optimizer: int
    kind: str
    tensors: tuple[str, ...]
    size: float


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of one verification.

    Args:
        answer: The answer.
        workers: Number of workers that were compared.
        steps: Number of compared steps.
        double: Whether the script computed in float64.
        cause: Why, if it is not the same.
        difference: The first difference.
        largest: The largest relative difference of any tensor at any step.
        rounding: The largest difference between two runs alone whose initial weights differ by a
            few roundings.
        strategy: Strategy of the plan.
        servers: Number of its parameter servers.
        left_out: Requested operations that were not done, alone or under the plan.
        loss_differs: Relative difference of the reported losses; 0: none.
        fenced: Whether the kernel kept its writes from other files.
        cut_off: The mechanism that isolated it from other programs.
        outside: Paths outside of its folder that it tried to write.
        network: Addresses that it tried to reach over a network.
        detail: Details of the cause: a path, the script's last output, names of tensors.
        stopped_in: Where it was stopped, if a resume was verified.
        stopped_at: The forward pass in which it was stopped.
        seed: The seed that chose it.
        seconds: Duration.
        output: Path of the script's output, if it failed.
        sources: Its own modules and settings, with the SHA-256 of each. A path begins with the
            number of its folder, as in `folders.outer`.
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
