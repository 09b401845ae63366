"""States that come later, come again, or are other ones for a while: a resume is as if nothing had
been stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tests.jax.conftest import Attempting

import headgate.jax as hg

Mark = Callable[[int], None]
Training = Callable[[Mark], Any]
OPTIMIZER = optax.adam(0.05)


def same(one: Any, other: Any) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in leaves)


@jax.jit
def step(params: Any, state: Any, batch: Any) -> Any:
    loss, gradients = jax.value_and_grad(
        lambda p: jnp.mean((batch @ p["w"] + p["b"] - batch.sum(1)) ** 2)
    )(params)
    updates, state = OPTIMIZER.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, loss


def folds(mark: Mark) -> Any:
    """Three trainings on data that is drawn as each begins."""
    hg.init()
    np.random.seed(4)
    results = []
    for fold in range(3):
        data = np.random.normal(size=(24, 3)).astype("float32")
        params: Any = {"w": jnp.full(3, 0.1 * fold), "b": jnp.zeros(())}
        params, state = hg.prepare(params, OPTIMIZER.init(params))
        for epoch in hg.epochs(2):
            order = np.random.permutation(24).reshape(4, 6)
            for number, batch in enumerate(hg.batches([data[rows] for rows in order])):
                params, state, loss = step(params, state, batch)
                hg.report(loss=loss, state=(params, state))
                mark(100 * fold + 10 * epoch + number)
        results.append(params)
    return results


def again(mark: Mark) -> Any:
    """The state is prepared anew in each epoch, with batches of another size."""
    hg.init()
    data = np.random.default_rng(1).normal(size=(24, 3)).astype("float32")
    params: Any = {"w": jnp.zeros(3), "b": jnp.zeros(())}
    state: Any = OPTIMIZER.init(params)
    for epoch in hg.epochs(3):
        params, state = hg.prepare(params, state)
        for number, batch in enumerate(hg.batches(data.reshape(4 - epoch, -1, 3)[:, :6])):
            params, state, loss = step(params, state, batch)
            hg.report(loss=loss, state=(params, state))
            mark(10 * epoch + number)
    return params


def averaged(mark: Mark) -> Any:
    """An NNX model that holds its average from the end of an epoch to the begin of the next, and
    while it is tried.
    """
    hg.init()
    data = np.random.default_rng(1).normal(size=(24, 3)).astype("float32")
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, OPTIMIZER, wrt=nnx.Param)
    average = nnx.Dict(kernel=nnx.Param(model.kernel.get_value()))
    model, optimizer, average = hg.prepare(model, optimizer, average)

    @nnx.jit
    def learn(model: Any, optimizer: Any, batch: Any) -> Any:
        loss, gradients = nnx.value_and_grad(
            lambda m: jnp.mean((m(batch)[:, 0] - batch.sum(1)) ** 2)
        )(model)
        optimizer.update(model, gradients)
        return loss

    trained = None
    for epoch in hg.epochs(3):
        if trained is not None:
            model.kernel.set_value(trained)
        for number, batch in enumerate(hg.batches(data.reshape(4, 6, 3))):
            loss = learn(model, optimizer, batch)
            average.kernel.set_value(
                0.8 * average.kernel.get_value() + 0.2 * model.kernel.get_value()
            )
            hg.report(loss=loss)
            mark(10 * epoch + number)
        trained = model.kernel.get_value()
        model.kernel.set_value(average.kernel.get_value())
        mark(100 + epoch)
        hg.report(spread=model(data).std())
    model.kernel.set_value(trained)
    return nnx.state(model), nnx.state(average)


@pytest.mark.parametrize(
    ("training", "stop_at"),
    [
        (folds, 12),
        (folds, 111),
        (folds, 200),
        (again, 1),
        (again, 11),
        (averaged, 2),
        (averaged, 101),
    ],
)
def test_what_was_stopped_goes_on_as_if_it_had_not_been(
    training: Training, stop_at: int, attempt: Attempting
) -> None:
    whole = training(lambda number: None)
    stopped = attempt(training, order_at=stop_at)
    assert stopped.result is None
    resumed = attempt(training, resume=stopped.checkpoint["path"])
    assert same(resumed.result, whole), stopped.checkpoint


def test_an_average_that_is_in_the_model_is_not_saved(attempt: Attempting) -> None:
    stopped = attempt(averaged, order_at=101)
    assert (
        stopped.checkpoint["step"],
        stopped.checkpoint["epoch"],
        stopped.checkpoint["position"],
    ) == (9, 2, 1)


def test_a_training_that_the_checkpoint_has_nothing_of_is_told(attempt: Attempting) -> None:
    stopped = attempt(folds, order_at=2)
    notes = attempt(folds, resume=stopped.checkpoint["path"]).notes
    assert len([note for note in notes if "it starts afresh" in note]) == 1
