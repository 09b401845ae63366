"""Trainings by `fit` that are more than one model and one optimizer; prints what came of it.

Arguments: what is trained, and, after an `@`, the number of the step after which it waits for an
    order of the test.

`pair`: two networks with a step of their own, each with an optimizer that the model holds.
`critic`: the same, one of them given to `compile`. `average`: an average of the weights is in the
model from the end of an epoch to the begin of the next. `folds`: three models one after the other,
on parts of the data that are drawn as each begins. `again`: one model that is prepared before each
`fit`.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
from typing import Any

import numpy as np

import headgate.keras as hg

keras: Any = importlib.import_module("tf_keras" if os.environ.get("LEGACY") else "keras")
layers = keras.layers
WHAT, _, ORDER = sys.argv[1].partition("@")


class AwaitOrder(keras.callbacks.Callback):  # type: ignore[misc]
    """Tells the test that an order may come now, and goes on once it did, so that it lands at a
    known step.
    """

    done = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        AwaitOrder.done += 1
        if ORDER and AwaitOrder.done == int(ORDER) and hg._door.session is not None:
            channel = hg._door.session._channel
            channel.send({"type": "waiting"})
            deadline = time.monotonic() + 60
            while not channel.pending:
                if time.monotonic() > deadline:
                    raise TimeoutError("no order came")
                time.sleep(0.001)


def network(inputs: int, outputs: int) -> Any:
    return keras.Sequential(
        [keras.Input((inputs,)), layers.Dense(6, activation="tanh"), layers.Dense(outputs)]
    )


class Pair(keras.Model):  # type: ignore[misc]
    """A maker and a critic of samples."""

    def __init__(self, maker: Any = None) -> None:
        super().__init__()
        self.maker, self.critic = network(3, 4), network(4, 1)
        self.mean = keras.metrics.Mean(name="loss_of_critic")
        self.steps = [keras.optimizers.Adam(0.02)] if maker is None else []
        self.other = {"critic": keras.optimizers.SGD(0.05, momentum=0.9)}

    @property
    def metrics(self) -> list[Any]:
        return [self.mean]

    def call(self, noise: Any) -> Any:
        return self.maker(noise)

    def train_step(self, data: Any) -> dict[str, Any]:
        import tensorflow as tf

        real = data[0] if isinstance(data, tuple) else data
        noise = real[:, :3] * 0.5
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                tf.nn.softplus(self.critic(self.maker(noise))) + tf.nn.softplus(-self.critic(real))
            )
        variables = self.critic.trainable_variables
        self.other["critic"].apply_gradients(zip(tape.gradient(loss, variables), variables))
        with tf.GradientTape() as tape:
            back = tf.reduce_mean(tf.nn.softplus(-self.critic(self.maker(noise))))
        variables = self.maker.trainable_variables
        by = self.steps[0] if self.steps else self.optimizer
        by.apply_gradients(zip(tape.gradient(back, variables), variables))
        self.mean.update_state(loss)
        return {"loss": self.mean.result()}


def show(name: str, model: Any, *more: Any) -> None:
    print(
        name,
        *(f"{np.asarray(w, np.float64).sum():.9g}" for w in model.get_weights()),
        *more,
        flush=True,
    )


def main() -> None:
    keras.utils.set_random_seed(3)
    data = np.random.default_rng(0).normal(size=(48, 4)).astype("float32")
    labels = data.sum(1, keepdims=True)
    callbacks = [AwaitOrder(), hg.callback()]
    if WHAT in ("pair", "critic"):
        maker = keras.optimizers.Adam(0.02) if WHAT == "critic" else None
        model = Pair(maker)
        model.compile(**({} if maker is None else {"optimizer": maker}))
        model.build((None, 3))
        hg.prepare(model).fit(data, epochs=4, batch_size=8, verbose=0, callbacks=callbacks)
        show("weights", model)
    elif WHAT == "average":
        model = hg.prepare(network(4, 1))
        model.compile(keras.optimizers.Adam(0.02, use_ema=True, ema_momentum=0.8), "mse")
        callbacks.append(keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
        model.fit(data, labels, epochs=4, batch_size=8, verbose=0, callbacks=callbacks)
        show("weights", model)
    elif WHAT == "folds":
        for fold in range(3):
            order = np.random.permutation(48)
            model = network(4, 1)
            model.compile(keras.optimizers.Adam(0.02), "mse")
            kept = order[12:]
            hg.prepare(model).fit(
                data[kept], labels[kept], epochs=2, batch_size=6, verbose=0, callbacks=callbacks
            )
            show(
                f"fold {fold}",
                model,
                f"{model.evaluate(data[order[:12]], labels[order[:12]], verbose=0):.9g}",
            )
    else:
        model = network(4, 1)
        model.compile(keras.optimizers.Adam(0.02), "mse")
        for part in range(4):
            hg.prepare(model).fit(
                data, labels, epochs=1, batch_size=8, verbose=0, callbacks=callbacks
            )
            show(f"part {part}", model, random.random())


if __name__ == "__main__":
    main()
