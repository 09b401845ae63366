"""Training scripts of Keras, TensorFlow and JAX, none of which knows of Headgate. Run as a program,
it runs those of one back end that are named. For each it prints the bits of what it computed, and
the steps that were observed.
"""
# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined,untyped-decorator"

from __future__ import annotations

import gc
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import numpy as np

Script = Callable[[], list[Any]]
SCRIPTS: dict[str, dict[str, tuple[Script, int]]] = {}
"""The scripts of each back end, and their numbers of steps."""
FEW = {
    "tensorflow": ("validated", "own_loop", "loop_in_a_program"),
    "jax": ("sequence", "optax_compiled", "flax_module"),
}
"""Of these, one of each kind of step that is observed in a way of its own: a fit of Keras, a loop
of the script's own, and one that a compiled program hides.
"""
SAMPLES, BATCH = 48, 8
X = np.random.default_rng(0).normal(size=(SAMPLES, 6)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


def steps(count: int, *names: str) -> Callable[[Script], Script]:
    def add(script: Script) -> Script:
        for name in names:
            SCRIPTS.setdefault(name, {})[script.__name__] = script, count
        return script

    return add


ALL = ("tensorflow", "jax", "torch")
WAIT = 0.05
"""Seconds that reading a batch takes: far more than a step, behind which it can be hidden."""


def classifier(module: Any = None, **options: Any) -> Any:
    keras = module or import_module("keras")
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "relu"), layers.Dropout(0.5), layers.Dense(1)]
    )
    model.compile("adam", "mse", metrics=["mae"], **options)
    return model


def results(model: Any, history: Any = None) -> list[Any]:
    logs = [] if history is None else [history.history[name] for name in sorted(history.history)]
    return [*logs, *model.get_weights()]


def slow_batches(count: int = 6) -> Iterator[Any]:
    for number in range(count):
        time.sleep(WAIT)
        yield X[number * BATCH :][:BATCH], Y[number * BATCH :][:BATCH]


def slow_pipeline() -> Any:
    import tensorflow as tf

    spec = tf.TensorSpec((None, 6)), tf.TensorSpec((None, 1))
    return tf.data.Dataset.from_generator(slow_batches, output_signature=spec)


@steps(12, *ALL)
def generator() -> list[Any]:
    model = classifier()

    def batches() -> Iterator[Any]:
        while True:
            yield from slow_batches()

    return results(model, model.fit(batches(), steps_per_epoch=6, epochs=2, verbose=0))


@steps(12, *ALL)
def sequence() -> list[Any]:
    """Which Keras reads without TensorFlow, that takes longer to import than all of this."""
    import keras

    class Slow(keras.utils.PyDataset):  # type: ignore[misc]  # has no types
        def __len__(self) -> int:
            return SAMPLES // BATCH

        def __getitem__(self, number: int) -> Any:
            time.sleep(WAIT)
            return X[number * BATCH :][:BATCH], Y[number * BATCH :][:BATCH]

    model = classifier()
    return results(model, model.fit(Slow(), epochs=2, shuffle=False, verbose=0))


@steps(12, *ALL)
def arrays() -> list[Any]:
    model = classifier()
    return results(model, model.fit(X, Y, BATCH, 2, validation_split=0.0, verbose=0))


@steps(10, *ALL)
def validated() -> list[Any]:
    model = classifier()
    data = X[:8], Y[:8]
    history = model.fit(X[8:], Y[8:], BATCH, 2, validation_data=data, verbose=2)
    return [*results(model, history), model.evaluate(X, Y, verbose=0)]


@steps(10, "tensorflow", "jax")
def several_at_once() -> list[Any]:
    model = classifier(steps_per_execution=3)
    return results(model, model.fit(X[:40], Y[:40], BATCH, 2, verbose=0))


@steps(6, *ALL)
def own_step() -> list[Any]:
    model = classifier()
    for number in range(6):
        model.train_on_batch(X[number * BATCH :][:BATCH], Y[number * BATCH :][:BATCH])
    return results(model)


@steps(12, "tensorflow")
def pipeline() -> list[Any]:
    model = classifier()
    return results(model, model.fit(slow_pipeline(), epochs=2, verbose=0))


@steps(12, "tensorflow")
def compiled_by_xla() -> list[Any]:
    model = classifier(jit_compile=True)
    return results(model, model.fit(X, Y, BATCH, 2, verbose=0))


@steps(10, "tensorflow")
def legacy() -> list[Any]:
    import tf_keras

    model = classifier(tf_keras)
    data = X[:8], Y[:8]
    history = model.fit(X[8:], Y[8:], BATCH, 2, validation_data=data, verbose=2)
    return results(model, history)


@steps(10, "tensorflow")
def legacy_several_at_once() -> list[Any]:
    import tf_keras

    model = classifier(tf_keras, steps_per_execution=3)
    return results(model, model.fit(X[:40], Y[:40], BATCH, 2, verbose=0))


def _own_loop(compile_step: Any, keras: Any) -> list[Any]:
    import tensorflow as tf

    model = classifier(keras)
    optimizer = keras.optimizers.Adam(0.01)
    tested = []

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    test = tf.function(lambda x, y: tf.reduce_mean((model(x) - y) ** 2))
    trained, held_out = slow_pipeline(), tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)
    compiled = compile_step(step)
    losses = []
    for _ in range(2):
        losses += [float(compiled(x, y)) for x, y in trained]
        tested += [float(test(x, y)) for x, y in held_out]
    return [losses, tested, *model.get_weights()]


@steps(12, "tensorflow")
def own_loop() -> list[Any]:
    import keras
    import tensorflow as tf

    return _own_loop(tf.function, keras)


@steps(12, "tensorflow")
def own_eager_loop() -> list[Any]:
    import keras

    return _own_loop(lambda step: step, keras)


@steps(12, "tensorflow")
def own_legacy_loop() -> list[Any]:
    import tensorflow as tf
    import tf_keras

    return _own_loop(tf.function, tf_keras)


@steps(0, "tensorflow")
def loop_in_a_program() -> list[Any]:
    import keras
    import tensorflow as tf

    weight, optimizer = tf.Variable(2.0), keras.optimizers.SGD(0.1)

    @tf.function
    def train() -> Any:
        for _ in tf.range(5):
            optimizer.apply_gradients([(weight * 0.5, weight)])
        return weight

    return [float(train()), float(train())]


def _jax_parts() -> Any:
    import jax
    import jax.numpy as jnp
    import optax

    optimizer = optax.adam(0.01)
    params = {"w": jax.random.normal(jax.random.key(0), (6, 1)), "b": jnp.zeros(1)}

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((x @ params["w"] + params["b"] - y) ** 2)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, loss

    return params, optimizer.init(params), step, loss_of


def _jax_loop(step: Any, params: Any, state: Any, evaluate: Any) -> list[Any]:
    losses = []
    for _ in range(2):
        for x, y in slow_batches():
            params, state, loss = step(params, state, x, y)
            losses.append(float(loss))
        losses.append(float(evaluate(params, X, Y)))
    return [losses, params["w"], params["b"]]


@steps(12, "jax")
def optax_compiled() -> list[Any]:
    import jax

    params, state, step, loss_of = _jax_parts()
    return _jax_loop(jax.jit(step, donate_argnums=(0, 1)), params, state, jax.jit(loss_of))


@steps(12, "jax")
def optax_eager() -> list[Any]:
    params, state, step, loss_of = _jax_parts()
    return _jax_loop(step, params, state, loss_of)


@steps(12, "jax")
def optax_method() -> list[Any]:
    import jax

    params, state, step, loss_of = _jax_parts()

    class Trainer:
        @jax.jit
        def inner(params: Any, state: Any, x: Any, y: Any) -> Any:  # noqa: N805
            return step(params, state, x, y)

        @jax.jit(static_argnums=0)
        def train(self, *args: Any) -> Any:
            return Trainer.inner(*args)

    assert isinstance(Trainer.inner, jax.stages.Wrapped)
    Trainer.inner.lower(params, state, X, Y)
    return _jax_loop(Trainer().train, params, state, loss_of)


@steps(0, "jax")
def scanned() -> list[Any]:
    import jax

    params, state, step, _ = _jax_parts()

    @jax.jit
    def epoch(params: Any, state: Any) -> Any:
        def body(carry: Any, batch: Any) -> Any:
            *carry, loss = step(*carry, *batch)
            return tuple(carry), loss

        batches = X.reshape(-1, BATCH, 6), Y.reshape(-1, BATCH, 1)
        return jax.lax.scan(body, (params, state), batches)

    carry, losses = epoch(params, state)
    return [losses, carry[0]["w"], epoch(*carry)[1]]


@steps(12, "jax")
def flax_module() -> list[Any]:
    import jax
    import optax
    from flax import nnx

    model = nnx.Linear(6, 1, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        loss, gradients = nnx.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
        optimizer.update(model, gradients)
        return loss

    batches = [*slow_batches(), *slow_batches()]
    losses = [float(step(model, optimizer, x, y)) for x, y in batches]
    return [losses, *jax.tree.leaves(nnx.state(model))]


@steps(12, "torch")
def own_torch_loop() -> list[Any]:
    import keras
    import torch

    model = classifier()
    optimizer = keras.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)
    losses = []
    for _ in range(2):
        for x, y in slow_batches():
            loss = ((model(torch.tensor(x), training=True) - torch.tensor(y)) ** 2).mean()
            model.zero_grad()
            loss.backward()
            with torch.no_grad():
                optimizer.apply([v.value.grad for v in model.trainable_variables])
            losses.append(loss.item())
    return [losses, *model.get_weights()]


def bits(values: Any) -> str:
    digest = hashlib.sha256()
    for value in values:
        digest.update(np.ascontiguousarray(np.asarray(value)).tobytes())
    return digest.hexdigest()


def observed_steps() -> int:
    counts = []
    for module, name in (("observed_calls", "calls"), ("observing", "observer")):
        known = getattr(sys.modules.get(f"headgate.task.{module}"), name, None)
        counts.append(getattr(getattr(known, "session", None), "steps", 0))
    return sum(counts)


def main() -> None:
    backend = os.environ["KERAS_BACKEND"]
    for name in ("sklearn", *(["tensorflow"] if backend != "tensorflow" else [])):
        # Keras imports it where it can, and needs it for nothing here.
        sys.modules[name] = None  # type: ignore[assignment]
    results, scripts = {}, SCRIPTS[backend]
    for name in sys.argv[1:]:
        script, _ = scripts[name]
        before = observed_steps()
        results[name] = bits(script()), observed_steps() - before
        gc.collect()  # the next optimizer leads at once if this one is gone
    print(json.dumps(results), file=sys.stderr)


if __name__ == "__main__":
    main()
