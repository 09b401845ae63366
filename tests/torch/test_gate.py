"""Steps of real trainings are held to what their gate grants, over each framework."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.harness.warm import TORCH, warm_python

from headgate.testing.listener import ChannelListener
from headgate.torch.training_state import TrainingState

SOURCE = Path(__file__).parents[2] / "src"
SECONDS = 240.0
FRACTION = 0.25

COMMON = """
import time

def work():
    until = time.monotonic() + 0.01
    while time.monotonic() < until:
        pass

def steps(hg, count):
    # Steps under each gate, after those that are measured and one that it does not hold; tells the
    # part of the time in which they ran.
    yield from range(25)
    channel, gate = hg._door.session._channel, hg._door.session._gate
    for rate in (0.25, 1.0):
        channel.send({"type": "waiting", "rate": rate})
        if not channel.wait_for(lambda: channel.gate is not None and channel.gate.rate == rate, 60):
            raise TimeoutError("no gate came")
        yield
        began, held = time.monotonic(), gate.held
        yield from range(count)
        took = time.monotonic() - began
        channel.send({"type": "timed", "ran": (took - gate.held + held) / took})
"""

TORCH_SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset
import headgate.torch as hg

torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
data = TensorDataset(torch.zeros(1000, 4), torch.zeros(1000, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
model, optimizer, loader = hg.prepare(model, optimizer, DataLoader(data))
for epoch in hg.epochs(1):
    for _, (features, targets) in zip(steps(hg, 50), loader):
        work()
        loss = torch.nn.functional.mse_loss(model(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hg.report(loss=loss)
"""

JAX_SCRIPT = """
import jax
import numpy as np
import headgate.jax as hg

hg.init()
params = hg.prepare(jax.numpy.zeros((4, 2)))
step = jax.jit(jax.value_and_grad(lambda params, features: ((features @ params) ** 2).mean()))
for epoch in hg.epochs(1):
    for _, features in zip(steps(hg, 50), hg.batches([np.ones((1, 4), np.float32)] * 1000)):
        work()
        loss, gradients = step(params, features)
        params = params - 0.1 * gradients
        hg.report(loss=loss, state=params)
"""

KERAS_SCRIPT = """
import keras
import numpy as np
import headgate.keras as hg

class Works(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.steps = steps(hg, 50)

    def on_train_batch_begin(self, batch, logs=None):
        next(self.steps, None)

    def on_train_batch_end(self, batch, logs=None):
        work()

model = hg.prepare(keras.Sequential([keras.layers.Dense(2)]))
model.compile("sgd", "mse")
callbacks = [Works(), hg.callback()]
model.fit(np.zeros((140, 4)), np.zeros((140, 2)), batch_size=1, verbose=0, callbacks=callbacks)
"""


@pytest.mark.parametrize(
    ("modules", "script"),
    [
        pytest.param(TORCH, TORCH_SCRIPT, id="torch", marks=pytest.mark.long),
        pytest.param(("jax",), JAX_SCRIPT, id="jax", marks=pytest.mark.long),
        pytest.param(("keras",), KERAS_SCRIPT, id="keras", marks=pytest.mark.long),
    ],
)
def test_steps_run_for_the_part_of_the_time_that_their_gate_grants(
    modules: tuple[str, ...], script: str, tmp_path: Path
) -> None:
    path, output = tmp_path / "script.py", tmp_path / "output"
    path.write_text(COMMON + textwrap.dedent(script))
    with ChannelListener(
        tmp_path, welcome={"role": "worker", "index": 0, "plan": {}, "threads": 1}
    ) as listener:
        variables = {
            "PYTHONPATH": str(SOURCE),
            "KERAS_BACKEND": "tensorflow",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        with output.open("wb") as file:
            process = warm_python(*modules).start(
                [str(path)],
                env={**os.environ, "OMP_NUM_THREADS": "1", **variables, **listener.environment()},
                cwd=tmp_path,
                output=file.fileno(),
            )
        try:
            for number, fraction in enumerate((FRACTION, 1.0), 1):
                listener.wait_for("waiting", number, SECONDS)
                listener.send({"type": "gate", "fraction": fraction})
            assert process.wait(SECONDS) == 0, output.read_text()
        finally:
            process.kill()
            process.wait()
        listener.finish()
        ran = [message["ran"] for message in listener.of("timed")]
    assert ran == pytest.approx([FRACTION, 1.0], abs=0.05)


def test_all_gpus_that_models_are_on_are_told() -> None:
    def on(gpu: int | None) -> SimpleNamespace:
        return SimpleNamespace(is_cuda=gpu is not None, device=SimpleNamespace(index=gpu))

    trained = TrainingState(None)
    for places, copies in (((None, 3), None), ((0, 1), None), ((1,), [1, 2])):
        parameters = [on(place) for place in places]
        trained.models.append(
            SimpleNamespace(parameters=lambda found=parameters: found, device_ids=copies)  # type: ignore[arg-type]
        )
    assert trained.gpus() == {0, 1, 2, 3}
