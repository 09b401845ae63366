"""Learns handwritten digits and writes down what each step was trained on. Tests steer it by files.

In the working directory:

- `trained-TASK-PID`: a line of JSON for each step that this process took: `step`, `epoch`,
  `samples` (their numbers), none for the first step of a worker that joined others: it ran on
  borrowed ones, which count for nothing.
- `ended-TASK-PID`: written when the process ends by itself: `step`, `digest` of the parameters.
- `waits-TASK-STEP`: the task waits before that step, as `--wait TASK@STEP` asked for, until there
  is a `go-TASK-STEP`.
- `last`: the number of the last epoch, once it is known.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import headgate.torch as hg

TASK = os.environ["HEADGATE_TASK"].rpartition("/")[2]
RESUMES = "HEADGATE_RESUME" in os.environ
EPOCHS = 1000
REST_SECONDS = 0.02
"""After each step, so that what the machine runs besides gets on: a training of small steps would
take both cores.
"""
PIXELS, VALUES = 64, 17


class Steps:
    """Counts the steps of the training, whoever took them."""

    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Digits(nn.Module):
    """Two layers; with `table`, the first is a table of a row for each value of each pixel."""

    def __init__(self, width: int, table: bool) -> None:
        super().__init__()
        self.table = (
            nn.EmbeddingBag(PIXELS * VALUES, width, mode="sum", sparse=True) if table else None
        )
        self.first = nn.Linear(PIXELS, width)
        self.last = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.first(images / (VALUES - 1))
        if self.table is not None:
            hidden = hidden + self.table(images.long() + torch.arange(PIXELS) * VALUES)
        result: torch.Tensor = self.last(F.relu(hidden))
        return result


def write(name: str, content: Any) -> None:
    """Write a file, whole."""
    draft = Path(f".{name}.part")
    draft.write_text(json.dumps(content))
    draft.rename(name)


def may_go(step: int, waits: list[str]) -> None:
    """Wait where a test wants this task to."""
    go = Path(f"go-{TASK}-{step}")
    if f"{TASK}@{step}" in waits and not go.exists():
        write(f"waits-{TASK}-{step}", step)
        while not go.exists():
            time.sleep(0.005)


def last_epoch() -> int:
    with contextlib.suppress(FileNotFoundError):
        return int(Path("last").read_text())
    return EPOCHS


def work(seconds: float) -> None:
    """Use a core for so many CPU seconds, as a larger model would."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def digest(model: nn.Module) -> str:
    return hashlib.sha256(
        b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    ).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "data", type=Path, help="an array of digits: 64 pixels and the label of each"
    )
    parser.add_argument("--wait", action="append", default=[], help="TASK@STEP")
    parser.add_argument(
        "--work", type=float, default=0.0, help="CPU seconds of each step, besides the model's"
    )
    parser.add_argument(
        "--leased", action="store_true", help="no worker ever runs on borrowed samples"
    )
    parser.add_argument(
        "--table", action="store_true", help="a table of sparse gradients is part of the model"
    )
    args = parser.parse_args()

    torch.manual_seed(1)
    digits = torch.from_numpy(np.load(args.data))
    samples = TensorDataset(digits[:, :-1].float(), digits[:, -1].long(), torch.arange(len(digits)))
    loader: Any = DataLoader(samples, 64, shuffle=True)
    model = Digits(32, args.table)
    parameters = list(model.parameters())
    optimizer: Any = (
        torch.optim.SGD(parameters, lr=0.05) if args.table else torch.optim.Adam(parameters)
    )
    steps = Steps()
    hg.keep(steps=steps)
    model, optimizer, loader = hg.prepare(model, optimizer, loader)
    borrows = steps.count > 0 and not RESUMES and not args.leased
    trained = Path(f"trained-{TASK}-{os.getpid()}")
    try:
        for epoch in hg.epochs(EPOCHS):
            if epoch > last_epoch():
                break
            for images, labels, numbers in loader:
                may_go(steps.count, args.wait)
                loss = F.cross_entropy(model(images), labels)
                work(args.work)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                taken = [] if borrows else numbers.tolist()
                with trained.open("a") as file:
                    file.write(
                        json.dumps({"step": steps.count, "epoch": epoch, "samples": taken}) + "\n"
                    )
                steps.count, borrows = steps.count + 1, False
                hg.report(loss=loss)
                time.sleep(REST_SECONDS)
    finally:
        write(
            f"ended-{TASK}-{os.getpid()}",
            {"step": steps.count, "digest": "" if args.table else digest(model)},
        )


if __name__ == "__main__":
    main()
