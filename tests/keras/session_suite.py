"""The session of Keras scripts under the contract of every framework: with `fit`, and with a loop
of their own.

`test_session` runs it, in a process of its own: Keras keeps the backend that it was first imported
with.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headgate.keras.fitting import watch
from headgate.keras.session import Session
from headgate.task import Channel, TaskEnvironment
from headgate.testing.session import EPOCHS, LOOPS, STEPS, SessionContract

BATCH = 4
# of Keras' variables
pytestmark = pytest.mark.filterwarnings("default:__array__ implementation:DeprecationWarning")


class InKeras(SessionContract):
    """Over torch, whose number of threads can change."""

    @pytest.fixture(autouse=True)
    def _keras(self) -> None:
        self.keras = importlib.import_module("keras")

    def connect(self, environment: TaskEnvironment) -> Session:
        return Session(
            environment, Channel.open(environment, "keras", self.keras.__version__, None)
        )

    def network(self) -> Any:
        self.keras.utils.set_random_seed(3)
        layers = self.keras.layers
        return self.keras.Sequential(
            [layers.Input((5,)), layers.Dense(8, "relu"), layers.Dropout(0.3), layers.Dense(1)]
        )

    def data(self) -> tuple[Any, Any]:
        drawn = np.random.default_rng(0).normal(size=(STEPS * BATCH, 6)).astype("float32")
        return drawn[:, :5], drawn[:, 5:]

    def threads(self, session: Any) -> int:
        return int(importlib.import_module("torch").get_num_threads())


class TestFit(InKeras):
    def train(self, session: Any, at_step: Callable[[], None]) -> list[Any]:
        model = self.network()
        model.compile(self.keras.optimizers.Adam(0.01), "mse")
        index, _ = session.prepare(model, None)
        watch(model, session, index)
        done = session.steps

        def ended(batch: int, logs: Any) -> None:
            nonlocal done
            if session.steps > done:  # and not one that was done before the checkpoint was taken
                done = session.steps
                at_step()

        each = self.keras.callbacks.LambdaCallback(on_train_batch_end=ended)
        for _ in range(LOOPS):
            model.fit(*self.data(), batch_size=BATCH, epochs=EPOCHS, verbose=0, callbacks=[each])
        return [weights.value.tolist() for weights in model.weights]


class TestOwnLoop(InKeras):
    exact = False

    def train(self, session: Any, at_step: Callable[[], None]) -> list[Any]:
        model, optimizer = self.network(), self.keras.optimizers.SGD(0.05)
        session.prepare(model, optimizer)
        features, targets = map(self.keras.ops.convert_to_tensor, self.data())
        for _ in range(LOOPS):
            for _ in session.epochs(EPOCHS):
                for part in np.random.permutation(STEPS * BATCH).reshape(STEPS, BATCH):
                    model.zero_grad()
                    loss = self.keras.ops.mean(
                        (model(features[part], training=True) - targets[part]) ** 2
                    )
                    loss.backward()
                    trained = model.trainable_variables
                    optimizer.apply([weights.value.grad for weights in trained], trained)
                    at_step()
                    session.report(loss, None, {})
        return [weights.value.tolist() for weights in model.weights]
