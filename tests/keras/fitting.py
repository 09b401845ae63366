"""A small network with dropout and batch normalisation, trained by `fit`; prints what came of it.

Arguments: epochs, and, after an `@`, the number of the step before which it waits for an order of
    the test; `twice` to
have a `fit` of the first two epochs, with validation after each second one, and one of the others;
`pipeline` to read through tf.data, `unknown` through one whose length nobody knows, `endless`
through one that has no end; `slow` besides to take ten milliseconds to read each sample; `several`
to have Keras do two steps in one call.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from typing import Any

import numpy as np

import headgate.keras as hg

keras: Any = importlib.import_module("tf_keras" if os.environ.get("LEGACY") else "keras")

SAMPLES, BATCH = 70, 16
SECONDS_A_SAMPLE = 0.01


class AwaitOrder(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells the test that an order may come now, and goes on once it did, so that it lands at a
    known step.
    """

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step
        self.done = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self.done == self.step and hg._door.session is not None:
            channel = hg._door.session._channel
            channel.send({"type": "waiting"})
            deadline = time.monotonic() + 60
            while not channel.pending:
                if time.monotonic() > deadline:
                    raise TimeoutError("no order came")
                time.sleep(0.001)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.done += 1  # of data of unknown length a batch more begins, and does not come


def slowly(sample: Any) -> Any:
    time.sleep(SECONDS_A_SAMPLE)
    return sample


def network() -> Any:
    layers = keras.layers
    model = keras.Sequential(
        [
            layers.Dense(12, activation="relu"),
            layers.BatchNormalization(),
            # whose state cannot be saved there
            *([] if os.environ.get("LEGACY") else [layers.Dropout(0.3)]),
            layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    at_once = 2 if "several" in sys.argv else 1
    model.compile(
        keras.optimizers.Adam(0.01), loss, metrics=["accuracy"], steps_per_execution=at_once
    )
    return model


def main() -> None:
    epochs, _, order = (sys.argv[1] if len(sys.argv) > 1 else "3").partition("@")
    keras.utils.set_random_seed(3)
    features = np.random.default_rng(0).normal(size=(SAMPLES, 5)).astype("float32")
    labels = np.random.default_rng(1).integers(0, 3, SAMPLES)
    model = hg.prepare(network())
    # for longer than any of it
    patient = keras.callbacks.EarlyStopping(monitor="loss", patience=9, min_delta=0.001)
    callbacks = [hg.callback(), patient, *([AwaitOrder(int(order))] if order else [])]
    data: Any = (features, labels)
    first = 0
    if "twice" in sys.argv:
        first = 2
        before = model.fit(
            *data,
            batch_size=BATCH,
            epochs=first,
            verbose=0,
            validation_data=data,
            validation_freq=2,
        )
        print(
            "before",
            before.epoch,
            {name: [f"{v:.9g}" for v in values] for name, values in before.history.items()},
        )
    if {"pipeline", "unknown", "endless"} & set(sys.argv):
        import tensorflow as tf

        samples = tf.data.Dataset.from_tensor_slices(data).shuffle(SAMPLES, seed=5)
        if "slow" in sys.argv:
            samples = samples.map(
                lambda x, y: (tf.ensure_shape(tf.numpy_function(slowly, [x], x.dtype), x.shape), y)
            )
        pipeline = samples.batch(BATCH)
        steps = None
        if "unknown" in sys.argv:
            pipeline = pipeline.filter(lambda features, labels: True)
        if "endless" in sys.argv:
            pipeline, steps = pipeline.repeat(), -(-SAMPLES // BATCH)
        history = model.fit(
            pipeline,
            epochs=int(epochs),
            initial_epoch=first,
            steps_per_epoch=steps,
            verbose=0,
            callbacks=callbacks,
        )
    else:
        history = model.fit(
            *data,
            batch_size=BATCH,
            epochs=int(epochs),
            initial_epoch=first,
            verbose=0,
            callbacks=callbacks,
        )
    print("losses", *(f"{loss:.9g}" for loss in history.history["loss"]))
    print("accuracies", *(f"{value:.9g}" for value in history.history["accuracy"]))
    print("epochs", *history.epoch)
    print("weights", *(f"{np.asarray(w, np.float64).sum():.12g}" for w in model.get_weights()))


if __name__ == "__main__":
    main()
