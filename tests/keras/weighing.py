"""Losses of which the parts of a batch count unlike many entries, trained by `fit` of the tasks of
a job or of one process: labels that are left out, masked steps of sequences, what a layer adds to
the loss, and a loss that is one number for a batch.

Arguments: the folder to write the weights into, and which of these to train.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import headgate.keras as hg

keras: Any = importlib.import_module("tf_keras")
SAMPLES, BATCH, STEPS = 35, 16, 5  # of the last three samples a worker has two, the other one
RANDOM = np.random.default_rng(3)
FEATURES = RANDOM.normal(size=(SAMPLES, STEPS, 4)).astype("float32")
LABELS = RANDOM.integers(3, size=(SAMPLES, STEPS))


class Adds(keras.layers.Layer):  # type: ignore[misc]
    """Adds a mean over its samples to the loss."""

    def call(self, inputs: Any) -> Any:
        import tensorflow as tf

        self.add_loss(0.3 * tf.reduce_mean(inputs**2))
        return inputs


class OwnStep(keras.Model):  # type: ignore[misc]
    """Computes its loss by itself, for the samples of the whole batch."""

    def train_step(self, data: Any) -> Any:
        import tensorflow as tf

        features, labels = data
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                labels, self(features), from_logits=True
            )
            loss = tf.nn.compute_average_loss(tf.reduce_mean(losses, axis=-1))
        self.optimizer.minimize(loss, self.trainable_variables, tape=tape)
        return {}


def mean_of_labels(y_true: Any, y_pred: Any) -> Any:
    import tensorflow as tf

    return tf.reduce_mean(
        keras.losses.sparse_categorical_crossentropy(y_true, y_pred, from_logits=True)
    )


def train(
    strategy: Any,
    features: Any,
    labels: Any,
    masks: bool,
    loss: Callable[[], Any],
    kind: type = keras.Model,
) -> list[Any]:
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    with strategy.scope():
        inputs = keras.Input((STEPS, 4))
        hidden = keras.layers.Masking()(inputs) if masks else inputs
        hidden = keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")(hidden)
        model = kind(inputs, keras.layers.Dense(3)(hidden if masks else Adds()(hidden)))
        model.compile(keras.optimizers.SGD(0.5), loss())
    model = hg.prepare(model)
    data = tf.data.Dataset.from_tensor_slices((features, labels)).batch(BATCH)
    history = model.fit(data, epochs=2, verbose=0, callbacks=[hg.callback()])
    return [
        history.history.get("loss", []),
        *(weight.ravel().tolist() for weight in model.get_weights()),
    ]


def main() -> None:
    strategy = hg.strategy()
    crossentropy = keras.losses.SparseCategoricalCrossentropy
    left_out = np.where(
        np.arange(SAMPLES)[:, None] % 16 < 8, LABELS, np.where(np.arange(STEPS) < 1, LABELS, -1)
    )
    short = np.where(
        ((np.arange(SAMPLES) % 16 < 8)[:, None] | (np.arange(STEPS) < 2))[..., None], FEATURES, 0.0
    )
    kinds: dict[str, Callable[[], list[Any]]] = {
        "left_out": lambda: train(
            strategy,
            FEATURES,
            left_out,
            False,
            lambda: crossentropy(from_logits=True, ignore_class=-1),
        ),
        "masked_steps": lambda: train(
            strategy, short, LABELS, True, lambda: crossentropy(from_logits=True)
        ),
        "one_number": lambda: train(strategy, FEATURES, LABELS, False, lambda: mean_of_labels),
        "own_step": lambda: train(
            strategy, FEATURES[:32], LABELS[:32], False, lambda: mean_of_labels, OwnStep
        ),
    }
    trained = [kinds[kind]() for kind in sys.argv[2:]]
    name = os.environ.get("HEADGATE_TASK", "alone").rpartition("/")[2]
    with open(os.path.join(sys.argv[1], f"{name}.json"), "w") as file:
        json.dump(trained, file)


if __name__ == "__main__":
    main()
