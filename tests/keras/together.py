"""A small network trained by the tasks of a job together, or by one process; worker 0 writes what
came of it.

Arguments: where to write, and which loop: `fit` of Keras, `loop` of TensorFlow, or `servers`,
    TensorFlow's coordinator.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

import headgate.keras as hg

sys.path += map(str, Path(__file__).parents[2:3])  # none where only this file was brought

SAMPLES, BATCH, EPOCHS = 64, 16, 3
FEATURES = np.random.default_rng(0).normal(size=(SAMPLES, 6)).astype("float32")
LABELS = (FEATURES.sum(axis=1) > 0).astype("int64")


def keras_in_use() -> Any:
    return importlib.import_module("tf_keras" if os.environ.get("LEGACY") else "keras")


def network(keras: Any) -> Any:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(16, activation="relu"), layers.Dense(2)]
    )


def write(path: str, losses: list[float], weights: Any) -> None:
    if os.environ.get("HEADGATE_TASK", "worker-0").endswith("worker-0"):
        found = [np.asarray(weight, np.float64).ravel().tolist() for weight in weights]
        with open(path, "w") as file:
            json.dump({"losses": losses, "weights": found}, file)


def by_fit(path: str) -> None:
    keras = keras_in_use()
    strategy = hg.strategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = network(keras)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.5, momentum=0.9), loss)
    model = hg.prepare(model)
    data: Any = (FEATURES, LABELS)
    how: dict[str, Any] = {"batch_size": BATCH, "shuffle": True}
    if os.environ.get("LEGACY"):
        import tensorflow as tf

        data, how = (tf.data.Dataset.from_tensor_slices(data).batch(BATCH),), {}
    epochs = int(os.environ.get("EPOCHS", str(EPOCHS)))
    callbacks = [hg.callback()]
    if os.environ.get("HEADGATE_TASK", "").endswith("worker-0") and os.environ.get("ORDER_AT"):
        from tests.keras.fitting import AwaitOrder

        callbacks.append(AwaitOrder(int(os.environ["ORDER_AT"])))
    history = model.fit(*data, epochs=epochs, verbose=0, callbacks=callbacks, **how)
    write(path, history.history["loss"], model.get_weights())


def by_loop(path: str) -> None:
    import tensorflow as tf

    strategy = hg.strategy()
    keras = keras_in_use()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = network(keras)
        optimizer = keras.optimizers.SGD(0.5, momentum=0.9)
        optimizer.build(model.trainable_variables)
        of_samples = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    hg.prepare(model, optimizer)
    data = tf.data.Dataset.from_tensor_slices((FEATURES, LABELS)).batch(BATCH)
    data = strategy.experimental_distribute_dataset(data)

    def replica_step(features: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(of_samples(labels, model(features, training=True))) / BATCH
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        )
        return loss

    def all_replicas_step(features: Any, labels: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, (features, labels)), axis=None)

    step = tf.function(all_replicas_step)

    losses = []
    for _ in hg.epochs(int(os.environ.get("EPOCHS", str(EPOCHS)))):
        for features, labels in data:
            loss = step(features, labels)
            hg.report(loss=loss)
            losses.append(float(loss))
    write(path, losses, model.get_weights())


def by_servers(path: str) -> None:
    import tensorflow as tf

    strategy = hg.strategy()
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    generator = np.random.default_rng(2)
    with strategy.scope():
        weights = tf.Variable(generator.normal(size=(6, 2)).astype("float32") * 0.1)
        model = tf.Module()
        model.weights = weights

    def batches() -> Any:
        return (
            tf.data.Dataset.from_tensor_slices((FEATURES, LABELS))
            .shuffle(SAMPLES)
            .repeat()
            .batch(BATCH)
        )

    each = iter(coordinator.create_per_worker_dataset(batches))

    def worker_step(iterator: Any) -> Any:
        features, labels = next(iterator)
        with tf.GradientTape() as tape:
            logits = features @ weights
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        weights.assign_sub(0.2 * tape.gradient(loss, weights))
        if os.environ.get("TELLS"):
            tf.print("a step was done here")
        return loss

    step = tf.function(worker_step)
    hg.prepare(model)
    losses = []
    for _ in hg.epochs(int(os.environ.get("EPOCHS", "6"))):
        results = [coordinator.schedule(step, args=(each,)) for _ in range(8)]
        coordinator.join()
        losses.append(float(np.mean([result.fetch() for result in results])))
        hg.report(loss=losses[-1], scheduled=results[-1])
    write(path, losses, [weights.numpy()])


if __name__ == "__main__":
    {"fit": by_fit, "loop": by_loop, "servers": by_servers}[sys.argv[2]](sys.argv[1])
