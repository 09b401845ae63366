"""Computes the trace of A·A repeatedly, for a matrix A in blocks: multiplies each block A_ij by
A_ji, and trains nothing.

In PyTorch several workers share the work. Either two blocks to multiply are on one worker, or the
blocks of a row are. Then the worker of row i gets A_ji from the worker of row j in every step.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from headgate import workloads
from headgate.workloads import WorkloadError, script

__all__ = ["train"]

_BLOCKS = {"small": (8, 128), "full": (16, 512)}
"""Number of blocks in a row, and number of rows in a block."""


class _Matrix:
    """Blocks of float32 normal numbers, scaled so that the trace is about 1."""

    def __init__(self, size: str, seed: int) -> None:
        self.blocks, self.rows = _BLOCKS[size]
        self.pairs = [(i, j) for i in range(self.blocks) for j in range(i, self.blocks)]
        self._seed = seed

    def block(self, i: int, j: int) -> np.ndarray:
        values = np.random.default_rng([self._seed, i, j]).standard_normal(
            (self.rows, self.rows), np.float32
        )
        return values / np.float32((self.blocks * self.rows) ** 0.5)

    def factors(self, pairs: list[tuple[int, int]]) -> np.ndarray:
        """The factor of each pair, because tr(A_ij A_ji) is also tr(A_ji A_ij)."""
        return np.array([1 if i == j else 2 for i, j in pairs], np.float32)


def _trace_step(
    framework: str,
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], Callable[[], Any]]:
    """A function that makes the step from left and right blocks (pairs, rows, rows) and their
    factors. The step sums the traces of the products.
    """
    if framework == "torch":
        import torch

        def in_torch(*arrays: np.ndarray) -> Callable[[], Any]:
            left, right, factors = map(torch.from_numpy, arrays)
            return lambda: torch.diagonal(left @ right, dim1=1, dim2=2).sum(1) @ factors

        return in_torch
    if framework == "tensorflow":
        import tensorflow as tf

        def in_tensorflow(*arrays: np.ndarray) -> Callable[[], Any]:
            kept = [tf.Variable(array) for array in arrays]
            step: Callable[[], Any] = tf.function(
                lambda: tf.reduce_sum(tf.linalg.trace(kept[0] @ kept[1]) * kept[2])
            )
            return step

        return in_tensorflow
    if framework == "jax":
        import jax
        import jax.numpy as jnp

        step = jax.jit(
            lambda left, right, factors: jnp.trace(left @ right, axis1=1, axis2=2) @ factors
        )

        def in_jax(*arrays: np.ndarray) -> Callable[[], Any]:
            kept = [jnp.asarray(array) for array in arrays]
            return lambda: step(*kept)

        return in_jax
    if framework == "spark":
        from headgate.workloads.spark import context

        def in_spark(*arrays: np.ndarray) -> Callable[[], Any]:
            spark, parts = context("headgate trace")
            kept = spark.parallelize(
                list(zip(*(np.array_split(array, parts) for array in arrays))), parts
            ).cache()
            return lambda: kept.map(lambda part: float(_sum(*part))).sum()

        return in_spark
    return lambda left, right, factors: lambda: _sum(left, right, factors)


def _sum(left: np.ndarray, right: np.ndarray, factors: np.ndarray) -> Any:
    return np.trace(left @ right, axis1=1, axis2=2) @ factors


def train(options: script.Options) -> list[float]:
    """Compute the trace repeatedly. Returns the trace of each step."""
    matrix = _Matrix(options.size, options.seed)
    workers = int(os.environ.get("WORLD_SIZE", "1"))
    if workers > 1 and options.framework != "torch":
        raise WorkloadError(
            f"the trace in {options.framework} runs in one task; expected torch, or --workers 1"
        )
    step = (
        _distributed_step(matrix, options, workers)
        if workers > 1
        else _alone(matrix, options.framework)
    )
    printer, traces = script.StepPrinter(options), []
    for _ in range(options.total):
        traces.append(float(step()))
        printer.step(traces[-1])
    printer.end()
    if workers > 1:
        from torch import distributed

        # Gloo's threads that still run at Python's end may abort it
        distributed.destroy_process_group()
    return traces


def _alone(matrix: _Matrix, framework: str) -> Callable[[], Any]:
    left, right = (
        np.stack([matrix.block(*pair[::turn]) for pair in matrix.pairs]) for turn in (1, -1)
    )
    return _trace_step(framework)(left, right, matrix.factors(matrix.pairs))


def _distributed_step(matrix: _Matrix, options: script.Options, workers: int) -> Callable[[], Any]:
    """The step of one of several workers of torchrun's contract."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank = dist.get_rank()
    in_rows = options.placed == "rows"
    on = {
        pair: pair[0] % workers if in_rows else number % workers
        for number, pair in enumerate(matrix.pairs)
    }
    own = [pair for pair in matrix.pairs if on[pair] == rank]
    left, right = (np.stack([matrix.block(*pair[::turn]) for pair in own]) for turn in (1, -1))
    step = _trace_step("torch")(left, right, matrix.factors(own))
    # A block of another worker's row is stored there, and is received in every step.
    moved = [pair for pair in matrix.pairs if in_rows and pair[0] % workers != pair[1] % workers]
    received = {
        pair: torch.from_numpy(right[own.index(pair)]) for pair in moved if on[pair] == rank
    }
    own_blocks = {
        (i, j): torch.from_numpy(matrix.block(j, i)) for i, j in moved if j % workers == rank
    }

    def joined() -> Any:
        works: list[Any] = [
            dist.irecv(block, pair[1] % workers) for pair, block in received.items()
        ]
        works += [dist.isend(block, pair[0] % workers) for pair, block in own_blocks.items()]
        for work in works:
            work.wait()
        total = step()
        dist.all_reduce(total)
        return total

    return joined


def _options() -> script.Options:
    parser = script.parser(
        "headgate.workloads.trace",
        "Take the trace of A·A for a matrix in blocks.",
        "python -m headgate.workloads.trace numpy --size small",
        "headgate run --workers 2 -m headgate.workloads.trace -- torch --placed rows",
    )
    names = workloads.frameworks_of("trace")
    parser.add_argument("framework", metavar="FRAMEWORK", help=f"one of {', '.join(names)}")
    parser.add_argument(
        "--placed",
        choices=("together", "rows"),
        default="together",
        help=(
            "whether blocks that are multiplied lie on one worker (default), or the blocks of a row"
        ),
    )
    options = parser.parse_args(namespace=script.Options(workload="trace", batch=1, data=None))
    if options.framework not in names:
        parser.error(f"unknown framework {options.framework!r}; expected one of {', '.join(names)}")
    return options


if __name__ == "__main__":
    script.run("trace", train, _options)
