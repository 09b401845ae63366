"""Real training scripts in processes of their own, on a real channel."""

from __future__ import annotations

import atexit
import os
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.harness.gang import Gang
from tests.harness.warm import TORCH, WarmProcess, warm_python
from tests.torch import right_answers

import headgate.torch as hg
from headgate.model.plans import Plan
from headgate.testing import wait
from headgate.testing.listener import ChannelListener

SOURCE = Path(__file__).parents[2] / "src"

PREAMBLE = """
import random, sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import headgate.torch as hg
from headgate.task import saving

saving.SHARE = 0.0  # no checkpoint but those that are asked for, however long an epoch takes
torch.manual_seed(0)
random.seed(0)
torch.set_num_threads(1)

def data(samples=96, features=8, classes=3):
    return TensorDataset(torch.randn(samples, features), torch.randint(0, classes, (samples,)))

def network(features=8, classes=3):
    hidden = nn.Linear(features, 16)
    return nn.Sequential(hidden, nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, classes))

def fingerprint(model):
    print("weights", *(f"{p.double().sum().item():.17g}" for p in model.parameters()))

def await_order():
    # Tell the test that an order may come now, and go on once it did: it lands at a known step.
    hg._door.session._channel.send({"type": "waiting"})
    deadline = time.monotonic() + 20
    while not hg._door.session._channel.pending:
        if time.monotonic() > deadline:
            raise TimeoutError("no order came")
        time.sleep(0.001)
"""


class Script:
    """A running script and the listener it talks to."""

    def __init__(self, process: WarmProcess, folder: Path, listener: ChannelListener) -> None:
        self.process = process
        self.folder = folder
        self.listener = listener

    def finish(self, seconds: float = 60.0) -> str:
        """Its output, once it ended well and all its messages are here."""
        output = finish(self.process, self.folder, seconds)
        self.listener.finish()
        return output

    def profile(self) -> dict[str, Any]:
        """The profile that it sent."""
        profile: dict[str, Any] = self.listener.wait_for("profile")[0]["profile"]
        return profile


Start = Callable[..., Script]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a script (its body; what is in PREAMBLE comes first) under a listener of its own."""
    running: list[Script] = []

    def starting(
        body: str, *arguments: str, mode: str = "run", resume: str = "", **more: str
    ) -> Script:
        folder = tmp_path / str(len(running))
        folder.mkdir()
        listener = ChannelListener(
            folder, welcome={"role": "worker", "index": 0, "plan": {}, "threads": None}
        )
        variables = {
            "HEADGATE_MODE": mode,
            **({"HEADGATE_RESUME": resume} if resume else {}),
            **more,
        }
        process = run(
            body, *arguments, environment=listener.environment(**variables), folder=folder
        )
        running.append(Script(process, folder, listener))
        return running[-1]

    yield starting
    for script in running:
        script.process.kill()
        script.process.wait()
        script.listener.close()


def run(body: str, *arguments: str, environment: Mapping[str, str], folder: Path) -> WarmProcess:
    path = folder / "script.py"
    path.write_text(PREAMBLE + textwrap.dedent(body))
    with open(folder / "output", "wb") as output:
        return warm_python(*TORCH).start(
            [str(path), *arguments],
            options=["-W", "error::UserWarning"],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **environment},
            output=output.fileno(),
            cwd=folder,
        )


def finish(process: WarmProcess, folder: Path, seconds: float = 60.0) -> str:
    code = process.wait(seconds)
    output = (folder / "output").read_text()
    assert code == 0, output
    return output


@pytest.fixture
def plain(tmp_path: Path) -> Callable[..., str]:
    """Runs a script under plain python and returns its output."""

    def running(body: str, *arguments: str) -> str:
        folder = tmp_path / "plain"
        folder.mkdir()
        return finish(run(body, *arguments, environment={}, folder=folder), folder)

    return running


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only wait for each other's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Attempt:
    """What came of a training that ran in this process: its result (None where it was stopped) and
    its messages.
    """

    def __init__(self, result: Any, messages: list[dict[str, Any]]) -> None:
        self.result = result
        self.messages = messages

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.messages if message["type"] == kind]

    @property
    def checkpoint(self) -> dict[str, Any]:
        return self.of("checkpoint")[-1]


Training = Callable[[Callable[[int], None]], Any]
Attempting = Callable[..., Attempt]


@pytest.fixture
def attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Attempting:
    """Runs a training function in this process as a task of its own.

    The function is given a callable that it calls with the number of each step; at `order_at`,
    `order` is sent there and has arrived when the call returns.
    """

    def attempting(
        training: Training,
        order: str | Mapping[str, Any] = "stop",
        order_at: int | None = None,
        resume: str = "",
        **more: str,
    ) -> Attempt:
        folder = tmp_path / f"attempt-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        with ChannelListener(
            folder, welcome={"role": "worker", "index": 0, "plan": {}, "threads": None}
        ) as listener:
            variables = listener.environment(
                **({"HEADGATE_RESUME": resume} if resume else {}), **more
            )
            for name, value in variables.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setattr(hg._door, "session", None)
            monkeypatch.setattr(hg._door, "is_joined", False)

            def at_step(step: int) -> None:
                if step == order_at:
                    assert hg._door.session is not None
                    channel = hg._door.session._channel
                    listener.wait_for("hello")
                    if order == "hang up":
                        listener.hang_up()
                    else:
                        listener.send({"type": order} if isinstance(order, str) else order)
                    wait.until(lambda: channel.pending)

            try:
                result = training(at_step)
            except hg.Stop:
                result = None
            finally:
                session = hg._door.session
                if session is not None:
                    atexit.unregister(session.close)
                    session.close()
                    session._channel.close()
                    listener.finish()
        return Attempt(result, listener.messages)

    return attempting


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each of the right answers comes to in one process, without Headgate."""
    folder = tmp_path_factory.mktemp("alone")
    run_alone(right_answers.__file__, folder, str(folder))
    return folder / "plain.pt"


def run_alone(script: Path | str, folder: Path, *arguments: str, **more: str) -> str:
    """What a script prints in this folder, without Headgate."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")
    }
    environment |= {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", **more}
    with open(folder / "output", "wb") as output:
        process = warm_python(*TORCH).start(
            [str(script), *arguments], env=environment, cwd=folder, output=output.fileno()
        )
    return finish(process, folder, 240)


Compare = Callable[..., dict[str, float]]


@pytest.fixture
def wrong_answers(alone: Path, tmp_path: Path) -> Compare:
    """Trains all cases under a plan; those that do not come to what one process comes to, and how
    far from it they are as a multiple of what is allowed. The names of cases may be given; by
    default all are trained.
    """

    def comparing(plan: Plan, *names: str, encrypt: bool = True) -> dict[str, float]:
        arguments = [sys.executable, right_answers.__file__, str(tmp_path), *names]
        with Gang(tmp_path, plan, arguments, encrypt=encrypt) as gang:
            gang.start()
            gang.finish()
        wrong = {}
        for name in (f"worker-{index}" for index in range(plan.workers)):
            far = right_answers.differences(tmp_path / f"{name}.pt", alone)
            wrong.update(
                {f"{case} of {name}": times for case, times in far.items() if not times <= 1}
            )
        return wrong

    return comparing
