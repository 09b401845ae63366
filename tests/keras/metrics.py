"""Networks of two outputs with metrics of several kinds, trained by `fit` of the tasks of a job or
of one process: with Keras' own `train_step`, also with a loss that is a sum beside one that is a
mean, and with one that returns a loss that it computed beside results of metrics.

Argument: the folder to write into what `fit` told after each batch and each epoch, and `evaluate`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

import numpy as np

import headgate.keras as hg

keras: Any = importlib.import_module("tf_keras" if os.environ.get("LEGACY") else "keras")
SAMPLES, BATCH, EPOCHS = 67, 16, 2  # of the last three samples a worker has two, the other one


class Positives(keras.metrics.Metric):  # type: ignore[misc]
    """Counts labels, as a whole number."""

    def __init__(self) -> None:
        super().__init__(name="positives", dtype="int32")
        self.count = self.add_weight(name="count", shape=(), initializer="zeros", dtype="int32")

    def update_state(self, labels: Any, predicted: Any, sample_weight: Any = None) -> None:
        import tensorflow as tf

        self.count.assign_add(tf.reduce_sum(tf.cast(labels > 0.5, "int32")))

    def result(self) -> Any:
        return self.count + 0

    def reset_state(self) -> None:
        self.count.assign(0)


class Stepping(keras.Model):  # type: ignore[misc]
    """Its loss is that of the step, as its workers' shares of it; its metrics are Keras'."""

    def train_step(self, data: Any) -> Any:
        import tensorflow as tf

        features, labels = data
        with tf.GradientTape() as tape:
            predicted = self(features, training=True)
            loss = self.compiled_loss(labels, predicted)
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        self.compiled_metrics.update_state(labels, predicted)
        return {"share": loss, **{metric.name: metric.result() for metric in self.metrics}}


class Kept(keras.callbacks.Callback):  # type: ignore[misc]
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[dict[str, float]] = []
        self.epochs: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.batches.append({name: np.asarray(value).tolist() for name, value in logs.items()})

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.epochs.append({name: np.asarray(value).tolist() for name, value in logs.items()})


def train(strategy: Any, kind: type, reduction: str = "sum_over_batch_size") -> dict[str, Any]:
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    generator = np.random.default_rng(0)
    features = generator.normal(size=(SAMPLES, 6)).astype("float32")
    labels = {
        "sign": (features.sum(axis=1, keepdims=True) > 0).astype("float32"),
        "size": np.abs(features).sum(axis=1, keepdims=True),
    }
    with strategy.scope():
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(8, activation="relu")(inputs)
        outputs = {
            "sign": keras.layers.Dense(1, activation="sigmoid", name="sign")(hidden),
            "size": keras.layers.Dense(1, name="size")(hidden),
        }
        model = kind(inputs, outputs)
        model.compile(
            keras.optimizers.SGD(0.05 if reduction != "sum" else 0.001),
            {
                "sign": "binary_crossentropy",
                "size": keras.losses.MeanSquaredError(reduction=reduction),
            },
            metrics={
                "sign": ["accuracy", keras.metrics.AUC(name="auc"), Positives()],
                "size": [keras.metrics.MeanSquaredError(name="mse")],
            },
        )
    if reduction == "sum":
        model, _ = hg.prepare(model, model.optimizer)
    else:
        model = hg.prepare(model)
    data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(BATCH)
    kept = Kept()
    model.fit(data, epochs=EPOCHS, verbose=0, callbacks=[kept, hg.callback()])
    evaluated = model.evaluate(data, verbose=0, return_dict=True)
    return {"batches": kept.batches, "epochs": [*kept.epochs, evaluated]}


def main() -> None:
    strategy = hg.strategy()
    found = [
        train(strategy, keras.Model, "sum"),
        *(train(strategy, kind) for kind in (keras.Model, Stepping)),
    ]
    name = os.environ.get("HEADGATE_TASK", "alone").rpartition("/")[2]
    with open(os.path.join(sys.argv[1], f"{name}.json"), "w") as file:
        json.dump(found, file)


if __name__ == "__main__":
    main()
