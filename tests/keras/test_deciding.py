"""Scripts of Keras and TensorFlow whose workers decide by their own numbers are told so; `mean` and
`agree` let all decide alike.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from tests.harness.gang import Gang
from tests.keras.conftest import QUIET, VARIABLES, WARM

from headgate.model.plans import Plan

FIT = """
import importlib, os, time
import numpy as np
import headgate.keras as hg

keras = importlib.import_module("tf_keras" if os.environ.get("LEGACY") else "keras")
strategy = hg.strategy()
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
y = x.sum(axis=1, keepdims=True)
with strategy.scope():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
model = hg.prepare(model)
index = hg.rank()

class Own(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        BATCH
    def on_epoch_end(self, epoch, logs=None):
        EPOCH

data = (x, y)
how = {"batch_size": 16}
if os.environ.get("LEGACY"):
    import tensorflow as tf
    data, how = (tf.data.Dataset.from_tensor_slices(data).batch(16),), {}
model.fit(*data, **how, epochs=3, verbose=0, callbacks=[Own(), hg.callback()])
print("weights", *(w.sum() for w in model.get_weights()), flush=True)
"""
LOOP = """
import time
import tensorflow as tf
import keras
import headgate.keras as hg

strategy = hg.strategy()
tf.random.set_seed(1)
with strategy.scope():
    weights = tf.Variable(tf.zeros((4, 1)))
    rate = tf.Variable(0.1, trainable=False)
model = tf.Module()
model.weights = weights
model = hg.prepare(model)
index = hg.rank()
x = tf.random.stateless_normal((8, 4), (1, 2))

@tf.function
def step():
    def of_one():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((x @ weights - x[:, :1]) ** 2)
        slope = tf.distribute.get_replica_context().all_reduce("mean", tape.gradient(loss, weights))
        weights.assign_sub(rate * slope)
        return loss
    return strategy.run(of_one)

for epoch in hg.epochs(3):
    for batch in range(4):
        loss = step()
        STEP
        hg.report(loss=strategy.reduce("mean", loss, axis=None))
        BATCH
    EPOCH
END
print("weights", *weights.numpy().ravel(), flush=True)
"""
RATE = "self.model.optimizer.learning_rate.assign(0.05 / (1 + index + epoch))"
CASES = {
    "a rate of each one's own": (
        "tf_keras",
        FIT,
        {"EPOCH": RATE},
        ["learning_rate is 0.05 in worker-0, 0.025"],
    ),
    "stopping early": (
        "jax",
        FIT,
        {"EPOCH": "if index and epoch == 1: self.model.stop_training = True"},
        ["worker-1 is at its end, after step 8, and worker-0 waits for it", "after step 8"],
    ),
    "asking alone": (
        "jax",
        FIT,
        {"BATCH": "if index and self.model.optimizer.iterations == 6: hg.mean(0.0)"},
        [
            (
                "worker-1 is in hg.mean(), epoch 1, after step 6, and worker-0 waits for it at "
                "epoch 1, after step 6"
            )
        ],
    ),
    "weights of each one's own": (
        "tensorflow",
        LOOP,
        {"EPOCH": "rate.assign(0.1 * (1 + index))"},
        ["mean |", "in worker-0", "in worker-1", "at epoch 1, after step 8"],
    ),
    "fewer epochs": (
        "tensorflow",
        LOOP,
        {"EPOCH": "if index and epoch == 1: break"},
        ["worker-1 is ", "after step 8, and worker-0 waits for it at epoch 1, after step 8"],
    ),
    "asking alone in a loop": (
        "tensorflow",
        LOOP,
        {"BATCH": "if index and epoch == 1 and batch == 1: hg.mean(0.0)"},
        [
            (
                "worker-1 is in hg.mean(), epoch 1, after step 6, and worker-0 waits for it in "
                "script.py, line 30, where"
            ),
            "epoch 1, after step 6",
        ],
    ),
    "asking while another adds up alone": (
        "tensorflow",
        LOOP,
        {
            "STEP": "if not index and epoch == 1: strategy.reduce('sum', loss, axis=None)",
            "BATCH": "if index and epoch == 1: hg.agree(True)",
        },
        [
            (
                "worker-1 is in hg.agree(), epoch 1, after step 5, and worker-0 waits for it in "
                "script.py, line 32, where"
            )
        ],
    ),
    "leaving the loop": (
        "tensorflow",
        LOOP,
        {
            "BATCH": "if index and epoch == 1: break",
            "EPOCH": "if index and epoch == 1: break",
            "END": "while index: time.sleep(0.1)",
        },
        [
            (
                "worker-1 is past its loop over epochs, epoch 1, after step 5, and worker-0 waits "
                "for it in script.py"
            ),
            "line 30, where workers exchange what they have, epoch 1, after step 5",
        ],
    ),
}
SHORT = {"weights of each one's own"}


def gang(folder: Path, backend: str, script: str, parts: dict[str, str]) -> Gang:
    for name, indent in (
        ("STEP", 8),
        ("BATCH", 8),
        ("EPOCH", 8 if script is FIT else 4),
        ("END", 0),
    ):
        code = textwrap.indent(
            textwrap.dedent(parts.get(name, "pass")).strip("\n"), " " * indent
        ).lstrip()
        script = script.replace(name, code)
    (folder / "script.py").write_text(script)
    plan = Plan(strategy="allreduce", workers=2, batch_per_worker=None)
    variables = {**QUIET, **VARIABLES[backend]}
    return Gang(
        folder, plan, [sys.executable, str(folder / "script.py")], variables, warm=WARM[backend]
    )


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in SHORT else pytest.mark.long) for c in CASES]
)
def test_workers_that_decide_by_their_own_numbers_are_told_what_differs(
    case: str, tmp_path: Path
) -> None:
    backend, script, parts, words = CASES[case]
    with gang(tmp_path, backend, script, parts) as running:
        running.start()
        assert running.left("worker-0") == 1, running.output("worker-0")
        output = running.output("worker-0")
    for word in words:
        assert word in output
    assert "WorkersDiffer" in output
    assert "hg.mean(value)" in output


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "backend",
    [pytest.param(each, marks=pytest.mark.long) for each in ("tf_keras", "jax", "tensorflow")],
)
def test_workers_that_decide_together_come_to_the_same(backend: str, tmp_path: Path) -> None:
    model = (
        "self.model.optimizer.learning_rate.assign" if backend != "tensorflow" else "rate.assign"
    )
    leave = "self.model.stop_training = True" if backend != "tensorflow" else "break"
    epoch = f"""
        {model}(hg.mean(0.05 * (1 + index)))
        if hg.is_main(): print("written by", hg.rank())
        if hg.agree(index == 1 and epoch == 1): {leave}
    """
    with gang(
        tmp_path, backend, LOOP if backend == "tensorflow" else FIT, {"EPOCH": epoch}
    ) as running:
        running.start()
        running.finish()
        ends = [running.output(name).splitlines() for name in running.names]
    assert (
        [line for line in ends[0] if "weights" in line]
        == [line for line in ends[1] if "weights" in line]
        != []
    )
    assert ["written by 0" in end for end in ends] == [True, False]
