"""JAX scripts whose workers decide by their own numbers are told so; `mean` and `agree` let all
decide alike.
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import pytest
from tests.harness.gang import Gang

from headgate.model.identifiers import TaskName
from headgate.model.plans import Plan

SCRIPT = """
import sys, time
import headgate.jax as hg

hg.init()
import jax
import jax.numpy as jnp
import numpy as np

x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
y = x[:, :1] * 2

@jax.jit
def step(params, rate, x, y):
    loss, slopes = jax.value_and_grad(lambda p: jnp.mean((x @ p["w"] + p["b"] - y) ** 2))(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, slopes), loss

def batches(epoch):
    return hg.batches([(x[i : i + 8], y[i : i + 8]) for i in range(0, 32, 8)])

index = hg.rank()
rate = 0.1
params = hg.prepare({"w": jnp.zeros((4, 1)), "b": jnp.zeros(1)})
for epoch in hg.epochs(3):
    for number, batch in enumerate(batches(epoch)):
        BEFORE
        params, loss = step(params, np.float32(rate), *batch)
        hg.report(loss=loss, state=params)
    BETWEEN
END
print("weights", *np.asarray(params["w"]).ravel(), flush=True)
"""

DIFFERENT = {
    "a rate of each one's own": (
        {"BEFORE": "rate = 0.1 / (1 + index * number)"},
        ["different settings", "mean |0['b']| is", "in worker-0", "in worker-1", "epoch 0"],
    ),
    "an epoch that one leaves": (
        {"BEFORE": "if index and epoch == 1 and number == 2: break"},
        [
            (
                "worker-1 is at epoch 1, after step 6, and worker-0 waits for it at epoch 1, "
                "after step 6"
            )
        ],
    ),
    "a last batch that one skips": (
        {"BEFORE": "if index and epoch == 2 and number == 3: continue"},
        [
            (
                "worker-1 is at epoch 2, after step 11, and worker-0 waits for it at epoch 2, "
                "after step 11"
            )
        ],
    ),
    "stopping early": (
        {"BETWEEN": "if index and epoch == 0: break", "END": "while index: time.sleep(0.1)"},
        [
            (
                "worker-1 is past its loop over epochs, after step 4, and worker-0 waits for it "
                "at epoch 0"
            )
        ],
    ),
    "asking alone": (
        {"BETWEEN": "if not index: hg.mean(1.0)"},
        ["hg.mean()"],
    ),
}


def gang(folder: Path, parts: dict[str, str]) -> Gang:
    script = folder / "script.py"
    text = SCRIPT
    for name in ("BEFORE", "BETWEEN", "END"):
        indent = {"BEFORE": 8, "BETWEEN": 4, "END": 0}[name]
        code = textwrap.indent(
            textwrap.dedent(parts.get(name, "pass")).strip("\n"), " " * indent
        ).lstrip()
        text = text.replace(name, code)
    script.write_text(text)
    plan = Plan(strategy="allreduce", workers=2, batch_per_worker=None)
    return Gang(folder, plan, [sys.executable, str(script)], warm=("jax", "jax.numpy"))


LONG = {"an epoch that one leaves", "a last batch that one skips", "stopping early"}


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[pytest.mark.long] * (c in LONG)) for c in DIFFERENT]
)
def test_workers_that_decide_by_their_own_numbers_are_told_what_differs(
    case: str, tmp_path: Path
) -> None:
    parts, words = DIFFERENT[case]
    with gang(tmp_path, parts) as running:
        running.start()
        assert running.left(TaskName("worker-0")) == 1, running.output("worker-0")
        output = running.output("worker-0")
    for word in words:
        assert word in output
    assert "WorkersDiffer" in output
    assert "hg.mean(value)" in output


@pytest.mark.long
def test_no_worker_goes_on_without_one_that_leaves_at_once(tmp_path: Path) -> None:
    with gang(
        tmp_path, {"BEFORE": "import os\nif index and epoch == 1 and number == 2: os._exit(0)"}
    ) as running:
        running.start()
        assert running.left(TaskName("worker-1")) == 0
        assert running.left(TaskName("worker-0")) != 0
        assert "weights" not in running.output("worker-0")


def test_workers_that_decide_together_come_to_the_same(tmp_path: Path) -> None:
    between = """
        rate = hg.mean(0.1 * (1 + index))
        assert isinstance(hg.mean(loss), jax.Array)
        if hg.is_main(): print("written by", hg.rank())
        if hg.agree(index == 1 and epoch == 1): break
    """
    with gang(tmp_path, {"BETWEEN": between}) as running:
        running.start()
        running.finish()
        ends = [running.output(name).splitlines() for name in running.names]
    assert (
        [line for line in ends[0] if "weights" in line]
        == [line for line in ends[1] if "weights" in line]
        != []
    )
    assert ["written by 0" in end for end in ends] == [True, False]
