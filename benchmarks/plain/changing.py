"""Jobs whose steps become dearer or cheaper by themselves.

    python changing.py transformer|stream|objects [--course steady] [--steps 300]

A plain script: it prints a line for each step. Where CAUSES_FOLDER is set, the file `begun` is
there from the first step on.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

COURSES: Mapping[str, Callable[[float], float]] = {
    "steady": lambda at: 1.0,
    "half-way": lambda at: 1.6 if at > 0.5 else 1.0,
    "growing": lambda at: 0.8 + 0.6 * at,
    "warm-up": lambda at: 1.0 + math.exp(-at / 0.15),
    "phases": lambda at: 1.5 if at * 5.0 % 1.0 > 0.6 else 1.0,
}
"""What a step costs, 1 being usual, by the part of all steps that came before it."""

Step = Callable[[float], Any]
"""A step of so many times the usual cost; its loss."""


def transformer() -> tuple[Step, Any, Any]:
    """Sequences that become longer or shorter, in a small transformer: many short operations on all
    threads.
    """
    import torch
    from torch import nn

    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Linear(64, 8))
    optimizer = torch.optim.Adam(model.parameters())
    tokens, labels = torch.randn(48, 64, 64), torch.randint(8, (48, 64))

    def step(cost: float) -> Any:
        rows = max(round(16 * cost), 1)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(
            model(tokens[:rows]).flatten(0, 1), labels[:rows].flatten()
        )
        loss.backward()
        optimizer.step()
        return loss

    return step, model, optimizer


def stream() -> tuple[Step, Any, Any]:
    """Sums over arrays that no cache holds: memory bandwidth, one thread."""
    a, b = np.ones(24_000_000), np.full(24_000_000, 0.5)

    def step(cost: float) -> Any:
        count = min(round(10_000_000 * cost), len(a))
        np.add(a[:count], b[:count], out=b[:count])
        np.multiply(b[:count], 0.5, out=b[:count])
        return float(b[0])

    return step, None, None


def objects() -> tuple[Step, Any, Any]:
    """A Python program without any library: one thread, many small objects."""

    def step(cost: float) -> Any:
        counts: dict[int, list[int]] = {}
        for number in range(round(50_000 * cost)):
            counts.setdefault(number * 7919 % 5003, []).append(number)
        return float(sum(map(len, counts.values())))

    return step, None, None


KINDS = {each.__name__: each for each in (transformer, stream, objects)}


def printed(number: int, loss: Any) -> None:
    """Tell a step in a line of output."""
    print(f"step {number} loss {float(loss):.4f}", flush=True)


def run(prepared: Callable[[Any, Any], object], tell: Callable[[int, Any], object]) -> None:
    """Go through the steps.

    Args:
        prepared: Called with the model and its optimizer, if there is one.
        tell: Called with the number of a step and its loss.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--course", choices=COURSES, default="steady")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    step, model, optimizer = KINDS[options.kind]()
    if model is not None:
        prepared(model, optimizer)
    for number in range(options.steps):
        loss = step(COURSES[options.course](number / options.steps))
        tell(number + 1, loss)
        if number == 0 and "CAUSES_FOLDER" in os.environ:
            Path(os.environ["CAUSES_FOLDER"], "begun").touch()


if __name__ == "__main__":
    run(lambda model, optimizer: None, printed)
