"""Scripts of Keras, TensorFlow and JAX that know nothing of Headgate, observed while they run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.keras.conftest import QUIET, finish
from tests.keras.conftest import run as start_warm
from tests.keras.plain_scripts import SCRIPTS

from headgate.engines.launch import inject, observation
from headgate.testing.listener import ChannelListener

KINDS = Path(__file__).with_name("plain_scripts.py")
NAMES = [(backend, name) for backend, scripts in SCRIPTS.items() for name in scripts]


def run(folder: Path, backend: str, channel: ChannelListener) -> dict[str, Any]:
    """What the scripts of a back end tell, observed."""
    injected = inject(folder / "inject")
    observed = channel.environment(HEADGATE_OBSERVE="steps")
    path = os.pathsep.join((str(observation(injected)), str(injected)))
    variables = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, str(KINDS)],
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
        # tests/torch/test_observed.py has the same hooks
        pytest.param(backend, marks=pytest.mark.long) if backend == "torch" else backend
        for backend in SCRIPTS
    ],
)
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A back end, what its scripts compute under plain Python and observed, and its channel."""
    backend, folder = request.param, tmp_path_factory.mktemp("kinds")
    with ChannelListener(folder, welcome={"threads": 1}) as channel:
        observed = run(folder, backend, channel)
        channel.finish()
    output = finish(start_warm(backend, [str(KINDS)], folder), folder)
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
        name: count for name, (_, count) in SCRIPTS[backend].items()
    }


def test_nothing_warns_of_these_scripts(outcome: Any) -> None:
    *_, channel = outcome
    assert channel.of("note") == []


def test_epochs_losses_and_waits_for_input_are_told(outcome: Any) -> None:
    backend, *_, channel = outcome
    waits = [
        span["seconds"]
        for message in channel.of("spans")
        for span in message["spans"]
        if span["name"] == "input"
    ]
    assert any(0.004 < seconds < 0.05 for seconds in waits)  # some is read ahead
    assert sum(message["seconds"].get("evaluation", 0.0) for message in channel.of("asides")) > 0
    if backend != "torch":
        losses = [message for message in channel.of("progress") if "loss" in message]
        assert losses and losses[0]["epochs"] == 2
