"""Scripts of Keras, TensorFlow and JAX that know nothing of Headgate, observed while they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.keras.conftest import QUIET, finish
from tests.keras.conftest import run as start_warm
from tests.keras.plain_scripts import FEW, SCRIPTS, WAIT

from headgate.engines.launch import inject, observation
from headgate.testing.listener import ChannelListener

KINDS = Path(__file__).with_name("plain_scripts.py")
OTHERS = {
    backend: [name for name in scripts if name not in FEW.get(backend, ())]
    for backend, scripts in SCRIPTS.items()
}


def run(
    folder: Path, backend: str, names: Sequence[str], channel: ChannelListener
) -> dict[str, Any]:
    """What these scripts of a back end tell, observed."""
    injected = inject(folder / "inject")
    observed = channel.environment(HEADGATE_OBSERVE="steps")
    path = os.pathsep.join((str(observation(injected)), str(injected)))
    variables = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(KINDS), *names],
        env={**os.environ, **QUIET, **variables, "KERAS_BACKEND": backend, **observed},
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    told: dict[str, Any] = json.loads(ended.stderr.splitlines()[-1])
    return told


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param(few, id=few[0]) for few in FEW.items()),
        # tests/torch/test_observed.py has the hooks of PyTorch
        *(
            pytest.param(others, id=f"others of {others[0]}", marks=pytest.mark.long)
            for others in OTHERS.items()
        ),
    ],
)
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A back end, what scripts of it compute under plain Python and observed, and their channel."""
    (backend, names), folder = request.param, tmp_path_factory.mktemp("kinds")
    with ChannelListener(folder, welcome={"threads": 1}) as channel:
        observed = run(folder, backend, names, channel)
        channel.finish()
    output = finish(start_warm(backend, [str(KINDS), *names], folder), folder)
    [plain] = [line for line in output.splitlines() if line.startswith('{"')]
    return backend, json.loads(plain), observed, channel


def test_observed_scripts_compute_the_same_bits(outcome: Any) -> None:
    _, plain, observed, _ = outcome
    assert {name: told[0] for name, told in observed.items()} == {
        name: told[0] for name, told in plain.items()
    }


def test_the_steps_are_those_that_scripts_take(outcome: Any) -> None:
    backend, _, observed, _ = outcome
    assert {name: told[1] for name, told in observed.items()} == {
        name: SCRIPTS[backend][name][1] for name in observed
    }


def test_nothing_warns_of_these_scripts(outcome: Any) -> None:
    *_, channel = outcome
    assert channel.of("note") == []


def test_epochs_losses_and_waits_for_input_are_told(outcome: Any) -> None:
    backend, _, observed, channel = outcome
    waits = [
        span["seconds"]
        for message in channel.of("spans")
        for span in message["spans"]
        if span["name"] == "input"
    ]
    assert max(waits) > WAIT / 5  # some is read ahead
    if "validated" in observed:
        told = [message["seconds"].get("evaluation", 0.0) for message in channel.of("asides")]
        assert sum(told) > 0.0
    if backend != "torch":
        losses = [message for message in channel.of("progress") if "loss" in message]
        assert losses and losses[0]["epochs"] == 2


FAILING = {
    "keras": """
import keras
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
x = np.ones((8, 4), "float32")
if hooks:  # as another version of Keras, which keeps it elsewhere
    del keras.callbacks.Callback
model.fit(x, x[:, :1], 4, 2, verbose=0)
print(model.get_weights())
""",
    "jax": """
import jax, optax
weights = {"w": jax.numpy.ones(4)}
if hooks:
    jax.tree.structure = None
for _ in range(3):
    weights = optax.apply_updates(weights, jax.grad(lambda w: (w["w"] ** 2).sum())(weights))
print(weights)
""",
}


@pytest.mark.parametrize("name", ["jax", pytest.param("keras", marks=pytest.mark.long)])
def test_a_hook_that_fails_falls_away_with_one_warning(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\nimport numpy as np\nhooks = 'HEADGATE_OBSERVE' in os.environ\n")
    with script.open("a") as file:
        file.write(FAILING[name])
    with ChannelListener(tmp_path, welcome={"threads": 1}) as channel:
        injected = inject(tmp_path / "inject")
        path = os.pathsep.join((str(observation(injected)), str(injected)))
        observed = channel.environment(HEADGATE_OBSERVE="steps")
        ended = subprocess.run(
            [sys.executable, str(script)],
            env={**os.environ, **QUIET, "KERAS_BACKEND": "jax", "PYTHONPATH": path, **observed},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        [warning] = channel.wait_for("note")
    assert "its steps are no longer observed: " in warning["text"]
    assert ended.stdout == finish(start_warm("jax", [str(script)], tmp_path), tmp_path)
