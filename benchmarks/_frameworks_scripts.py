"""The scripts of `frameworks.py` that `ps_dense.py` does not have: the same model in JAX and in TensorFlow.

Arguments: a word, layers, width, batch of each worker, steps, and the folder for what each worker measured.
"""

from __future__ import annotations

_OPENING = """
import json, os, sys, time
from pathlib import Path
import numpy as np

layers, width, batch, steps, out = *map(int, sys.argv[2:6]), sys.argv[6]
task = os.environ["HEADGATE_TASK"].rpartition("/")[2]
middle = lambda values: sorted(values)[len(values) // 2]
draw = np.random.default_rng(0)
matrices = [(draw.normal(size=(width, width)) / width**0.5).astype("float32") for _ in range(layers)]
features = draw.normal(size=(2 * batch, width)).astype("float32")

def took(what):
    begun = time.perf_counter()
    what()
    return time.perf_counter() - begun

def alone(forward, whole):
    forward, whole = (middle([took(what) for _ in range(8)][2:]) for what in (forward, whole))
    result = {"forward": forward, "backward": max(whole - forward, 0.0)}
    return lambda step: Path(out, task + ".json").write_text(json.dumps({**result, "step": step}))
"""

JAX = (
    _OPENING
    + """
import headgate.jax as hg
hg.init()
import jax, jax.numpy as jnp

def loss_of(params, x):
    for matrix in params:
        x = x @ matrix
    return jnp.mean(jnp.square(x))

@jax.jit
def step(params, x):
    loss, gradients = jax.value_and_grad(loss_of)(params, x)
    return jax.tree.map(lambda p, g: p - 0.001 * g, params, gradients), loss

forward, mine = jax.jit(loss_of), features[:batch]
device = jax.local_devices()[0]
local = jax.device_put((matrices, mine), device)
tell = alone(lambda: jax.block_until_ready(forward(*local)), lambda: jax.block_until_ready(step(*local)))
params = hg.prepare([jnp.asarray(matrix) for matrix in matrices])
seconds = []
for _ in hg.epochs(1):
    for x in hg.batches([features] * steps):
        begun = time.perf_counter()
        params, loss = step(params, x)
        jax.block_until_ready((params, loss))
        seconds.append(time.perf_counter() - begun)
        hg.report(loss=loss, state=params)
tell(middle(seconds[2:]))
"""
)

_OF_TENSORFLOW = (
    _OPENING
    + """
import headgate.keras as hg
import keras, tensorflow as tf

def loss_of(weights, x):
    for matrix in weights:
        x = x @ matrix
    return tf.reduce_mean(tf.square(x))

def gradients_of(weights, x):
    with tf.GradientTape() as tape:
        loss = loss_of(weights, x)
    return loss, tape.gradient(loss, weights)

strategy = hg.strategy()
with tf.device("CPU:0"):
    constants, mine = [tf.Variable(matrix) for matrix in matrices], tf.constant(features[:batch])
forward = tf.function(lambda: loss_of(constants, mine))
@tf.function
def whole():
    loss, gradients = gradients_of(constants, mine)
    for matrix, gradient in zip(constants, gradients):
        matrix.assign_sub(0.001 * gradient)
    return loss
tell = alone(lambda: forward().numpy(), lambda: whole().numpy())
with strategy.scope():
    weights = [tf.Variable(matrix) for matrix in matrices]
model = tf.Module()
model.weights = weights
"""
)

TENSORFLOW = (
    _OF_TENSORFLOW
    + """
with strategy.scope():
    optimizer = keras.optimizers.SGD(0.001)
    optimizer.build(weights)
hg.prepare(model, optimizer)
data = tf.data.Dataset.from_tensors(features).unbatch().batch(2 * batch).repeat(steps)

def replica_step(x):
    loss, gradients = gradients_of(weights, x)
    optimizer.apply_gradients(zip([gradient / 2 for gradient in gradients], weights))
    return loss

@tf.function
def step(x):
    return strategy.reduce("MEAN", strategy.run(replica_step, (x,)), axis=None)

seconds = []
for _ in hg.epochs(1):
    for x in strategy.experimental_distribute_dataset(data):
        begun = time.perf_counter()
        loss = step(x)
        loss.numpy()
        seconds.append(time.perf_counter() - begun)
        hg.report(loss=loss)
tell(middle(seconds[2:]))
"""
)

TENSORFLOW_PS = (
    _OF_TENSORFLOW
    + """
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

@tf.function
def step():
    loss, gradients = gradients_of(weights, mine)
    for matrix, gradient in zip(weights, gradients):
        matrix.assign_sub(0.001 * gradient)
    return loss

def train(rounds):
    results = [coordinator.schedule(step) for _ in range(2 * rounds)]
    coordinator.join()
    return results[-1].fetch()

hg.prepare(model)
for _ in hg.epochs(1):
    hg.report(loss=train(2))
    tell(took(lambda: hg.report(loss=train(steps - 2))) / (steps - 2))
"""
)
