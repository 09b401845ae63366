"""Real training scripts over each of Keras' back ends, in processes of their own, on a real
channel.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.warm import WarmProcess, warm_python

from headgate.testing.listener import ChannelListener

SOURCE = Path(__file__).parents[2] / "src"
FITTING = Path(__file__).with_name("fitting.py")
SECONDS = 240.0

VARIABLES = {
    "tensorflow": {"KERAS_BACKEND": "tensorflow"},
    "jax": {"KERAS_BACKEND": "jax"},
    "torch": {"KERAS_BACKEND": "torch"},
    "tf_keras": {"KERAS_BACKEND": "tensorflow", "TF_USE_LEGACY_KERAS": "1", "LEGACY": "1"},
}
"""How a script is told which Keras it trains with."""

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": ""}
"""The same for all scripts, so that one interpreter that has imported TensorFlow serves them."""

_TENSORFLOW = ("without_sklearn", "keras", "tf_keras")
WARM = {
    "tensorflow": _TENSORFLOW,
    "jax": ("without_sklearn", "keras"),
    "torch": ("without_sklearn", "keras", "torch._dynamo"),
    "tf_keras": _TENSORFLOW,
}
"""What a script imports that takes seconds: one interpreter has both kinds of Keras over
TensorFlow. The first is of the harness.
"""


class Script:
    """A running script and the listener that it talks to."""

    def __init__(self, process: WarmProcess, folder: Path, listener: ChannelListener) -> None:
        self.process = process
        self.folder = folder
        self.listener = listener

    def finish(self) -> str:
        """Its output, once it ended well."""
        output = finish(self.process, self.folder)
        self.listener.finish()
        return output

    def checkpoint(self) -> dict[str, Any]:
        """The last one it saved."""
        return self.listener.of("checkpoint")[-1]


Start = Callable[..., Script]


def environment(backend: str, **more: str) -> dict[str, str]:
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")
    }
    return {
        **inherited,
        "PYTHONPATH": str(SOURCE),
        "OMP_NUM_THREADS": "1",
        **QUIET,
        **VARIABLES[backend],
        **more,
    }


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts `fitting.py`, or another script, with arguments, as a task of a job."""
    running: list[Script] = []

    def starting(
        backend: str, *arguments: str, script: Path = FITTING, mode: str = "run", resume: str = ""
    ) -> Script:
        folder = tmp_path / f"task-{len(running)}"
        folder.mkdir()
        listener = ChannelListener(
            folder, welcome={"role": "worker", "index": 0, "plan": {}, "threads": None}
        )
        variables = listener.environment(
            HEADGATE_MODE=mode, **({"HEADGATE_RESUME": resume} if resume else {})
        )
        process = run(backend, [str(script), *arguments], folder, **variables)
        running.append(Script(process, folder, listener))
        return running[-1]

    yield starting
    for script in running:
        script.process.kill()
        script.process.wait()
        script.listener.close()


def run(backend: str, arguments: list[str], folder: Path, **more: str) -> WarmProcess:
    """Start a script; what it prints goes to `output` in its folder."""
    with open(folder / "output", "wb") as output:
        return warm_python(*WARM[backend]).start(
            arguments, env=environment(backend, **more), cwd=folder, output=output.fileno()
        )


def finish(process: WarmProcess, folder: Path) -> str:
    code = process.wait(SECONDS)
    output = (folder / "output").read_text()
    assert code == 0, output
    return output


Plain = Callable[..., str]


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Plain:
    """What four epochs of `fitting.py` print under plain python over a back end."""

    @functools.cache
    def running(backend: str, *data: str) -> str:
        folder = tmp_path_factory.mktemp("plain")
        return finish(run(backend, [str(FITTING), "4", *data], folder), folder)

    return running
