"""Measured costs of a job."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from headgate.task.step_timing import BUSY, OTHERS

_SHARED = 0.5
"""Deviation of the logarithm of step times on a fully used machine, without any waiting. With a
busy SMT sibling a core has about 60 % of its speed.
"""


@dataclass(frozen=True, slots=True)
class StepTime:
    """Compute time of a step at one batch size and thread count, without input: the median of
    `steps` steps.

    Args:
        spread: Standard deviation of the logarithm of their seconds; None: not known.
        waited: Fraction of time in which the threads waited for a core used by others, 0 to 1;
            None: not known.
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
    """Step time of b samples as α + β·b seconds, fitted for one device and thread count.

    Args:
        device: `cpu` or the GPU's name.
        threads: Compute threads while measured.
        alpha_seconds: Seconds of a step that do not depend on its batch.
        beta_seconds_per_sample: Seconds that each sample adds.
        relative_error: Root mean square of (fitted - measured) / measured. None with fewer than
            three batch sizes, which give no error of a line.
    """

    device: str
    threads: int
    alpha_seconds: float
    beta_seconds_per_sample: float
    relative_error: float | None


@dataclass(frozen=True, slots=True)
class Dataset:
    """The training data.

    Args:
        samples: How many samples; None: a stream.
        bytes_per_sample: Bytes of a sample as the model gets it.
        read_seconds_per_sample: Seconds to read one sample.
    """

    samples: int | None
    bytes_per_sample: float | None
    read_seconds_per_sample: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """Costs of a job, measured on one kind of node. None in a field: not measured; `notes` says
    why.

    Args:
        framework: `torch`, `keras`, `jax`, or empty for a command that uses no library of
            Headgate's.
        parameters_dense: Number of parameters with a dense gradient; shared tensors count once.
        parameters_sparse: Number of parameters with a sparse gradient.
        layers: Count of leaf layers by kind.
        flops_per_sample_forward: FLOPs of the forward pass of one sample, from the framework's
            counter. A multiply-add is two.
        flops_per_sample: FLOPs of forward and backward of one sample.
        optimizer_state_bytes: Bytes of optimizer state after the first step.
        memory_peak_bytes: Most resident memory of a worker while measured.
        gpu_memory_peak_bytes: Most memory held by the framework's allocator on its GPU, including
            its reserve but not CUDA's own. None: no GPU.
        batch: Samples of a step as the script requests them.
        step_times: The measured step times.
        fits: α + β·b for each measured device and thread count.
        core_gflops: Core speed of the measuring node, as in `Node`.
        core_convolution_gflops: Convolution speed of that core, as in `Node`.
        sparse_rows_per_sample: Distinct rows of sparse layers touched by a step, divided by its
            samples.
        sparse_bytes_per_sample: Bytes of these rows.
        dense_table_bytes: Bytes of trained lookup tables (embeddings) with a dense gradient.
        dense_table_touched: Fraction of their rows touched by a step of the whole batch, 0 to 1.
        source: `run`: from a job's own first steps; `profile`: from a separate short run.
        alone: Why the script can train in one task only; empty: several may share the work.
        arguments: Arguments of the script during the measurement.
        others: Fraction of the machine's cores that others used meanwhile, 0 to 1; None: not known.
        observed: Whether the script calls no library of Headgate's, so that its steps were seen
            from outside.
        sharded: Whether each worker keeps a part of the parameters (FSDP, ZeRO-3) and gathers them
            in every step.
        thread_power: Exponent p of its speed ~ threads^p, from a run whose threads changed.
        compiled: Whether an observed script of PyTorch has compiled anything.
        autocast: The precision to which its layers are cast automatically, as `bfloat16`; None:
            none, or not known of a compiled model.
        channels_last: Whether weights of convolutions have their channels last in memory.
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
    compiled: bool | None = None
    autocast: str | None = None
    channels_last: bool | None = None

    def with_parameters(self, count: int | None) -> Profile:
        """A copy for a script that trains `count` parameters of four bytes each; None: as
        measured.
        """
        if count is None:
            return self
        return replace(
            self, parameters_dense=count, parameters_sparse=0, dense_bytes=4 * count, sparse_bytes=0
        )

    @property
    def waited(self) -> float:
        """The largest fraction of time in which threads waited for a core during the
        measurement.
        """
        return max((step.waited or 0.0 for step in self.step_times), default=0.0)

    @property
    def disturbance(self) -> float:
        """Slowdown of its steps by others on the machine, as a deviation of the logarithm.

        It covers waiting for a core, and contention without waiting: caches, memory and SMT
        siblings.
        """
        return math.hypot(
            math.log(1 / (1 - min(self.waited, 0.99))), _SHARED * (self.others or 0.0)
        )

    @property
    def deviation(self) -> float:
        """Deviation of the logarithm of its step times: their spread and the disturbance by
        others.
        """
        spread = median([step.spread or 0.0 for step in self.step_times] or [0.0])
        return math.hypot(spread, self.disturbance)

    @property
    def is_busy(self) -> bool:
        """Whether others used the machine so much that its times are too long."""
        return self.waited > BUSY or (self.others or 0.0) > OTHERS
