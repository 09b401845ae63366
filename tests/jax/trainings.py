"""Small trainings in the ways in which JAX scripts are written; each returns its state after the
last step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from flax.training.train_state import TrainState

import headgate.jax as hg

SAMPLES, BATCH = 50, 8
STEPS_PER_EPOCH = 7  # the last one has two samples
EPOCHS = 3
Batch = tuple[Any, Any]
AtStep = Callable[[int], None]


class Data(NamedTuple):
    features: Any
    targets: Any


def data() -> Data:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(SAMPLES, 6)).astype(np.float32)
    return Data(features, np.tanh(features @ rng.normal(size=(6, 2)).astype(np.float32)))


def batches(epoch: int) -> list[Batch]:
    whole, order = data(), np.random.default_rng(epoch).permutation(SAMPLES)
    parts = [order[begin : begin + BATCH] for begin in range(0, SAMPLES, BATCH)]
    return [(whole.features[part], whole.targets[part]) for part in parts]


def initial() -> dict[str, Any]:
    first, second = jax.random.split(jax.random.key(1))
    return {
        "in": jax.random.normal(first, (6, 12)) * 0.4,
        "out": jax.random.normal(second, (12, 2)) * 0.4,
    }


def loss_of(params: Any, features: Any, targets: Any) -> Any:
    return jnp.mean((jnp.tanh(features @ params["in"]) @ params["out"] - targets) ** 2)


def plain(at_step: AtStep = lambda step: None, passes: Any = hg.batches) -> Any:
    """Gradient descent by hand, with noise from a typed key; parameters and key are given to each
    step and donated.
    """
    hg.init()
    params, key = hg.prepare(initial(), jax.random.key(7))

    @jax.jit
    def step(params: Any, key: Any, features: Any, targets: Any) -> Any:
        key, noise = jax.random.split(key)
        features = features + 0.01 * jax.random.normal(noise, features.shape)
        loss, gradients = jax.value_and_grad(loss_of)(params, features, targets)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), key, loss

    number = 0
    for epoch in hg.epochs(EPOCHS):
        for features, targets in passes(batches(epoch)):
            number += 1
            params, key, loss = step(params, key, features, targets)
            at_step(number)
            hg.report(loss=loss, state=(params, key))
    return params


def train_state(at_step: AtStep = lambda step: None) -> Any:
    """Flax's TrainState over Optax, in a function for the epoch, donated to each step."""
    hg.init()
    create: Any = TrainState.create
    state = create(apply_fn=loss_of, params=initial(), tx=optax.adam(1e-2))
    state = hg.prepare(state)

    @jax.jit
    def step(state: Any, features: Any, targets: Any) -> Any:
        loss, gradients = jax.value_and_grad(state.apply_fn)(state.params, features, targets)
        return state.apply_gradients(grads=gradients), loss

    def train_epoch(state: Any, epoch: int) -> Any:
        for number, (features, targets) in enumerate(hg.batches(batches(epoch)), 1):
            state, loss = step(state, features, targets)
            at_step(number)
            hg.report(loss=loss, state=state)
        return state

    for epoch in hg.epochs(EPOCHS):
        state = train_epoch(state, epoch)
    return state.params


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(6, 12, rngs=rngs)
        self.norm = nnx.BatchNorm(12, rngs=rngs)
        self.dropout = nnx.Dropout(0.2, rngs=rngs)
        self.out = nnx.Linear(12, 2, rngs=rngs)

    def __call__(self, features: Any) -> Any:
        return self.out(self.dropout(jnp.tanh(self.norm(self.hidden(features)))))


def in_place(at_step: AtStep = lambda step: None) -> Any:
    """Flax NNX: model and optimizer change in place, statistics and random streams with them."""
    hg.init()
    model = Network(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-2), wrt=nnx.Param)
    model, optimizer = hg.prepare(model, optimizer)

    @nnx.jit
    def step(model: Any, optimizer: Any, features: Any, targets: Any) -> Any:
        loss, gradients = nnx.value_and_grad(
            lambda model: jnp.mean((model(features) - targets) ** 2)
        )(model)
        optimizer.update(model, gradients)
        return loss

    number = 0
    for epoch in hg.epochs(EPOCHS):
        for features, targets in hg.batches(batches(epoch)):
            number += 1
            loss = step(model, optimizer, features, targets)
            at_step(number)
            hg.report(loss=loss)
    return nnx.to_pure_dict(nnx.state(model, nnx.Param))


def generated(epoch: int) -> Iterator[Batch]:
    """Batches of a stream, drawn as they are asked for."""
    yield from batches(epoch)
