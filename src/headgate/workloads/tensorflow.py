"""Workloads in TensorFlow, with its own loop: one task, its all-reduce, and its parameter
servers.
"""

from __future__ import annotations

import os
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import tensorflow as tf

import headgate.keras as hg
from headgate.workloads import WorkloadError, script
from headgate.workloads.keras import model_of

_ROUND = 10
"""Steps that are scheduled on the workers of parameter servers before waiting."""


class _Clicks:
    """Sparse logistic regression, beginning with zeros. A dense step reads and changes all rows."""

    def __init__(self, features: int, sparse: bool) -> None:
        self.module = tf.Module()
        self.module.rows, self.module.bias = tf.Variable(tf.zeros(features)), tf.Variable(0.0)
        self.trainable_variables = [self.module.rows, self.module.bias]
        self._sparse = sparse

    def __call__(self, inputs: Any, training: bool) -> Any:
        ids, values = inputs
        table = self.module.rows if self._sparse else self.module.rows.read_value()
        return tf.reduce_sum(tf.gather(table, ids) * values, 1) + self.module.bias


def train(options: script.Options) -> list[float]:
    """Train a workload. Returns the loss of each step, under parameter servers the mean of each
    ten.
    """
    strategy = hg.strategy()
    sparse = options.workload == "sparse"
    with strategy.scope():
        model, optimizer, loss_of = model_of(
            options, lambda features: _Clicks(features, options.pull == "sparse")
        )
        optimizer.build(model.trainable_variables)
    hg.prepare(model.module if sparse else model, optimizer)
    loss_of.reduction = "none"

    def step(*batch: Any) -> Any:
        *inputs, labels = batch
        with tf.GradientTape() as tape:
            logits = model(inputs if sparse else inputs[0], training=True)
            losses = (
                loss_of(labels[:, None], logits[:, None]) if sparse else loss_of(labels, logits)
            )
            loss = tf.reduce_sum(losses) / options.batch
        slopes = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(slopes, model.trainable_variables))
        return loss

    printer = script.StepPrinter(options)
    if isinstance(strategy, tf.distribute.ParameterServerStrategy):
        return _over_servers(strategy, step, options, printer)
    distributed_step = tf.function(
        lambda *batch: strategy.reduce("SUM", strategy.run(step, batch), axis=None)
    )
    losses = []
    for _ in hg.epochs(1):
        for batch in strategy.experimental_distribute_dataset(_data(options)):
            loss = distributed_step(*batch)
            hg.report(loss=loss)
            losses.append(loss)
            printer.step(loss)
    printer.end()
    return [float(loss) for loss in losses]


def _over_servers(
    strategy: Any, step: Any, options: script.Options, printer: script.StepPrinter
) -> list[float]:
    """Schedule steps by TensorFlow's coordinator. Each worker has its own order of the samples."""
    if options.data is not None:
        raise WorkloadError(
            "workers of TensorFlow's parameter servers read no files of this machine; leave "
            "--data out"
        )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    distributed_step = tf.function(
        lambda worker_arguments: strategy.reduce(
            "SUM", strategy.run(step, next(worker_arguments)), axis=None
        )
    )
    kept = options.samples().arrays

    def data() -> Any:
        return (
            tf.data.Dataset.from_tensor_slices(kept)
            .shuffle(len(kept[0]))
            .repeat()
            .batch(options.batch)
        )

    iterator = iter(coordinator.create_per_worker_dataset(data))
    losses = []
    for _ in hg.epochs(1):
        while printer.steps < options.total:
            handed = min(_ROUND, options.total - printer.steps)
            results = [
                coordinator.schedule(distributed_step, args=(iterator,)) for _ in range(handed)
            ]
            coordinator.join()
            losses.append(sum(float(result.fetch()) for result in results) / handed)
            for _ in range(handed):
                printer.step(losses[-1])
            hg.report(loss=losses[-1], step=printer.steps)
    printer.end()
    return losses


def _data(options: script.Options) -> Any:
    samples = options.samples()
    if options.data is None:
        data = (
            tf.data.Dataset.from_tensor_slices(samples.arrays).batch(options.batch).cache().repeat()
        )
        return data.take(options.total)
    batches = samples.batches(options.batch)
    like = tuple(tf.TensorSpec((options.batch, *part.shape[1:]), part.dtype) for part in batches[0])

    def read(index: Any) -> Any:
        parts = tf.numpy_function(
            lambda at: batches[int(at)], [index], [array_like.dtype for array_like in like]
        )
        return tuple(
            tf.ensure_shape(part, array_part.shape) for part, array_part in zip(parts, like)
        )

    return tf.data.Dataset.range(options.total).map(read).prefetch(1)


if __name__ == "__main__":
    script.run("tensorflow", train)
