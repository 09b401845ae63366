"""The session of JAX scripts keeps to the contract of every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from tests.jax import trainings

from headgate.jax import joining
from headgate.jax.session import Session
from headgate.task import Channel, TaskEnvironment
from headgate.testing.session import EPOCHS, LOOPS, STEPS, SessionContract

BATCH = 4


@jax.jit
def step(params: Any, key: Any, features: Any, targets: Any) -> Any:
    key, noise = jax.random.split(key)
    features = features + 0.01 * jax.random.normal(noise, features.shape)
    loss, gradients = jax.value_and_grad(trainings.loss_of)(params, features, targets)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), key, loss


class TestInJAX(SessionContract):
    @pytest.fixture(autouse=True)
    def _devices_are_made_already(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(joining, "begun", lambda: False)  # by the test before

    def connect(self, environment: TaskEnvironment) -> Session:
        return Session(environment, Channel.open(environment, "jax", jax.__version__, None))

    def train(self, session: Any, at_step: Callable[[], None]) -> list[Any]:
        np.random.seed(0)
        data = trainings.data()
        params, key = session.prepare((trainings.initial(), jax.random.key(7)))
        for _ in range(LOOPS):
            for _ in session.epochs(EPOCHS):
                order = np.random.permutation(STEPS * BATCH).reshape(STEPS, BATCH)
                for features, targets in session.batches(
                    [(data.features[part], data.targets[part]) for part in order]
                ):
                    params, key, loss = step(params, key, features, targets)
                    at_step()
                    session.report(loss, None, {}, (params, key))
        return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(params)]
