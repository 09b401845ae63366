"""The session of PyTorch scripts keeps to the contract of every framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from headgate.task import Channel, TaskEnvironment
from headgate.testing.session import EPOCHS, LOOPS, STEPS, SessionContract
from headgate.torch.session import Session

BATCH = 4


class TestInPyTorch(SessionContract):
    def connect(self, environment: TaskEnvironment) -> Session:
        return Session(
            environment, Channel.open(environment, "torch", torch.__version__, torch.initial_seed())
        )

    def train(self, session: Any, at_step: Callable[[], None]) -> list[list[float]]:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(STEPS * BATCH, 5), torch.randn(STEPS * BATCH, 1))
        model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
        (loader,) = session.prepare(model, optimizer, [DataLoader(data, BATCH, shuffle=True)], None)
        for _ in range(LOOPS):
            for _ in session.epochs(EPOCHS):
                for features, targets in loader:
                    loss = nn.functional.mse_loss(model(features), targets)
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    at_step()
                    session.report(loss, None, {})
        return [parameter.flatten().tolist() for parameter in model.parameters()]

    def threads(self, session: Any) -> int:
        return torch.get_num_threads()


def test_evaluation_within_the_loop_on_tensors_is_told(start: Callable[..., Any]) -> None:
    script = start("""
model, optimizer = hg.prepare(network(), torch.optim.SGD(network().parameters(), lr=0.1))
features, labels = torch.randn(8, 8), torch.randint(0, 2, (8,))
for _ in range(4):
    nn.functional.cross_entropy(model(features), labels).backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        for _ in range(3):
            loss = nn.functional.cross_entropy(model(features), labels)
            time.sleep(0.05)
    model.train()
    hg.report(val_loss=loss)
""")
    script.finish()
    overheads = [
        seconds
        for message in script.listener.of("asides")
        for seconds in message["seconds"].items()
    ]
    assert 0.4 <= sum(seconds for name, seconds in overheads if name == "evaluation") < 10.0


def test_evaluation_between_passes_and_files_that_the_script_saves_are_told(
    start: Callable[..., Any],
) -> None:
    script = start("""
optimizer = torch.optim.SGD(network().parameters(), lr=0.1)
model, optimizer, loader = hg.prepare(network(), optimizer, DataLoader(data(), 8))
for epoch in hg.epochs(2):
    for features, labels in loader:
        nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
        hg.report()
    torch.save({"kept": torch.zeros(1_000_000)}, "own.pt")
    model.eval()
    for _ in range(3):
        model(torch.randn(8, 8))
        time.sleep(0.05)
    model.train()
""")
    script.finish()
    overheads = [
        seconds
        for message in script.listener.of("asides")
        for seconds in message["seconds"].items()
    ]
    seconds = {
        name: sum(value for known, value in overheads if known == name) for name, _ in overheads
    }
    assert 0.2 <= seconds["evaluation"] < 10.0  # twice from the first to the last of three passes
    assert seconds["saving"] > 0.0
