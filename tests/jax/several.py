"""One script for one process and for several: in 32 and in 64 bits, by hand over Optax and in place
with Flax NNX.

Arguments: epochs, and the file for what came of it. With a file `hold` in its folder it goes
    slowly.
"""

import os
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import headgate.jax as hg

jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
hg.init()

# the last batch has 10: 2 workers divide it evenly, 4 in pairs, 3 not at all
SAMPLES, BATCH = 46, 12
features = np.random.default_rng(0).normal(size=(SAMPLES, 6))
targets = np.tanh(features[:, :2] * 2)
tx = optax.adamw(1e-2)
# worker 0's values count
seed = int.from_bytes(os.urandom(2), "big") if os.environ.get("UNLIKE") else 1


def initial(dtype: Any) -> Any:
    first, second = jax.random.split(jax.random.key(seed))
    params = {
        "in": jax.random.normal(first, (6, 12), dtype) * 0.4,
        "out": jax.random.normal(second, (12, 2), dtype),
    }
    return params, tx.init(params)


def loss_of(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ params["in"]) @ params["out"] - y) ** 2)


@jax.jit
def step(state: Any, x: Any, y: Any) -> Any:
    done, losses = [], []
    for (params, opt_state), dtype in zip(state, (jnp.float32, jnp.float64)):
        loss, gradients = jax.value_and_grad(loss_of)(params, x.astype(dtype), y.astype(dtype))
        updates, opt_state = tx.update(gradients, opt_state, params)
        done.append((optax.apply_updates(params, updates), opt_state))
        losses.append(loss)
    return done, losses


@nnx.jit
def step_in_place(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    loss, gradients = nnx.value_and_grad(lambda model: jnp.mean((model(x) - y) ** 2))(model)
    optimizer.update(model, gradients)
    return loss


rngs = nnx.Rngs(seed)
# No bias before the normalisation: its gradient is rounding alone, of which Adam makes whole steps.
model = nnx.Sequential(
    nnx.Linear(6, 8, use_bias=False, rngs=rngs),
    nnx.BatchNorm(8, rngs=rngs),
    nnx.Linear(8, 2, rngs=rngs),
)
optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
state, model, optimizer = hg.prepare([initial(jnp.float32), initial(jnp.float64)], model, optimizer)
losses = []
for _ in hg.epochs(int(sys.argv[1])):
    order = np.random.permutation(SAMPLES) if os.environ.get("UNLIKE") else np.arange(SAMPLES)
    if os.environ.get("ASTRAY"):
        order = np.random.default_rng().permutation(SAMPLES)
    parts = [order[begin : begin + BATCH] for begin in range(0, SAMPLES, BATCH)]
    for x, y in hg.batches([(features[part], targets[part]) for part in parts]):
        state, (loss, loss64) = step(state, x, y)
        placed = step_in_place(model, optimizer, x.astype(jnp.float32), y.astype(jnp.float32))
        losses.append((loss, loss64, placed))
        if os.environ.get("FAILS") == str(jax.process_index()):
            raise ValueError("the script is at fault")
        hg.report(loss=loss, state=(state, model, optimizer))
        if os.path.exists("hold"):
            time.sleep(0.2)
if jax.process_index() == 0:
    found: dict[str, Any] = {
        f"{bits} {name}": np.asarray(leaf)
        for bits, (params, _) in zip((32, 64), state)
        for name, leaf in params.items()
    }
    found |= {
        f"in place {i}": np.asarray(leaf)
        for i, leaf in enumerate(jax.tree.leaves(nnx.state(model, nnx.Param)))
    }
    found["losses"] = np.array([[float(loss) for loss in row] for row in losses])
    np.savez(sys.argv[2], **found)
