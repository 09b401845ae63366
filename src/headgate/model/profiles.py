"""What a job costs, measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from headgate.task.step_timing import BUSY, OTHERS

_SHARED = 0.5
"""Deviation of the logarithm of a step's time where others use all of a machine that it need not
wait for: a core whose other thread works does some 60 % of what it does alone.
"""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Compute seconds of a step (input not counted) at one batch size and thread count: median of
    `steps` steps.

    Args:
        spread: Standard deviation of the logarithm of their seconds; None: not known.
        waited: Part of the time in which their threads waited for a core, 0 to 1: others used the
            machine; None: not known.
    """

    device: str
    threads: int
    batch: int
    seconds: float
    steps: int
    spread: float | None = None
    waited: float | None = None


@dataclass(frozen=True, slots=True)
class TimeFit:
    """Seconds of a step of b samples as α + β·b, fitted for one device and thread count.

    Args:
        device: `cpu` or the GPU's name.
        threads: Compute threads while measured.
        alpha_seconds: Seconds of a step that do not depend on its batch.
        beta_seconds_per_sample: Seconds that each sample adds.
        relative_error: Root mean square of (fitted - measured) / measured; None with fewer than
            three batch sizes, where a line says nothing of its error.
    """

    device: str
    threads: int
    alpha_seconds: float
    beta_seconds_per_sample: float
    relative_error: float | None


@dataclass(frozen=True, slots=True)
class Dataset:
    """The training data: samples in all (None for a stream), bytes of a sample as the model gets
    it, seconds to read one.
    """

    samples: int | None
    bytes_per_sample: float | None
    read_seconds_per_sample: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """What a job costs, measured on one kind of node. A field is None where it was not measured;
    `notes` says why.

    Args:
        framework: `torch`, `keras`, `jax`, or `` for a command that uses none of the libraries.
        parameters_dense: Number of parameters whose gradient is dense (shared tensors counted
            once).
        parameters_sparse: Number of parameters whose gradient is sparse.
        layers: Count of leaf layers by kind.
        flops_per_sample_forward: FLOPs of the forward pass of one sample, by the framework's own
            counter (a multiply-add is two).
        flops_per_sample: FLOPs of forward and backward of one sample.
        optimizer_state_bytes: Bytes of optimizer state after the first step.
        memory_peak_bytes: Most resident memory of a worker while measured.
        gpu_memory_peak_bytes: Most memory that its framework's allocator held on its GPU, what it
            keeps in reserve included, and without what CUDA itself takes; None without one.
        batch: Samples of a step as the script asks for them.
        step_times: What was timed.
        fits: α + β·b for each device and thread count timed.
        core_gflops: Speed of a core of the node that it was measured on, as `Node` has it.
        core_convolution_gflops: The same.
        sparse_rows_per_sample: Rows of sparse layers that a step of the whole batch touches, each
            counted once, over its samples.
        sparse_bytes_per_sample: Bytes of these rows.
        dense_table_bytes: Bytes of trained lookup tables (embeddings) whose gradient is dense.
        dense_table_touched: The part of their rows that a step of the whole batch touches, 0 to 1.
        source: `run` from a job's own first steps, `profile` from a separate short run.
        alone: Why the script, as it was seen, can train in one task only; empty: several may share
            the work.
        arguments: Of the script, when it was measured.
        others: Part of the machine's cores that others used while it was taken, 0 to 1; None: not
            known.
        observed: Whether its script calls none of Headgate's libraries, so that its steps were seen
            from outside.
        sharded: Whether workers keep a part of the parameters each (FSDP, ZeRO-3), and gather them
            in every step.
        thread_power: The power of the number of its threads that its speed follows, from a run in
            which these changed.
    """

    framework: str
    framework_version: str
    source: Literal["run", "profile"]
    parameters_dense: int | None = None
    parameters_sparse: int | None = None
    dense_bytes: int | None = None
    sparse_bytes: int | None = None
    layers: Mapping[str, int] = field(default_factory=dict)
    flops_per_sample_forward: float | None = None
    flops_per_sample: float | None = None
    dataset: Dataset | None = None
    optimizer: str | None = None
    optimizer_state_bytes: int | None = None
    memory_peak_bytes: int | None = None
    gpu_memory_peak_bytes: int | None = None
    batch: int | None = None
    step_times: tuple[StepTime, ...] = ()
    fits: tuple[TimeFit, ...] = ()
    notes: tuple[str, ...] = ()
    core_gflops: float | None = None
    core_convolution_gflops: float | None = None
    sparse_rows_per_sample: float | None = None
    sparse_bytes_per_sample: float | None = None
    dense_table_bytes: int | None = None
    dense_table_touched: float | None = None
    alone: str = ""
    arguments: tuple[str, ...] = ()
    others: float | None = None
    observed: bool = False
    sharded: bool = False
    thread_power: float | None = None

    def with_parameters(self, count: int | None) -> Profile:
        """The same of a script that trains so many parameters of four bytes each; None: as many as
        were seen.
        """
        if count is None:
            return self
        return replace(
            self, parameters_dense=count, parameters_sparse=0, dense_bytes=4 * count, sparse_bytes=0
        )

    @property
    def waited(self) -> float:
        """Part of the time in which threads waited for a core while it was taken, where they did
        most.
        """
        return max((step.waited or 0.0 for step in self.step_times), default=0.0)

    @property
    def disturbance(self) -> float:
        """How much longer its steps may have taken for others on the machine, as a deviation of the
        logarithm: by waiting for a core, and, without any waiting, through caches, memory and cores
        that two threads share.
        """
        return math.hypot(
            math.log(1 / (1 - min(self.waited, 0.99))), _SHARED * (self.others or 0.0)
        )

    @property
    def deviation(self) -> float:
        """Of the logarithm of the times of its steps: how far these were apart, and what others may
        have cost.
        """
        spread = median([step.spread or 0.0 for step in self.step_times] or [0.0])
        return math.hypot(spread, self.disturbance)

    @property
    def is_busy(self) -> bool:
        """Whether it was taken while others used the machine so much that its times say too
        much.
        """
        return self.waited > BUSY or (self.others or 0.0) > OTHERS
