"""Trainings in the forms of well-known trainers, each with something that holds it back. None
knows of Headgate.

    python plain_forms.py FORM SECONDS
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

ROWS = TensorDataset(torch.randn(256, 64), torch.randint(10, (256,)))


def loss_of(net: nn.Module, rows: torch.Tensor, labels: torch.Tensor) -> Any:
    return nn.functional.cross_entropy(net(rows), labels)


class Slow(Dataset[Any]):
    """Samples that take a while to read."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.002)
        return ROWS[index]


def model(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


class Trainer:
    """Accumulates gradients, and evaluates and saves every few steps, as that of transformers."""

    def __init__(self) -> None:
        self.model = model(256)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.kept = [[index] for index in range(300_000)]

    def train(self, goes_on: Callable[[], bool]) -> None:
        step = 0
        while goes_on():
            for index, (rows, labels) in enumerate(DataLoader(ROWS, 32)):
                loss_of(self.model, rows, labels).backward()
                if index % 2:
                    self.optimizer.step()
                    self.model.zero_grad()
                    step += 1
                gc.collect()
            self.evaluate()
            with tempfile.TemporaryDirectory() as folder:
                state = {"model": self.model.state_dict(), "data": {"all": torch.zeros(5_000_000)}}
                torch.save(state, f"{folder}/checkpoint.pt")

    def evaluate(self) -> None:
        self.model.eval()
        with torch.no_grad():
            for rows, _ in DataLoader(ROWS, 32):
                self.model(rows)
                time.sleep(0.01)
        self.model.train()


def trainer(goes_on: Callable[[], bool]) -> None:
    Trainer().train(goes_on)


def lightning(goes_on: Callable[[], bool]) -> None:
    """The optimizer calls forward and backward, as Lightning's loop does; reading takes long."""
    net = model(64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    while goes_on():
        for rows, labels in DataLoader(Slow(), 32):

            def closure(rows: Any = rows, labels: Any = labels) -> Any:
                optimizer.zero_grad()
                loss = loss_of(net, rows, labels)
                loss.backward()
                return loss

            optimizer.step(closure)


class Prepared(torch.optim.Optimizer):
    """An optimizer around another one, as that of Accelerate."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


def accelerate(goes_on: Callable[[], bool]) -> None:
    """Much time goes by between steps."""
    net = model(64)
    optimizer = Prepared(torch.optim.SGD(net.parameters(), lr=0.01))
    while goes_on():
        for rows, labels in DataLoader(ROWS, 32):
            loss_of(net, rows, labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            time.sleep(0.05)


def plain(goes_on: Callable[[], bool]) -> None:
    """Steps are too small for the machine."""
    net = model(16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    while goes_on():
        for rows, labels in DataLoader(ROWS, 4):
            optimizer.zero_grad()
            loss_of(net, rows, labels).backward()
            optimizer.step()


def main() -> None:
    forms = {form.__name__: form for form in (trainer, lightning, accelerate, plain)}
    begun: list[float] = []

    def goes_on() -> bool:
        """Its time begins with its first step: an optimizer imports much."""
        begun.append(time.monotonic())
        return begun[-1] - begun[0] < float(sys.argv[2])

    forms[sys.argv[1]](goes_on)


if __name__ == "__main__":
    main()
