"""Sparse logistic regression in Spark, with the same steps as in other frameworks.

The rows of a batch are in partitions. Each task sums the gradient of its partition. The driver sums
these and updates the weights.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from typing import Any

import numpy as np
from pyspark import SparkConf, SparkContext

from headgate.workloads import WorkloadError, samples, script

__all__ = ["context", "train"]

Part = tuple[np.ndarray, ...]


def context(name: str) -> tuple[Any, int]:
    """The Spark context, and the number of partitions. Without a configured master it uses the
    cores of this machine.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = SparkConf().setAppName(name)
    # progress bars would break the lines of steps
    for setting in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        settings.setIfMissing(setting, "false")
    cores = os.environ.get("OMP_NUM_THREADS", "")
    settings.setIfMissing(
        "spark.master", f"local[{cores if cores.isdecimal() else len(os.sched_getaffinity(0))}]"
    )
    made = SparkContext.getOrCreate(settings)
    made.setLogLevel("ERROR")
    return made, made.defaultParallelism


def _gradient_sums(
    part: Part, rows: Any, bias: float, whole: bool
) -> tuple[float, float, Any, Any]:
    """Sums over the rows of a part: losses, gradient of the bias, and gradients of the weights in
    use.

    Args:
        rows: All weights, or those that the batch uses with their numbers.
        whole: Whether to return gradients of all weights.
    """
    ids, values, clicked = part
    sparse = isinstance(rows, tuple)
    columns = np.searchsorted(rows[0], ids) if sparse else ids
    weights = rows[1] if sparse else rows
    logits = (weights[columns] * values).sum(1) + bias
    loss = float((np.logaddexp(0, logits) - logits * clicked).sum())
    slope = 1 / (1 + np.exp(-logits)) - clicked
    sums = np.bincount(columns.ravel(), (slope[:, None] * values).ravel(), len(weights)).astype(
        np.float32
    )
    if whole:
        return loss, float(slope.sum()), None, sums
    used = np.flatnonzero(sums)
    return loss, float(slope.sum()), rows[0][used] if sparse else used, sums[used]


def _mapped(part: Part, rows: Any, bias: float, whole: bool) -> tuple[float, float, Any, Any]:
    return _gradient_sums(part, rows.value, bias, whole)


def train(options: script.Options) -> list[float]:
    """Train it. Returns the loss of each step."""
    if options.data is not None:
        raise WorkloadError("Spark gets its rows from the driver here; leave --data out")
    spark, parts = context("headgate sparse")
    weights, bias = np.zeros(samples.FEATURES[options.size], np.float32), 0.0
    rate, is_dense = script.rate(options.workload), options.pull == "dense"
    sample_set = options.samples()
    batches = sample_set.batches(options.batch)
    kept: dict[int, tuple[Any, np.ndarray]] = {}
    printer, losses = script.StepPrinter(options), []
    for step in range(options.total):
        number = step % (len(sample_set.arrays[0]) // options.batch)
        if number not in kept:
            chunks = list(zip(*(np.array_split(batch, parts) for batch in batches[number])))
            kept[number] = spark.parallelize(chunks, parts).cache(), np.unique(batches[number][0])
        rows, used = kept[number]
        sent = spark.broadcast(weights if is_dense else (used, weights[used]))
        sums = rows.map(partial(_mapped, rows=sent, bias=bias, whole=is_dense)).collect()
        sent.destroy()
        for _, slope, at, slopes in sums:
            weights[slice(None) if at is None else at] -= np.float32(rate / options.batch) * slopes
            bias -= rate / options.batch * slope
        losses.append(sum(partial_sum[0] for partial_sum in sums) / options.batch)
        printer.step(losses[-1])
    printer.end()
    spark.stop()
    return losses


if __name__ == "__main__":
    script.run("spark", train)
